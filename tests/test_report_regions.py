"""Regions in the reports: what each part that the program names launches, moves and takes.

step      |-- block ----------------------|-- loss --|
          |-- norm --|-- mlp -------------|
eager      ln         mm   gelu             sum         sgd
compiled  [ln]        [mm] [gelu]           sum         sgd       (block is one graph; its regions were traced away)
"""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from fusionaudit.findings import Location
from fusionaudit.program.expectation import Expectation, region_name
from fusionaudit.program.model import Kernel, Op, Pass, Program
from fusionaudit.report.console import render_console
from fusionaudit.report.document import build_document
from fusionaudit.report.html import render_html
from fusionaudit.report.regions import OUTSIDE, regions

LINES = {"ln": 10, "mm": 11, "gelu": 12, "sum": 20, "sgd": 30}
EXPECT = region_name(Expectation(max_kernels=1, file="/a.py", first_line=12, last_line=12), 4)
PARTS = {
    "ln": "block > norm", "mm": "block > mlp", "gelu": f"block > mlp > {EXPECT}", "sum": f"{EXPECT} > loss",
    "sgd": None,
}  # fmt: skip


def kernel(number: int, name: str, **given: Any) -> Kernel:
    values: dict[str, Any] = {"read_bytes": 1_000, "write_bytes": 500, "duration_ns": 2_000, "phase": "forward"}
    place = Location(file="/a.py", line=LINES[name])
    ran = {**values, **given}
    return Kernel(
        id=number, name=name, category="pointwise", ops=(number,), location=place, time_basis="measured", **ran
    )


def document(parts: dict[str, str | None] = PARTS, **given: Any) -> dict[str, Any]:
    eager = [kernel(i, name, region=parts[name], **given) for i, name in enumerate(LINES)]
    ops = [Op(id=k.id, name=k.name, region=k.region, location=k.location, phase="forward") for k in eager]
    compiled = [
        kernel(i, name, graph="0/0/forward", region="block" if parts["ln"] else None)
        for i, name in enumerate(LINES)
        if i < 3
    ] + eager[3:]
    passes = (
        Pass(name="eager", engine="kineto", steps=3, kernels=tuple(eager), ops=tuple(ops)),
        Pass(name="compiled", engine="kineto", steps=3, kernels=tuple(compiled)),
    )
    program = Program(engine="kineto", device=None, passes=passes)
    return build_document(program, [], exit_code=0, sources={}, version="0.1.0", created="2026-01-01")


def printed(doc: dict[str, Any], width: int) -> str:
    out = io.StringIO()
    render_console(doc, Console(file=out, width=width))
    return out.getvalue()


def test_a_region_has_what_is_nested_in_it_and_compiled_kernels_count_by_their_line() -> None:
    rows = [(r.name, r.depth, r.pass_name, r.launches, r.bytes, r.time) for r in regions(document())]
    both = [
        ("block", 0, "3", "4.50 kB", "6.00 us"), ("norm", 1, "1", "1.50 kB", "2.00 us"),
        ("mlp", 1, "2", "3.00 kB", "4.00 us"), ("loss", 0, "1", "1.50 kB", "2.00 us"),
    ]  # fmt: skip
    expected = [(n, depth, p, *figures) for n, depth, *figures in both for p in ("eager", "compiled")]
    rest = [(OUTSIDE, 0, p, "1", "1.50 kB", "2.00 us") for p in ("eager", "compiled")]
    assert rows == [*expected, *rest]


def test_declarations_are_no_regions_and_json_has_the_names() -> None:
    doc = document()
    assert [k["region"] for k in doc["passes"][0]["kernels"]] == [
        "block > norm", "block > mlp", "block > mlp", "loss", None,
    ]  # fmt: skip
    none = document({**dict.fromkeys(LINES), "gelu": EXPECT})
    assert regions(none) == []
    assert "Regions" not in printed(none, 80)
    assert 'id="regions"' not in render_html(none)


def test_what_is_not_known_is_not_0() -> None:
    (first, *_) = regions(document(read_bytes=None, write_bytes=None, duration_ns=None))
    assert (first.bytes, first.time) == ("-", "-")
    doc = document()
    doc["passes"][0]["kernels"][1]["global_bytes"] = None
    (first, *_) = regions(doc)
    assert first.bytes == ">=3.00 kB"


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_the_console_has_a_line_for_each(width: int) -> None:
    text = printed(document({k: v and v.replace("mlp", "mlp \x1b[31m" + "x" * 90) for k, v in PARTS.items()}), width)
    assert max(len(line) for line in text.splitlines()) <= width
    assert "\x1b" not in text
    assert ("norm, eager: launches 1, 1.50 kB, 2.00 us" in " ".join(text.split())) == (width == 40)
    assert ("time (measured)\nblock " in text) == (width > 40)


def test_the_page_has_them() -> None:
    page = render_html(document({k: v and v.replace("norm", "<norm>") for k, v in PARTS.items()}))
    cells = '<span class="hidden">&lt;norm&gt;</span></th><td>compiled</td><td class="num">1</td>'
    assert f'<th scope="row" class="depth1">{cells}' in page
    assert "&gt;=" not in page
