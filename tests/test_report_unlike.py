"""Sums of bytes that leave out other kernels in the two passes are not put side by side as if they were alike."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from report_documents import sum_abs_program
from rich.console import Console

from fusionaudit.findings import Note
from fusionaudit.program.model import Program
from fusionaudit.report.console import render_console
from fusionaudit.report.document import Document, build_document
from fusionaudit.report.html import render_html
from fusionaudit.report.markdown import render_markdown
from fusionaudit.report.rows import comparison


def document(*unknown: str) -> Document:
    """The bytes of the second kernel are not known in these passes."""
    p: Program = sum_abs_program()
    passes = []
    for one in p.passes:
        if one.name in unknown:
            first, second = one.kernels
            one = replace(one, kernels=(first, replace(second, read_bytes=None, call=None, ops=())))
        passes.append(one)
    return build_document(replace(p, passes=tuple(passes)), [], exit_code=0)


def console(doc: Document) -> str:
    out = io.StringIO()
    render_console(doc, Console(file=out, width=100))
    return out.getvalue()


@pytest.mark.parametrize(("unknown", "bound"), [("eager", "<="), ("compiled", ">=")])
def test_the_ratio_is_a_bound_where_one_sum_lacks_kernels(unknown: str, bound: str) -> None:
    doc = document(unknown)
    (line,) = [text for text in console(doc).splitlines() if text.startswith("global bytes")]
    assert line.split()[-1].startswith(bound)
    escaped = bound.replace("<", "&lt;").replace(">", "&gt;")
    assert escaped in render_markdown(doc)
    assert escaped in render_html(doc)
    (note,) = [n for n in doc["notes"] if n["kind"] == "unlike-bytes"]
    assert f"1 kernel of {unknown}" in note["text"]
    assert not note["blocks"]


def test_where_both_lack_as_many_or_none_there_is_a_plain_ratio_and_no_note() -> None:
    for doc in (document(), document("eager", "compiled")):
        (line,) = [text for text in console(doc).splitlines() if text.startswith("global bytes")]
        assert line.split()[-1][0].isdigit()
        assert not [n for n in doc["notes"] if n["kind"] == "unlike-bytes"]


def test_where_both_lack_some_and_not_as_many_there_is_none() -> None:
    doc = document("eager", "compiled")
    doc["passes"][0]["per_step"]["uncounted_kernels"] = 2
    (line,) = [text for text in console(doc).splitlines() if text.startswith("global bytes")]
    assert not line.endswith("x")


def test_an_op_whose_bytes_another_of_its_launches_has_is_counted() -> None:
    p = sum_abs_program()
    eager = p.passes[0]
    further = replace(eager.kernels[1], id=2, read_bytes=None)
    p = replace(p, passes=(replace(eager, kernels=(*eager.kernels, further)), *p.passes[1:]))
    doc = build_document(p, [], exit_code=0)
    figures = doc["passes"][0]["per_step"]
    assert (figures["kernels_without_bytes"], figures["uncounted_kernels"]) == (1, 0)


def test_steps_that_are_not_the_same_work_have_no_ratio() -> None:
    assert "ratio" in console(document())
    p = replace(sum_abs_program(), notes=(Note(kind="other-steps", text="not the same work"),))
    doc = build_document(p, [], exit_code=0)
    assert not [row for row in comparison(doc) if row.ratio is not None]
    assert "ratio" not in console(doc)
    assert "not the same work" in console(doc)
