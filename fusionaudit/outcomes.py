"""What changes come to: the cost of an edit decides, then whether the lock still says what the program does. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Literal

from fusionaudit.diff import Change
from fusionaudit.groups import Group
from fusionaudit.limits import Limits
from fusionaudit.matching import op_kinds

Outcome = Literal["regression", "changed", "improvement", "same"]


def outcome(changes: Sequence[Change], limits: Limits) -> Outcome:
    """What a cluster of changes comes to, pass by pass: a cost anywhere is a regression, a lost CUDA graph too.

    Other dtypes, shapes or dynamic sizes are ``changed`` even where they cost nothing: the lock is then about another
    program. So are more ops that came in for free, bytes that are no longer known, and a kernel that fell apart while
    others came together, unless the whole got cheaper. Ops in the place of as many others are the ``same``.
    """
    cheaper = False
    names = dict.fromkeys(c.pass_name for c in changes)
    for name in names:
        mine = [c for c in changes if c.pass_name == name]
        events = [c for c in mine if (c.new or c.old)[0].what != "kernel"]
        if any(_times(c.new) > _times(c.old) for c in events):
            return "regression"
        replays = [c for c in mine if c.kind == "cuda graph"]
        if any(c.old[0].section.cuda_graph for c in replays):
            return "regression"
        mine = [c for c in mine if c not in (*events, *replays)]
        before, after = sum(c.launches[0] for c in mine), sum(c.launches[1] for c in mine)
        if after > before + limits.launches:
            return "regression"
        sizes = [(c.bytes[0] or 0, c.bytes[1] or 0) for c in mine if None not in c.bytes]
        size_before, size_after = sum(s[0] for s in sizes), sum(s[1] for s in sizes)
        if size_after > size_before * (1 + limits.bytes_percent / 100) + limits.bytes:
            return "regression"
        cheaper |= after < before or size_after < size_before * (1 - limits.bytes_percent / 100)
        cheaper |= bool(events or replays)
    if any(c.kind in ("signature", "inputs", "dynamic") for c in changes):
        return "changed"
    if cheaper:
        return "improvement"
    unknown = any(c.bytes[0] is not None and c.bytes[1] is None for c in changes)
    torn = any(c.lost_edges and c.launches[1] > c.launches[0] for c in changes)
    return "changed" if unknown or torn or any(_more_ops(changes, n) for n in names) else "same"


def as_run(changes: Sequence[Change]) -> list[Change]:
    """The changes of a script that compiles itself without what eager code's backward would do: that follows from the
    forward lines, and it is the compiled backward that runs. All of them where eager forward lines did not change."""
    backward = [c for c in changes if c.pass_name == "eager" and c.section.kind == "backward"]
    forward = any(c.pass_name == "eager" and c not in backward for c in changes)
    return [c for c in changes if not (forward and c in backward)]


def _times(events: Sequence[Group]) -> int:
    return sum(g.launches or 1 for g in events)


def _more_ops(changes: Sequence[Change], pass_name: str) -> bool:
    """More kinds of op came into the kernels of a pass than went. A kernel names a kind of op once: one that the eager
    code lost has gone from the compiled kernels too, even where another of its kind is left in them."""
    mine = [c for c in changes if c.pass_name == pass_name]
    old = {op for c in mine for g in c.old for op in op_kinds(g)}
    new = {op for c in mine for g in c.new for op in op_kinds(g)}
    eager = [c for c in changes if c.pass_name == "eager"]
    fewer = _op_counts(g for c in eager for g in c.old) - _op_counts(g for c in eager for g in c.new)
    return len(new - old) > len((old - new) | (fewer.keys() & old))


def _op_counts(groups: Iterable[Group]) -> Counter[str]:
    """How often a step runs each kind of op."""
    counts: Counter[str] = Counter()
    for group in groups:
        counts.update(dict.fromkeys(op_kinds(group), group.launches))
    return counts
