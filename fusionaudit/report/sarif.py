"""SARIF 2.1.0: findings as results on the user's lines, notes as tool notifications. GitHub code scanning reads it."""

from __future__ import annotations

import inspect
import json
from typing import Any

from fusionaudit.report.document import Document
from fusionaudit.report.places import repository_path, root_of, summary, uri
from fusionaudit.report.wording import plain
from fusionaudit.rules import RULES

SCHEMA = "https://raw.githubusercontent.com/oasis-tcs/sarif-spec/master/Schemata/sarif-schema-2.1.0.json"
_LEVELS = {"info": "note", "warning": "warning", "error": "error"}
_HOME = "https://github.com/fusionaudit/fusionaudit"


def _rules(codes: list[str]) -> list[dict[str, Any]]:
    known = {rule.CODE: rule for rule in RULES}
    out = []
    for code in codes:
        rule = known.get(code)
        title = rule.TITLE if rule else code
        entry: dict[str, Any] = {"id": code, "name": code, "shortDescription": {"text": title}}
        text = inspect.cleandoc((rule.__doc__ if rule else "") or "")
        if text:
            entry["fullDescription"] = {"text": text.split("\n\n")[0]}
            entry["help"] = {"text": text}
        out.append(entry)
    return out


def _encodable(text: str) -> str:
    """The text without halves of surrogate pairs, which no UTF-8 file can hold; tabs and the like stay."""
    return text.encode("utf-8", "backslashreplace").decode()


def _location(place: dict[str, Any], document: Document) -> dict[str, Any]:
    path = repository_path(place["file"], document)
    artifact: dict[str, Any] = {"uri": uri(path)}
    if not path.startswith("/"):
        artifact["uriBaseId"] = "SRCROOT"
    region: dict[str, Any] = {"startLine": max(int(place["line"]), 1)}
    line = (document.get("sources") or {}).get(place["file"], {}).get(str(place["line"]))
    if line is not None:
        region["snippet"] = {"text": _encodable(line)}
    out: dict[str, Any] = {"physicalLocation": {"artifactLocation": artifact, "region": region}}
    if place.get("function"):
        out["logicalLocations"] = [{"name": _encodable(place["function"]), "kind": "function"}]
    return out


def _result(finding: dict[str, Any], codes: list[str], document: Document) -> dict[str, Any]:
    verification = finding.get("verification") or {}
    out: dict[str, Any] = {
        "ruleId": finding["rule"],
        "ruleIndex": codes.index(finding["rule"]),
        "level": _LEVELS[finding["severity"]],
        "message": {"text": plain(summary(finding))},
        "partialFingerprints": {"fusionaudit/v1": finding["fingerprint"]},
        "properties": {
            "pass": finding["pass"],
            "confidence": finding["confidence"],
            "ops": [plain(op) for op in finding["ops"]],
            "avoidableBytesPerStep": finding["avoidable_bytes"],
            "savingNsPerStep": finding["saving_ns"],
            "savingBasis": finding["basis"],
            "verdict": verification.get("verdict"),
        },
    }
    if finding["location"]:
        out["locations"] = [_location(finding["location"], document)]
    if verification.get("verdict") == "refuted":
        out["suppressions"] = [{"kind": "external", "justification": plain(verification.get("reason") or "refuted")}]
    return out


def _notification(note: dict[str, Any]) -> dict[str, Any]:
    text = plain(note["text"] + (f" ({note['remedy']})" if note.get("remedy") else ""))
    return {
        "descriptor": {"id": note["kind"]},
        "level": "error" if note["blocks"] else "note",
        "message": {"text": text},
    }


def render_sarif(document: Document) -> str:
    """The audit as SARIF text. A blocking note makes ``executionSuccessful`` false."""
    codes = sorted({f["rule"] for f in document["findings"]})
    notes = document["notes"]
    run: dict[str, Any] = {
        "tool": {
            "driver": {
                "name": "fusionaudit",
                "informationUri": _HOME,
                "rules": _rules(codes),
                "notifications": [{"id": kind} for kind in sorted({n["kind"] for n in notes})],
            }
        },
        "invocations": [
            {
                "executionSuccessful": not any(n["blocks"] for n in notes),
                "toolExecutionNotifications": [_notification(n) for n in notes],
            }
        ],
        "results": [_result(f, codes, document) for f in document["findings"]],
        "columnKind": "unicodeCodePoints",
    }
    version = document["tool"].get("version")
    if version:
        run["tool"]["driver"]["version"] = version
    root = root_of(document)
    if root:
        run["originalUriBaseIds"] = {"SRCROOT": {"description": {"text": "the folder that the audit was started in"}}}
    return json.dumps({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}, indent=1, ensure_ascii=False) + "\n"
