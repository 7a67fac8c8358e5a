"""What ``fusionaudit.expect`` declares, as the name of a region: the only way it travels through a capture.

``expect {"max_kernels":1,"at":["/home/a/block.py",10,14],"entry":3}``. ``entry`` counts the times that blocks were
entered, so that a block in a loop is judged once an entry.
"""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass

from fusionaudit.capture.marks import NESTED

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
    text = json.dumps({k: v for k, v in data.items() if v not in (None, [])}, separators=(",", ":"))
    return PREFIX + text.replace(">", "\\u003e")  # only between regions


def expectations(region: str | None) -> list[tuple[Expectation, int]]:
    """Expectation and entry of each declaration around a launch, the outermost first."""
    found = [_read(name) for name in (region or "").split(NESTED)]
    return [x for x in found if x is not None]


def named(region: str | None) -> str | None:
    """The regions that the program names around a launch (``block > attention``), without the declarations."""
    names = [name for name in (region or "").split(NESTED) if name and _read(name) is None]
    return NESTED.join(names) or None


def around(name: str | None) -> list[str]:
    """All regions that a launch in the named region is in: ``["block", "block > attention"]`` for the second."""
    names = name.split(NESTED) if name else []
    return [NESTED.join(names[: i + 1]) for i in range(len(names))]


@functools.lru_cache(maxsize=4096)
def _read(name: str) -> tuple[Expectation, int] | None:
    """Expectation and entry from the name of one region; ``None`` where it is another region (or not whole)."""
    if not name.startswith(PREFIX):
        return None
    try:
        data = json.loads(name[len(PREFIX) :])
        file, first, last = data.get("at", ["", 0, 0])
        expectation = Expectation(
            max_kernels=None if (most := data.get("max_kernels")) is None else int(most),
            max_bytes=None if (most := data.get("max_bytes")) is None else int(most),
            fused=tuple(str(op) for op in data.get("fused", [])),
            kernel=None if (kernel := data.get("kernel")) is None else str(kernel),
            file=str(file),
            first_line=int(first),
            last_line=int(last),
        )
        return expectation, int(data["entry"])
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
