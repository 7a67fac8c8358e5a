"""The device of a trace: what the trace says, completed by the datasheet of that GPU."""

from __future__ import annotations

import re
from dataclasses import fields, replace
from typing import Any

from fusionaudit.device import TARGETS, Device


def _target(name: str) -> Device | None:
    words = re.sub(r"[^a-z0-9]+", " ", name.lower()).replace("nvidia", "").replace("geforce", "").split()
    for end in range(len(words), 0, -1):
        found = TARGETS.get("".join(words[:end])) or (TARGETS.get(words[end - 1]) if end == 1 else None)
        if found is not None:
            return found
    return None


def describe(name: str, source: str, **known: Any) -> Device:
    """A Device of that name. ``known`` fields (not ``None``) come from the trace and win over the datasheet."""
    given = {key: value for key, value in known.items() if value is not None}
    base = _target(name)
    if base is None:
        return Device(name=name, source=source, **given)
    told = source + (f"; rest: {base.source}" if base.source else "")
    assert set(given) <= {f.name for f in fields(Device)}
    return replace(base, name=name, source=told, **given)
