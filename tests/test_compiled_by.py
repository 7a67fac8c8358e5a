"""A lock holds who compiles: a script that loses its torch.compile runs its eager kernels, whatever the audit compiles
for it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from guard_documents import LINES, at, compiled, document, eager, kernel

from fusionaudit.baseline import format_lock, read_lock, write_lock
from fusionaudit.check import CheckResult, check
from fusionaudit.diff_formats import diff_json
from fusionaudit.errors import AuditError
from fusionaudit.explain import diff_lines
from fusionaudit.groups import Lock
from fusionaudit.limits import Allowed, Limits

NOTE = {
    "kind": "compiled-for-you", "text": "the script never calls torch.compile; compiled for it: Block", "remedy": "",
    "blocks": False, "pass": "compiled",
}  # fmt: skip


def for_it(doc: dict[str, Any]) -> dict[str, Any]:
    """The same kernels, but the audit compiled for a script that does not."""
    return {**doc, "notes": [NOTE]}


def relock(doc: dict[str, Any]) -> Lock:
    return read_lock(write_lock(doc))


def checked(doc: dict[str, Any], lock: Lock, limits: Limits | None = None) -> CheckResult:
    return check(doc, lock, limits)


def test_the_lock_says_who_compiles_and_stays_readable_for_older_code() -> None:
    text = write_lock(document())
    assert "format 1\n" in text
    assert "\ncompiled-by script\n" in text
    assert read_lock(text).compiled_by == "script"
    assert format_lock(read_lock(text)) == text
    assert relock(for_it(document())).compiled_by == "fusionaudit"
    with pytest.raises(AuditError, match="compiled-by line"):
        read_lock(text.replace("compiled-by script", "compiled-by magic"))


def test_a_script_that_no_longer_compiles_is_a_regression_with_compiled_and_eager_figures() -> None:
    result = checked(for_it(document()), relock(document()))
    assert (result.verdict, result.exit_code) == ("regression", 1)
    (finding,) = result.findings
    assert (finding.severity, finding.location and finding.location.line) == ("error", 10)
    assert finding.message.startswith("at block.py:10 `h = x * scale`: the script no longer compiles Block.forward: ")
    assert "its step goes from 2 launches, 29.4 MB" in finding.message
    assert "to 4 launches, 46.1 MB (compiled before, eager now)" in finding.message
    (figures,) = [line for line in result.lines if line.startswith("compiled:")]
    assert "launches 2 -> 4, bytes 29.4 MB -> 46.1 MB per step, graphs 1 -> 0" in figures
    assert any("was one kernel and is now 3" in line for line in result.lines)


def test_a_transposed_operand_is_the_same_tensor_in_a_graph_and_in_eager_code() -> None:
    def turned(kernels: list[dict[str, Any]]) -> list[dict[str, Any]]:
        kernels[-1]["reads"][1]["strides"] = [1, 1024]
        return kernels

    doc = document(eager_kernels=turned(eager()), compiled_kernels=turned(compiled()))
    result = checked(for_it(doc), relock(doc))
    assert not any("works on other tensors" in line for line in result.lines), result.lines


def test_it_is_no_longer_as_locked_even_where_that_costs_nothing_that_fails() -> None:
    result = checked(for_it(document()), relock(document()), Limits(launches=9, bytes=1 << 40))
    assert (result.verdict, result.exit_code) == ("changed", 1)
    allow = (Allowed(match="Block.forward", reason="wanted"),)
    assert checked(for_it(document()), relock(document()), Limits(allow=allow)).exit_code == 0


def test_compiling_itself_at_last_is_an_improvement() -> None:
    result = checked(document(), relock(for_it(document())))
    assert (result.verdict, result.exit_code) == ("improved", 0)
    (finding,) = result.findings
    assert "the script now compiles Block.forward: its step goes from 4 launches" in finding.message
    graph_break = {"location": at(12), "reason": "print"}
    broken = document(breaks=[graph_break])
    assert checked(broken, relock(for_it(document()))).verdict == "improved"


def test_an_edit_beside_it_is_told_on_its_own() -> None:
    doc = for_it(document())
    doc["passes"][0]["kernels"].append(kernel(["aten.sin.default"], ["d"], ["e"], 14))
    doc["sources"] = {"/home/a/block.py": {str(n): t for n, t in {**LINES, 14: "e = d.sin()"}.items()}}
    result = checked(doc, relock(document()))
    assert result.verdict == "regression"
    messages = [f.message for f in result.findings]
    assert any("no longer compiles" in m for m in messages)
    assert any("block.py:14 `e = d.sin()`" in m for m in messages)


@pytest.mark.parametrize("change", [lambda d: d, for_it], ids=["the script compiles", "the audit compiles"])
def test_where_both_sides_agree_their_compiled_kernels_are_compared(change: Any) -> None:
    result = checked(change(document()), relock(change(document())))
    assert (result.verdict, result.findings) == ("same", ())
    assert not any("compiles itself" in line for line in result.lines)


def test_an_older_lock_does_not_say_and_that_is_told() -> None:
    old = replace(relock(document()), compiled_by="")
    for doc in (document(), for_it(document())):
        result = checked(doc, old)
        assert (result.verdict, result.exit_code) == ("same", 0)
        assert any("whether the script compiles itself: not compared" in line for line in result.lines)


def test_diff_compares_what_each_script_runs() -> None:
    old, new = relock(document()), relock(for_it(document()))
    assert any("graphs 1 -> 0 (now as it runs eagerly" in line for line in diff_lines(old, new))
    row = diff_json(old, new, ("a", "b"))["passes"]["compiled"]
    assert (row["old"]["launches"], row["new"]["launches"], row["new"]["graphs"]) == (2, 4, 0)
    assert json.dumps(row)
