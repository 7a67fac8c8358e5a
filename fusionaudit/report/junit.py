"""JUnit XML: one test case a finding, for build servers that show nothing else. Warnings and errors are failures."""

from __future__ import annotations

import re
from typing import Any
from xml.etree import ElementTree

from fusionaudit.report import wording
from fusionaudit.report.document import Document
from fusionaudit.report.places import repository_path, summary

_NO_XML = re.compile("[\ufffe\uffff]")


def plain(text: object) -> str:
    """The text on one line, without the two characters that are hidden nowhere else and that XML may not hold."""
    return _NO_XML.sub("?", wording.plain(text))


def _case(suite: ElementTree.Element, finding: dict[str, Any], document: Document) -> None:
    place = finding["location"]
    where = f" {repository_path(place['file'], document)}:{place['line']}" if place else ""
    case = ElementTree.SubElement(
        suite, "testcase", name=plain(f"{finding['rule']}{where} [{finding['fingerprint'][:6]}]"),
        classname=f"fusionaudit.{finding['pass']}", time="0",
    )  # fmt: skip
    refuted = (finding.get("verification") or {}).get("verdict") == "refuted"
    text = plain(summary(finding))
    if finding["severity"] == "info" or refuted:
        ElementTree.SubElement(case, "system-out").text = text
        return
    failure = ElementTree.SubElement(case, "failure", type=finding["rule"], message=plain(finding["message"]))
    changes = (finding.get("evidence") or {}).get("changes") or []
    failure.text = "\n".join([text, *(plain(c) for c in changes[1:])])


def render_junit(document: Document) -> str:
    """The audit as JUnit text. A blocking note is an error; an audit without a finding is one passed case."""
    top = ElementTree.Element("testsuites")
    suite = ElementTree.SubElement(top, "testsuite", name="fusionaudit")
    for finding in document["findings"]:
        _case(suite, finding, document)
    for note in document["notes"]:
        if note["blocks"]:
            case = ElementTree.SubElement(suite, "testcase", name=note["kind"], classname="fusionaudit", time="0")
            ElementTree.SubElement(case, "error", type=note["kind"], message=plain(note["text"])).text = plain(
                note.get("remedy") or ""
            )
    if len(suite) == 0:
        ElementTree.SubElement(suite, "testcase", name="no findings", classname="fusionaudit", time="0")
    for element in (suite, top):
        element.set("tests", str(len(suite)))
        element.set("failures", str(len(suite.findall("testcase/failure"))))
        element.set("errors", str(len(suite.findall("testcase/error"))))
    ElementTree.indent(top)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(top, encoding="unicode") + "\n"
