"""What ``fusionaudit.expect`` declares, as the name of a region: the only way it travels through a capture.

``expect {"max_kernels":1,"at":["/home/a/block.py",10,14],"entry":3}``. ``entry`` counts the times that blocks were
entered, so that a block in a loop is judged once an entry.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

PREFIX = "expect "


@dataclass(frozen=True, kw_only=True)
class Expectation:
    """A declared fused kernel. ``file``, ``first_line``, ``last_line``: the block (or decorated function)."""

    max_kernels: int | None = None
    max_bytes: int | None = None
    fused: tuple[str, ...] = ()
    kernel: str | None = None
    file: str = ""
    first_line: int = 0
    last_line: int = 0


def region_name(expectation: Expectation, entry: int) -> str:
    """The region's name; one line of text."""
    data = {
        "max_kernels": expectation.max_kernels,
        "max_bytes": expectation.max_bytes,
        "fused": list(expectation.fused),
        "kernel": expectation.kernel,
        "at": [expectation.file, expectation.first_line, expectation.last_line],
        "entry": entry,
    }
    return PREFIX + json.dumps({k: v for k, v in data.items() if v not in (None, [])}, separators=(",", ":"))


def read_region(name: str | None) -> tuple[Expectation, int] | None:
    """Expectation and entry from a region's name; ``None`` where it is another region (or not whole)."""
    if name is None or not name.startswith(PREFIX):
        return None
    try:
        data = json.loads(name[len(PREFIX) :])
        file, first, last = data.get("at", ["", 0, 0])
        expectation = Expectation(
            max_kernels=data.get("max_kernels"),
            max_bytes=data.get("max_bytes"),
            fused=tuple(str(op) for op in data.get("fused", [])),
            kernel=data.get("kernel"),
            file=str(file),
            first_line=int(first),
            last_line=int(last),
        )
        return expectation, int(data["entry"])
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
