"""``check`` and how code is compiled: CUDA graphs that a script asks for, and functions that are compiled again."""

from __future__ import annotations

from typing import Any

import pytest
from guard_documents import LINES, at, document, graph

from fusionaudit.baseline import read_lock, write_lock
from fusionaudit.check import CheckResult, check
from fusionaudit.inductor.model import Recompile

ASKS = {8: '@torch.compile(mode="reduce-overhead")', **LINES}
PLAIN = {8: "@torch.compile", **LINES}


def captured(lines: dict[int, str] = LINES, **more: Any) -> dict[str, Any]:
    return document(lines=lines, graphs=[graph(cuda_graph=lines is ASKS)], **more)


def checked(new: dict[str, Any], old: dict[str, Any]) -> CheckResult:
    return check(new, read_lock(write_lock(old)))


def again(guard: str, count: int = 1) -> list[dict[str, Any]]:
    row = Recompile(location=None, function="forward", guard=guard)
    return [{"location": at(9), "function": "forward", "guard": guard, "kind": row.kind}] * count


def test_a_lost_cuda_graph_is_a_regression_at_the_line_that_compiles() -> None:
    result = checked(captured(PLAIN), captured(ASKS))
    assert (result.verdict, result.exit_code) == ("regression", 1)
    (finding,) = result.findings
    assert "no longer asks for a CUDA graph" in finding.message
    assert finding.location is not None
    assert finding.location.line == 8


def test_a_cuda_graph_that_came_is_an_improvement() -> None:
    result = checked(captured(ASKS), captured(PLAIN))
    assert (result.verdict, result.exit_code) == ("improved", 0)
    assert "now asks for a CUDA graph" in result.findings[0].message


def test_the_same_cuda_graph_is_no_change() -> None:
    text = write_lock(captured(ASKS))
    assert "\nasks for a CUDA graph\n" in text
    assert checked(captured(ASKS), captured(ASKS)).verdict == "same"


@pytest.mark.parametrize(
    ("guard", "count", "lasts"),
    [
        ("n == '3'  # return x if n else y", 1, True),
        ("tensor 'x' size mismatch at index 0. expected 4, actual 5", 2, False),
        ("tensor 'x' size mismatch at index 0. expected 4, actual 5", 3, True),
        ("___check_global_state()", 1, False),
    ],
)
def test_a_recompilation_that_goes_on_is_a_regression(guard: str, count: int, lasts: bool) -> None:
    lines = {9: "def forward(self, x, n):", **LINES}
    new, old = captured(lines, recompiles=again(guard, count)), captured(lines)
    result = checked(new, old)
    assert (result.verdict, result.exit_code) == (("regression", 1) if lasts else ("same", 0))
    if lasts:
        assert "compiles Block.forward again and again" in result.findings[0].message
        assert guard.split("  #")[0] in result.findings[0].message
        assert checked(old, new).verdict == "improved"
    assert checked(new, new).verdict == "same"
