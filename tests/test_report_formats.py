"""Markdown, Perfetto and what reports leave out: the same figures, escaped, without homes, users or hosts."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from perfetto_format import check_trace
from report_documents import block, hostile, many, sum_abs

from fusionaudit.report.markdown import code, render_markdown, text
from fusionaudit.report.perfetto import render_perfetto
from fusionaudit.report.private import public_environment, scrub_text


def test_markdown_says_what_the_console_says() -> None:
    page = render_markdown(sum_abs())
    assert page.startswith("### fusionaudit: 1 finding worth acting on; it is FA102 at sum\\_abs.py:12")
    assert "| global bytes (modelled) | 3.22 GB | 1.07 GB | 0.33x |" in page
    assert "| 🟠 FA102 | `sum_abs.py:12` | 2.15 GB, 503 us (modelled) |" in page
    assert "<details><summary>Kernels, compiled (2 launches per step)</summary>" in page


def test_markdown_escapes() -> None:
    page = render_markdown(hostile())
    outside = re.sub(r"(`+)[^`].*?\1", "", page)
    tags = {t.lower() for t in re.findall(r"<\s*/?\s*([a-zA-Z]+)", outside)}
    assert tags <= {"br", "details", "summary", "sub"}
    assert text("@someone #12 | a") == "&#64;someone &#35;12 \\| a"
    assert code("a`b|c") == "``a`b\\|c``"
    rows = [line for line in page.splitlines() if line.startswith("| 0 ")]
    assert all(len(re.split(r"(?<!\\)\|", row)) == 8 for row in rows)


def test_markdown_fits_a_comment() -> None:
    page = render_markdown(many(20_000, 5_000))
    assert len(page) < 65_536
    assert "more findings: see the full report" in page


def test_perfetto_tracks() -> None:
    trace = json.loads(render_perfetto(sum_abs()))
    events = trace["traceEvents"]
    names = {e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "thread_name"}
    assert {"kernels, stream 7", "ops", "groups: graphs", "findings"} <= names
    slices = [e for e in events if e["ph"] == "X" and e.get("cat") == "kernel"]
    assert [e["dur"] for e in slices] == [489.0, 265.0, 262.0, 2.3]
    assert slices[0]["args"]["global_bytes"] == 2**31
    assert slices[0]["args"]["source"] == "~/work/sum_abs.py:12"
    finding = next(e for e in events if e.get("cat") == "finding")
    assert finding["name"].startswith("FA102")
    flows = [e for e in events if e["ph"] in "sf"]
    assert len(flows) == 4
    assert {e["id"] for e in flows if e["ph"] == "s"} == {e["id"] for e in flows if e["ph"] == "f"}


@pytest.mark.parametrize("document", [sum_abs(), block(), hostile()], ids=["sum_abs", "block", "hostile"])
def test_perfetto_follows_the_trace_event_format(document: dict[str, Any]) -> None:
    check_trace(render_perfetto(document))


def test_perfetto_without_starts_puts_kernels_end_to_end() -> None:
    document = sum_abs("deviceless")
    for p in document["passes"]:
        for k in p["kernels"]:
            k["start_ns"] = None
    events = json.loads(render_perfetto(document))["traceEvents"]
    assert any("put end to end" in e["args"].get("name", "") for e in events if e["ph"] == "M")
    kernels = [e for e in events if e.get("cat") == "kernel" and e["pid"] == 1]
    assert [e["ts"] for e in kernels] == [0.0, 489.0]


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("/home/ada/work/x.py", "~/work/x.py"),
        ("File '/root/a.py', line 3", "File '~/a.py', line 3"),
        ("/Users/ada/x /home/bob/y", "~/x ~/y"),
        ("C:\\Users\\ada\\x.py", "~\\x.py"),
        ("/tmp/torchinductor_ada/ab/cab.py", "/tmp/torchinductor/ab/cab.py"),
        ("/opt/home/x", "/opt/home/x"),
        ("a/b", "a/b"),
    ],
)
def test_home_paths_are_shortened(given: str, kept: str) -> None:
    assert scrub_text(given) == kept


def test_environment_keeps_no_secret() -> None:
    facts = {
        "torch": "2.11",
        "hostname": "h",
        "user": "ada",
        "env": {"A": "1"},
        "HF_TOKEN": "x",
        "nested": {"api_key": 1, "a": 2},
    }
    assert public_environment(facts) == {"torch": "2.11", "nested": {"a": 2}}
    for page in (render_markdown(sum_abs()), render_perfetto(sum_abs())):
        assert "gpu-box-7" not in page
        assert "/home/ada" not in page
