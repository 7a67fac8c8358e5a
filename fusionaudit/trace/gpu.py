"""The device of a trace: what the trace says, completed by the datasheet of that GPU."""

from __future__ import annotations

import re
from dataclasses import fields, replace
from typing import Any

from fusionaudit.device import TARGETS, Device
from fusionaudit.findings import Note

_MOST = 2**62


def _target(name: str) -> Device | None:
    words = re.sub(r"[^a-z0-9]+", " ", name.lower()).replace("nvidia", "").replace("geforce", "").split()
    for end in range(len(words), 0, -1):
        found = TARGETS.get("".join(words[:end])) or (TARGETS.get(words[end - 1]) if end == 1 else None)
        if found is not None:
            return found
    return None


def number(value: Any) -> int | None:
    """The value where it can be a size, a count or a rate of a GPU; ``None`` for text, negative and absurd ones."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < _MOST:
        return None
    return int(value)


def describe(name: object, source: str, **known: Any) -> tuple[Device, tuple[Note, ...]]:
    """A Device of that name, and a note on values that no GPU has.

    ``known`` fields come from the trace and win over the datasheet, where they are numbers that a GPU can have;
    ``compute_capability`` is a pair of numbers.
    """
    given: dict[str, Any] = {}
    odd = []
    for key, value in known.items():
        pair = key == "compute_capability"
        parts = [value] if not pair else list(value or ())
        if value in (None, 0) or None in parts:
            continue
        if any(number(part) is None and not (pair and part == 0) for part in parts):
            odd.append(f"{key} {str(value)[:20]!r}")
        else:
            given[key] = tuple(int(part) for part in parts) if pair else number(value)
    text = str(name)[:200]
    base = _target(text)
    notes: tuple[Note, ...] = ()
    if odd:
        what = "taken from the datasheet" if base is not None else "not known"
        said = f"{source}: {', '.join(odd)} cannot be; {what}"
        notes = (Note(kind="odd-device", text=said, remedy="export or record it again"),)
    if base is None:
        return Device(name=text, source=source, **given), notes
    told = source + (f"; rest: {base.source}" if base.source else "")
    assert set(given) <= {f.name for f in fields(Device)}
    return replace(base, name=text, source=told, **given), notes
