"""The page as text: one file, nothing loaded, nothing executed but its own script, the figures of the document."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import html
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from report_documents import block, hostile, many, sum_abs

from fusionaudit.report.chain_graph import PassIndex, chain_graph
from fusionaudit.report.console import render_console
from fusionaudit.report.html import render_diff_html, render_html
from fusionaudit.report.rows import comparison
from fusionaudit.store import load, save


class Page(HTMLParser):
    """Elements with their attributes, and the text of scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.raw: list[tuple[str, dict[str, str | None], str]] = []
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.elements and self.elements[-1][0] in ("script", "style") and data.strip():
            self.raw.append((*self.elements[-1], data))
        else:
            self.texts.append(data)


def data_of(page: Page) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(next(text for tag, attrs, text in page.raw if attrs.get("id") == "data"))
    return found


def sha(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


@pytest.mark.parametrize("document", [sum_abs(), block(), hostile()], ids=["sum_abs", "block", "hostile"])
def test_nothing_is_loaded_and_only_our_script_runs(document: dict[str, Any]) -> None:
    page = Page(render_html(document))
    assert {tag for tag, _ in page.elements} & {"img", "link", "iframe", "object", "embed", "base", "form"} == set()
    for tag, attributes in page.elements:
        assert not [a for a in attributes if a.startswith("on") or a in ("style", "src", "srcset", "action")], tag
        if "href" in attributes:
            assert re.fullmatch(r"#[\w-]+", attributes["href"] or "")
    scripts = [(attrs, text) for tag, attrs, text in page.raw if tag == "script"]
    assert [attrs.get("type") for attrs, _ in scripts] == ["application/json", None]
    style = next(text for tag, _, text in page.raw if tag == "style")
    policy = next(a["content"] for t, a in page.elements if t == "meta" and "http-equiv" in a) or ""
    assert policy.startswith("default-src 'none';")
    assert f"script-src '{sha(scripts[1][1])}'" in policy
    assert f"style-src '{sha(style)}'" in policy
    assert "unsafe" not in policy
    assert "http:" not in policy


def test_script_sets_no_markup() -> None:
    folder = Path(__file__).parent.parent / "fusionaudit" / "report" / "templates"
    script = "\n".join(p.read_text() for p in folder.glob("*.js"))
    for word in (
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "Function(",
        "fetch(",
        "http://",
        "https://",
    ):
        assert word not in script.replace("http://www.w3.org/2000/svg", ""), word


def test_hostile_text_comes_back_as_text() -> None:
    text = render_html(hostile())
    page = Page(text)
    assert len([t for t, _ in page.elements if t == "script"]) == 2
    assert "\u202e" not in text
    assert "\x1b" not in text
    assert any("<script>window.pwned=1</script>" in t for t in page.texts)
    assert any(t.startswith("<script>window.pwned=1</script>") for t in data_of(page)["texts"])
    assert "49" not in "".join(page.texts).replace("{{7*7}}", "")[:400]


def test_figures_are_the_same_in_console_page_document_and_database(tmp_path: Path) -> None:
    import io

    from rich.console import Console

    document = sum_abs()
    save(document, tmp_path / "audit.db")
    again = load(tmp_path)
    assert again == json.loads(json.dumps(document))
    assert render_html(again) == render_html(document)
    out = io.StringIO()
    render_console(again, Console(file=out, width=120))
    page = Page(render_html(document))
    words = " ".join(page.texts)
    for row in comparison(document):
        for cell in row.texts:
            assert cell in words
            assert cell in out.getvalue()
    data = data_of(page)
    at = {name: i for i, name in enumerate(data["fields"])}
    for number, p in enumerate(document["passes"]):
        rows = [k for k in data["kinds"] if k[at["pass"]] == number]
        assert sum(k[at["count"]] for k in rows) == p["per_step"]["launches"] == len(p["kernels"])
        assert sum(k[at["time"]] for k in rows) == p["per_step"]["gpu_time_ns"]
        assert sum(k[at["bytes"]] for k in rows) == p["per_step"]["global_bytes"]
        assert sum(data["passes"][number]["width"]) == p["per_step"]["gpu_time_ns"]


def test_no_home_host_or_user() -> None:
    text = html.unescape(render_html(sum_abs()))
    for private in ("/home/ada", "gpu-box-7"):
        assert private not in text
    assert "~/work/sum_abs.py" in text


def test_sizes() -> None:
    assert len(render_html(sum_abs()).encode()) < 3_000_000
    text = render_html(many())
    assert len(text.encode()) < 10_000_000
    data = data_of(Page(text))
    assert not data["cuts"] or "added up by category" in data["cuts"][0]


def test_many_kinds_are_added_up_and_said() -> None:
    document = many(12_000, 12_000)
    data = data_of(Page(render_html(document)))
    at = {name: i for i, name in enumerate(data["fields"])}
    assert "9,500 launches of 9,500 further kinds: added up by category" in data["cuts"][0]
    total = sum(k[at["time"]] for k in data["kinds"] if k[at["pass"]] == 0)
    assert total == document["passes"][0]["per_step"]["gpu_time_ns"]


def test_chain_graph_marks_memory() -> None:
    document = sum_abs()
    finding = document["findings"][0]
    graph = chain_graph(finding, PassIndex(document["passes"][0]))
    assert graph is not None
    assert [b.title for b in graph.boxes] == ["abs", "sum"]
    assert [(e.text, e.size, e.through_memory) for e in graph.edges] == [("f32[268435456]", "1.07 GB", True)]
    assert [(s.text, s.incoming) for s in graph.sides] == [("f32[268435456]", True), ("f32[]", False)]
    assert not graph.frames
    for k in document["passes"][0]["kernels"]:
        k["op_ids"] = [4, 5] if k["id"] == 0 else []
    fused = chain_graph(finding, PassIndex(document["passes"][0]))
    assert fused is not None
    assert [e.through_memory for e in fused.edges] == [False]
    assert len(fused.frames) == 1


def test_a_repeated_chain_is_drawn_once() -> None:
    document = sum_abs()
    p, finding = document["passes"][0], document["findings"][0]
    for kind in ("kernels", "ops"):
        p[kind] += [{**item, "id": item["id"] + 100} for item in p[kind]]
    finding["op_ids"] += [104, 105]
    finding["kernels"] += [100, 101]
    finding["evidence"]["times"] = 2
    graph = chain_graph(finding, PassIndex(p))
    assert graph is not None
    assert (len(graph.boxes), graph.note) == (2, "one of 2 such chains")


def test_chain_graph_of_a_long_loop_is_cut() -> None:
    document = block()
    finding = next(f for f in document["findings"] if f["rule"] == "FA106")
    graph = chain_graph(finding, PassIndex(document["passes"][0]))
    assert graph is not None
    assert (len(graph.boxes), graph.more) == (6, 18)


def test_diff_section() -> None:
    from fusionaudit.diff import Change, Changes, Edge, Totals
    from fusionaudit.groups import Group, Ref, Section

    section = Section(pass_name="compiled", kind="forward", graph=True)
    ref = Ref(file="x.py", function="Block.forward", code="x = gelu(x) + r")
    one = Group(
        section=section, ops=("aten.gelu", "aten.add"), reads=("bf16[8]",), writes=("bf16[8]",), refs=(ref,), bytes=48
    )
    two = (
        dataclasses.replace(one, ops=("aten.gelu",), bytes=32),
        dataclasses.replace(one, ops=("aten.add",), bytes=48),
    )
    lost = Edge(producer="gelu", consumer="add", tensor="bf16[8]", bytes=16)
    changes = Changes(
        changes=(Change(pass_name="compiled", kind="split", old=(one,), new=two, lost_edges=(lost,)),),
        same=12, edited=frozenset(), other_key=("torch",), only_old={}, only_new={},
        totals={"compiled": (Totals(13, 100, 0, 0), Totals(14, 132, 0, 0))},
    )  # fmt: skip
    text = render_html(sum_abs(), dataclasses.asdict(changes))
    alone = render_diff_html(dataclasses.asdict(changes), old="/home/ada/<b>.lock", new="b.lock")
    assert "1 group changed, 1 split or gone" in alone
    assert "~/&lt;b&gt;.lock against b.lock" in alone
    assert "<script" not in alone
    assert alone.startswith("<!DOCTYPE html>")
    for words in (
        "1 changed, 12 the same",
        "gelu + add",
        "Now through global memory",
        "conditions as the baseline: torch",
    ):
        assert words in text
        assert words in alone


def test_the_head_with_the_policy_is_written_once() -> None:
    folder = Path(__file__).parent.parent / "fusionaudit" / "report" / "templates"
    assert [p.name for p in folder.glob("*.html") if "Content-Security-Policy" in p.read_text()] == ["parts.html"]
    assert render_html(sum_abs()).startswith("<!DOCTYPE html>")


def test_one_of_something_is_singular() -> None:
    document = sum_abs()
    for p in document["passes"]:
        p["per_step"]["kernels_without_bytes"] = p["unmatched_kernels"] = p["steps"] = 1
    text = " ".join(Page(render_html(document)).texts)
    assert "bytes of 1 kernel not known" in text
    assert not re.findall(r"\b1 (?:kernels|launches|calls|steps|steady steps|further \w+s|findings)\b", text)


def test_labels_of_a_chain_leave_its_curves_free() -> None:
    """abs is read again at the end, four ops further, and every op in between leaves a result."""
    shape = {"shape": [1 << 20], "strides": [1], "dtype": "float32"}
    names = [f"v{i}" for i in range(6)]
    ops = [
        {"id": i, "name": "aten.abs.default", "inputs": [{**shape, "storage": names[i]}], "mutated": [],
         "outputs": [{**shape, "storage": names[i + 1]}]}
        for i in range(5)
    ]  # fmt: skip
    ops[-1]["inputs"].append({**shape, "storage": "v1"})  # type: ignore[attr-defined]
    outside = {
        "id": 9,
        "name": "aten.neg.default",
        "inputs": [{**shape, "storage": "v3"}],
        "outputs": [],
        "mutated": [],
    }
    finding = {"op_ids": [o["id"] for o in ops], "kernels": [], "ops": ["aten.abs"] * 5, "evidence": {}}
    graph = chain_graph(finding, PassIndex({"kernels": [], "ops": [*ops, outside]}))
    assert graph is not None
    (curve,) = [e for e in graph.edges if not e.labelled]
    right = graph.boxes[0].x + graph.boxes[0].width
    beside = next(s for s in graph.sides if not s.incoming)
    assert curve.start < beside.y < curve.end
    assert beside.text_x >= right + curve.reach + 8
    assert beside.text_x + 7.2 * len(beside.text) <= graph.width
