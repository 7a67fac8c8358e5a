"""What the gate lets pass: thresholds and accepted changes, from ``[tool.fusionaudit.check]``."""

from __future__ import annotations

import contextlib
import datetime
import math
from dataclasses import dataclass
from typing import Any

from fusionaudit.errors import AuditError


@dataclass(frozen=True, kw_only=True)
class Allowed:
    """An accepted change: what it is about (part of a line's code, a function or an op), why, until when."""

    match: str
    reason: str
    expires: datetime.date | None = None


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Thresholds of the gate, from ``[tool.fusionaudit.check]``.

    ``launches`` and ``bytes``: what a change may cost more per step. ``bytes_percent``: the same in percent of what the
    changed region moved before; 1 by default, as gathers touch other rows with other data. ``require_locked``: an
    improvement that is not in the lock fails too.
    """

    launches: int = 0
    bytes: int = 0
    bytes_percent: float = 1.0
    require_locked: bool = False
    allow: tuple[Allowed, ...] = ()


_KINDS: dict[str, tuple[tuple[type, ...], str]] = {
    "launches": ((int,), "a count"),
    "bytes": ((int,), "a count"),
    "bytes-percent": ((int, float), "a number of percent"),
    "require-locked": ((bool,), "true or false"),
}


def limits_from(table: dict[str, Any]) -> Limits:
    """``[tool.fusionaudit.check]`` as Limits; AuditError names a key that is not known or has a wrong value.

    An ``allow`` entry must have ``match`` and ``reason``; ``expires`` is a date (``2026-12-31``).
    """
    where = "[tool.fusionaudit.check]"
    unknown = sorted(set(table) - {*_KINDS, "allow"})
    if unknown:
        raise AuditError(f"{where}: unknown key {unknown[0]!r}", remedy=f"known: {', '.join((*_KINDS, 'allow'))}")
    for key, (kinds, words) in _KINDS.items():
        value = table.get(key, False if bool in kinds else 0)
        if type(value) not in kinds or not 0 <= value < math.inf:
            raise AuditError(f"{where}: {key} is {value!r}, not {words}")
    entries = table.get("allow", [])
    if not isinstance(entries, list):
        raise AuditError(f"{where}: allow is not a list", remedy='allow = [{match = "...", reason = "..."}]')
    return Limits(
        launches=table.get("launches", 0),
        bytes=table.get("bytes", 0),
        bytes_percent=table.get("bytes-percent", 1.0),
        require_locked=table.get("require-locked", False),
        allow=tuple(_allow_entry(entry, f"{where} allow") for entry in entries),
    )


def _allow_entry(entry: Any, where: str) -> Allowed:
    if not isinstance(entry, dict) or not entry.get("match") or not str(entry.get("reason", "")).strip():
        raise AuditError(f"{where}: an entry needs match and reason", remedy="add a reason")
    unknown = sorted(set(entry) - {"match", "reason", "expires"})
    if unknown:
        raise AuditError(f"{where}: unknown key {unknown[0]!r}", remedy="known: match, reason, expires")
    expires = entry.get("expires")
    if isinstance(expires, str):
        with contextlib.suppress(ValueError):
            expires = datetime.date.fromisoformat(expires)
    if isinstance(expires, datetime.datetime):
        expires = expires.date()
    if expires is not None and not isinstance(expires, datetime.date):
        raise AuditError(f"{where}: expires {expires!r} is not a date", remedy="expires = 2027-01-31")
    return Allowed(match=str(entry["match"]), reason=str(entry["reason"]), expires=expires)


def expired(entry: Allowed, today: datetime.date) -> bool:
    return entry.expires is not None and today > entry.expires
