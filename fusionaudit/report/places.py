"""Where a finding is, as code hosts want it: a path from the root of the repository."""

from __future__ import annotations

import posixpath
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import quote

from fusionaudit.report.document import Document


def root_of(document: Document) -> str | None:
    """The folder that paths are relative to: where the capture was started, if the document tells."""
    environment = document.get("environment") or {}
    root = environment.get("repository") or environment.get("cwd")
    return posixpath.normpath(str(root)) if root else None


def repository_path(file: str, document: Document) -> str:
    """``src/model.py`` for a file below the root; any other file keeps its absolute path."""
    path, root = posixpath.normpath(file.replace("\\", "/")), root_of(document)
    if root and PurePosixPath(path).is_relative_to(root):
        return str(PurePosixPath(path).relative_to(root))
    return path


def uri(path: str) -> str:
    """A path as a URI reference: relative stays relative, absolute gets ``file://``. Names that are no text (bytes of
    another encoding) keep their bytes."""
    try:
        name = path.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        name = path.encode("utf-8", "backslashreplace")
    text = quote(name, safe="/@!$&'()*+,;=~-._")
    return f"file://{text}" if path.startswith("/") else text


def summary(finding: dict[str, Any]) -> str:
    """Message, reason and remedy in one paragraph."""
    parts = [finding["message"], finding.get("reason") or "", finding.get("remedy") or ""]
    words = [_sentence(p.strip().rstrip(".")) for p in parts if p and p.strip()]
    return ". ".join(dict.fromkeys(words)) + "."


def _sentence(text: str) -> str:
    """With a capital letter, unless it starts with a name of code (``aten.add``, ``no_grad``)."""
    return text[0].upper() + text[1:] if text.split(" ", 1)[0].strip(",:;").isalpha() else text
