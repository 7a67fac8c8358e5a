"""GitHub workflow commands: each finding an annotation on its line in the pull request, but for information."""

from __future__ import annotations

from typing import Any

from fusionaudit.report.document import Document
from fusionaudit.report.places import repository_path, summary
from fusionaudit.report.wording import plain

_COMMANDS = {"warning": "warning", "error": "error"}


def _data(text: str) -> str:
    return plain(text).replace("%", "%25")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def _annotation(command: str, title: str, text: str, place: dict[str, Any] | None, document: Document) -> str:
    where = f"file={_property(repository_path(place['file'], document))},line={place['line']}," if place else ""
    return f"::{command} {where}title={_property(title)}::{_data(text)}"


def render_github(document: Document) -> str:
    """One line an annotation, findings first, then the notes that block a verdict. Refuted findings are left out, and
    information ("nothing to do"): GitHub shows ten annotations of a step."""
    lines = [
        _annotation(_COMMANDS[f["severity"]], f"fusionaudit {f['rule']}", summary(f), f["location"], document)
        for f in document["findings"]
        if f["severity"] in _COMMANDS and (f.get("verification") or {}).get("verdict") != "refuted"
    ]
    lines += [
        _annotation(
            "error",
            "fusionaudit: cannot judge",
            summary({"message": n["text"], "remedy": n.get("remedy")}),
            None,
            document,
        )
        for n in document["notes"]
        if n["blocks"]
    ]
    return "".join(line + "\n" for line in lines)
