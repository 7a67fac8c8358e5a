"""The examples: each shows what it says it shows, audited without a GPU; the clean one shows nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from deviceless_audits import audit  # noqa: E402

from fusionaudit import gate  # noqa: E402
from fusionaudit.limits import Limits  # noqa: E402
from fusionaudit.rules import RULES  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is there: the engine is for machines without one"),
]

EXAMPLES = Path(__file__).parent.parent / "examples"

SHOWN: dict[str, set[tuple[str, str]]] = {
    "clean.py": set(),
    "fa101_chain.py": {("eager", "FA101")},
    "fa102_into_reduction.py": {("eager", "FA102")},
    "fa103_softmax_by_hand.py": {("eager", "FA103")},
    "fa104_loose_bias.py": {("eager", "FA104")},
    "fa105_repeated_cast.py": {("eager", "FA105")},
    "fa106_foreach_optimizer.py": {("eager", "FA106")},
    "fa106_optimizer_loop.py": {("eager", "FA106")},
    "fa108_position_table.py": {("eager", "FA108")},
    "fa111_split_reduction.py": {("compiled", "FA111")},
    "fa113_changing_number.py": {("compiled", "FA113")},
    "fa114_custom_op.py": {("compiled", "FA114")},
    "fa116_declared_kernel.py": {("compiled", "FA116")},
    "fa118_complex.py": {("compiled", "FA114")},
    "fa118_slice_update.py": {("compiled", "FA118")},
    "fa201_many_small_layers.py": {("eager", "FA201")},
    "fa203_data_dependent.py": {("compiled", "FA203")},
    "fa204_item_in_loop.py": {("eager", "FA204")},
    "fa301_spilling.py": {("compiled", "FA301")},
    "fa305_two_softmaxes.py": {("compiled", "FA305")},
    "fa307_wide_scale.py": {("eager", "FA307")},
    "graph_break.py": {("compiled", "FA112")},
    "rnn_loop.py": {("eager", "FA202")},
    "scale_bias_relu.py": {("eager", "FA101")},
    "sum_abs.py": {("eager", "FA102")},
}
"""(pass, rule) at severity warning that has to be there; for the clean one: no finding of any severity."""

TOLD: dict[str, set[tuple[str, str]]] = {
    "fa107_already_fused.py": {("compiled", "FA107")},
    "fa301_spilling.py": {("compiled", "FA302")},
    "fa306_skipped_rounding.py": {("compiled", "FA306")},
}
"""(pass, rule) that is there as information."""

AGAINST_A_LOCK = "fa115_lost_fusion.py"
MEASURED = {"fa303_slow_template.py", "fa304_contended_atomics.py"}
"""A GPU has to say it: tests/test_examples_gpu.py."""

SWEPT = {"FA117"}
"""Compared over variants of examples/dynamic_shapes.py: see tests/test_sweep.py."""

QUICK = {"clean.py", "scale_bias_relu.py"}

PROGRAMS: dict[str, tuple[set[str], set[tuple[str, str]]]] = {
    "transformer_step.py": ({"matmul", "attention", "norm", "foreach"}, set()),
    "conv_net.py": ({"convolution", "norm", "reduction", "foreach"}, set()),
    "decoder_block.py": ({"matmul", "attention", "reduction", "pointwise"}, {("eager", "FA101"), ("eager", "FA103")}),
    "rnn_loop.py": ({"pointwise", "copy"}, set()),
    "graph_break.py": ({"pointwise"}, {("compiled", "FA112")}),
    "dynamic_shapes.py": ({"pointwise", "reduction"}, {("compiled", "FA113")}),
}
"""Whole programs, run with small sizes: categories of the eager launches, and (pass, rule) of any severity."""

SMALLER = {'big = device == "cuda"': "big = False", "turns = 64": "turns = 6", "1 << 24 if": "1 << 18 if"}


def test_every_example_is_listed():
    listed = set(SHOWN) | set(TOLD) | set(PROGRAMS) | MEASURED | {AGAINST_A_LOCK}
    assert {p.name for p in EXAMPLES.glob("*.py")} == listed


def test_every_rule_has_an_example():
    shown = {
        rule for found in (*SHOWN.values(), *TOLD.values(), *(r for _, r in PROGRAMS.values())) for _, rule in found
    }
    named = {name[:5].upper() for name in (*MEASURED, AGAINST_A_LOCK)}
    assert {r.CODE for r in RULES} == shown | named | SWEPT


@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in sorted(SHOWN)])
def test_an_example_shows_what_it_says(name, tmp_path, monkeypatch):
    result = audit(monkeypatch, tmp_path, (EXAMPLES / name).read_text())
    found = {(f.pass_name, f.rule) for f in result.findings if f.severity != "info"}
    assert not any(note["blocks"] for note in result.document["notes"])
    if SHOWN[name]:
        assert SHOWN[name] <= found
    else:
        assert not result.findings


@pytest.mark.parametrize("name", sorted(PROGRAMS))
def test_a_whole_program_is_audited(name, tmp_path, monkeypatch):
    code = (EXAMPLES / name).read_text()
    for large, small in SMALLER.items():
        code = code.replace(large, small)
    result = audit(monkeypatch, tmp_path, code)
    blocking = [note["text"] for note in result.document["notes"] if note["blocks"]]
    assert not blocking
    categories, rules = PROGRAMS[name]
    kernels = {p["name"]: p["kernels"] for p in result.document["passes"]}
    assert categories <= {k["category"] for k in kernels["eager"]}
    generated = [k for k in kernels["compiled"] if k["name"].startswith("triton_")]
    assert 0 < len(generated) < len(kernels["eager"])
    assert all(k["registers"] for k in generated)
    assert rules <= {(f.pass_name, f.rule) for f in result.findings}


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(TOLD))
def test_an_example_tells_what_it_says(name, tmp_path, monkeypatch):
    result = audit(monkeypatch, tmp_path, (EXAMPLES / name).read_text())
    assert not any(note["blocks"] for note in result.document["notes"])
    assert TOLD[name] <= {(f.pass_name, f.rule) for f in result.findings}


@pytest.mark.slow
def test_the_example_of_the_gate_loses_an_edge(tmp_path, monkeypatch):
    code = (EXAMPLES / AGAINST_A_LOCK).read_text()
    lock = tmp_path / "fusion.lock"

    def document(folder, *arguments):
        (tmp_path / folder).mkdir()
        return audit(monkeypatch, tmp_path / folder, code, arguments=arguments).document

    gate.save_lock(document("first"), lock)
    same = gate.check_document(document("again"), lock, Limits())
    worse = gate.check_document(document("broken", "debug"), lock, Limits())
    assert (same.exit_code, worse.exit_code) == (0, 1)
    assert "FA115" in {f.rule for f in worse.findings}
