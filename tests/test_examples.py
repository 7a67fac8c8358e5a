"""The examples: each shows what it says it shows, audited without a GPU; the clean one shows nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from fusionaudit import pipeline
from fusionaudit.capture.session import RunOptions, run_capture

EXAMPLES = Path(__file__).parent.parent / "examples"

SHOWN: dict[str, set[tuple[str, str]]] = {
    "clean.py": set(),
    "fa101_chain.py": {("eager", "FA101")},
    "fa102_into_reduction.py": {("eager", "FA102")},
    "fa103_softmax_by_hand.py": {("eager", "FA103")},
    "fa104_loose_bias.py": {("eager", "FA104")},
    "fa105_repeated_cast.py": {("eager", "FA105")},
    "fa106_optimizer_loop.py": {("eager", "FA106")},
    "fa108_position_table.py": {("eager", "FA108")},
    "fa111_split_reduction.py": {("compiled", "FA111")},
    "fa113_changing_number.py": {("compiled", "FA113")},
    "fa114_custom_op.py": {("compiled", "FA114")},
    "fa118_complex.py": {("compiled", "FA114")},
    "fa203_data_dependent.py": {("compiled", "FA203")},
    "fa204_item_in_loop.py": {("eager", "FA204")},
    "fa305_two_softmaxes.py": {("compiled", "FA305")},
    "fa307_wide_scale.py": {("eager", "FA307")},
    "graph_break.py": {("compiled", "FA112")},
    "rnn_loop.py": {("eager", "FA202")},
    "scale_bias_relu.py": {("eager", "FA101")},
    "sum_abs.py": {("eager", "FA102")},
}
"""(pass, rule) at severity warning that has to be there; for the clean one: nothing may be."""

QUICK = {"clean.py", "scale_bias_relu.py"}
NEEDS_TIME = {"transformer_step.py", "decoder_block.py", "conv_net.py", "dynamic_shapes.py"}


def test_every_example_is_listed():
    assert {p.name for p in EXAMPLES.glob("*.py")} == set(SHOWN) | NEEDS_TIME


@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in sorted(SHOWN)])
def test_an_example_shows_what_it_says(name, tmp_path):
    capture = run_capture(
        RunOptions(script=str(EXAMPLES / name), out=tmp_path / "c", engine="deviceless", target="h200", quiet=True)
    )
    result = pipeline.audit(capture)
    found = {(f.pass_name, f.rule) for f in result.findings if f.severity != "info"}
    assert not any(note["blocks"] for note in result.document["notes"])
    if SHOWN[name]:
        assert SHOWN[name] <= found
    else:
        assert not found
