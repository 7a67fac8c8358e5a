"""What a report that is sent around must not carry: home folders, user and host names, environment variables."""

from __future__ import annotations

import re
from typing import Any

_HOME = re.compile(r"(?<![\w.~])(?:/home/[^/\s\"'<>|:]+|/Users/[^/\s\"'<>|:]+|/root)(?=/|\b)")
_WINDOWS_HOME = re.compile(r"[A-Za-z]:\\Users\\[^\\\s\"'<>|:]+")
_INDUCTOR_CACHE = re.compile(r"torchinductor_[^/\s\"']+")
_LARGE = {"kernels", "ops", "edges"}
_SECRET_KEY = re.compile(
    r"host|user|login|home|^env$|environ|secret|token|passw|credential|api.?key|address|^cwd$|uuid|serial|^pid$", re.I
)


def scrub_text(text: str) -> str:
    """The text with home folders as ``~`` and the user's name out of Inductor's cache path."""
    if "/" not in text and "\\" not in text:
        return text
    return _INDUCTOR_CACHE.sub("torchinductor", _WINDOWS_HOME.sub("~", _HOME.sub("~", text)))


def scrub(value: Any) -> Any:
    """The same for every string in a JSON value, keys too."""
    if isinstance(value, str):
        return scrub_text(value)
    if isinstance(value, dict):
        return {scrub_text(k) if isinstance(k, str) else k: scrub(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [scrub(v) for v in value]
    return value


def scrub_document(document: dict[str, Any]) -> dict[str, Any]:
    """The document scrubbed but for kernels, ops and edges, of which there may be a million texts: who shows those
    scrubs what it shows."""
    return {
        key: [{k: v if k in _LARGE else scrub(v) for k, v in p.items()} for p in value]
        if key == "passes"
        else scrub(value)
        for key, value in document.items()
    }


def public_environment(environment: dict[str, Any]) -> dict[str, Any]:
    """The environment without what names a person, a machine or a secret, at any depth."""
    return {
        key: public_environment(value) if isinstance(value, dict) else scrub(value)
        for key, value in environment.items()
        if not _SECRET_KEY.search(key)
    }
