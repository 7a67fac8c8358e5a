"""Locks made by torch 2.13.0 and 2.14.1 of the same scripts (tests/data/guard): what the upgrade changed, no more."""

from __future__ import annotations

from pathlib import Path

import pytest

from fusionaudit.baseline import format_lock, read_lock
from fusionaudit.diff import compare
from fusionaudit.explain import diff_lines
from fusionaudit.groups import Lock

DATA = Path(__file__).parent / "data" / "guard"
OLD, NEW = "2.13.0", "2.14.1"
CHANGES = {
    "conv_net": [
        # The linear layer's padding to a multiple of four (f32[2,8] -> f32[4,8]) became a kernel of its own, and the
        # backward reduction a persistent one that reads its input once: as the generated code of the two says.
        ("changed", "aten.addmm left aten._native_batch_norm_legit_functional + aten.relu + aten.mean + aten.addmm"),
        ("signature", "writes f32[2,8] -> f32[4,8]"),
        ("signature", "reads no longer f32[2,8,16,16]"),
        ("added", "new kernel aten.mm"),
    ],
    "fa118_complex": [("removed", "kernel gone: aten.mul + aten.view_as_complex")],  # 2.14 leaves out t * 1.0
}


def lock(name: str, torch: str) -> Lock:
    path = DATA / f"{name}.torch-{torch}.lock"
    text = path.read_text(encoding="utf-8")
    made = read_lock(text, name=path.name)
    assert format_lock(made) == text
    return made


@pytest.mark.parametrize("name", CHANGES)
def test_the_upgrades_changes_and_no_others(name: str) -> None:
    lines = diff_lines(lock(name, OLD), lock(name, NEW))
    assert f"They differ in torch {OLD} -> {NEW}; Triton 3.7.1 -> 3.8.0: a change may come from that alone." in lines[0]
    told = lines[next(i for i, line in enumerate(lines) if line.startswith("groups: ")) + 1 :]
    assert len(told) == len(CHANGES[name])
    for line, (kind, says) in zip(told, CHANGES[name], strict=True):
        assert line.startswith(f"{kind}: ")
        assert says in line
        assert ".py" in line.split("`")[0], "a change without its source line"


@pytest.mark.parametrize("torch", [OLD, NEW])
@pytest.mark.parametrize("name", CHANGES)
def test_none_against_itself(name: str, torch: str) -> None:
    assert compare(lock(name, torch), lock(name, torch)).changes == ()
