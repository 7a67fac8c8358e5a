"""Who compiles: the script itself, or the audit for it. Decides which kernels a script really runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, NamedTuple

from fusionaudit.groups import Group, Lock, Ref, Section

SCRIPT, AUDIT = "script", "fusionaudit"
"""What ``Lock.compiled_by`` may be; empty where a lock has no compiled pass, or is older than this field."""


class Compiling(NamedTuple):
    """The script's own compilation came (``added``) or went (``removed``); ``names`` are the compiled functions."""

    what: Literal["added", "removed"]
    names: tuple[str, ...]


def compiling(old: Lock, new: Lock) -> Compiling | None:
    """Whether the script's own torch.compile came or went; ``None`` where neither, or where a side does not say."""
    sides = old.compiled_by, new.compiled_by
    if sides == (SCRIPT, AUDIT):
        return Compiling("removed", _compiled_names(old))
    return Compiling("added", _compiled_names(new)) if sides == (AUDIT, SCRIPT) else None


def not_told(lock: Lock, other: Lock) -> bool:
    """The lock has a compiled pass and does not say who compiled, while the other side does."""
    return not lock.compiled_by and bool(other.compiled_by) and "compiled" in lock.passes


def _compiled_names(lock: Lock) -> tuple[str, ...]:
    sections = (g.section for g in lock.groups if g.section.graph)
    return tuple(dict.fromkeys(s.place.partition(" ")[2] for s in sections if s.place))


def as_run(old: Lock, new: Lock) -> tuple[Lock, Lock]:
    """Both sides as the script runs: where only one compiles itself, the other's compiled pass is its eager one.

    Where the audit compiles on both sides, what it compiles is compared: that is what torch.compile would give.
    """
    if compiling(old, new) is None:
        return old, new
    return _uncompiled(old), _uncompiled(new)


def _uncompiled(lock: Lock) -> Lock:
    if lock.compiled_by != AUDIT or "eager" not in lock.passes:
        return lock
    kept = [g for g in lock.groups if g.section.pass_name != "compiled"]
    eager = [g for g in kept if g.section.pass_name == "eager"]
    sections: dict[Section, Section] = {g.section: replace(g.section, pass_name="compiled") for g in eager}
    groups: list[Group] = [*kept, *(replace(g, section=sections[g.section]) for g in eager)]
    return replace(lock, groups=tuple(groups), compiled_by=SCRIPT)


def compiled_lines(refs: Sequence[Ref], names: Sequence[str]) -> list[Ref]:
    """The first line of each compiled function, else the first line of all."""
    found = {r.function: r for r in reversed(refs) if r.function in names}
    return [found[n] for n in names if n in found] or list(refs[:1])
