"""What changed between two locks, as regions of fusion groups that :mod:`fusionaudit.matching` put together.

Pure. Nothing is compared that moves by itself: kernel names and ids, line numbers, directories, order of sections.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from fusionaudit.compiled_by import Compiling, as_run, compiling
from fusionaudit.groups import Group, Key, Lock, Ref, Section
from fusionaudit.lost_edges import Edge, lost_edges
from fusionaudit.matching import Pairs, line_id, match, op_kinds, tensors

ChangeKind = Literal[
    "added", "removed", "split", "merged", "regrouped", "changed", "signature", "inputs", "repeated", "dynamic",
    "cuda graph", "same",
]  # fmt: skip

_LEAST_COMMON = 0.5
"""Share of the smaller lock's groups that two programs with hardly a line in common must share to be compared: two
unrelated programs share an add of one size now and then."""

_LEAST_LINES = 0.2
"""Share of the smaller lock's lines below which there is hardly one in common: any two training scripts share
``loss.backward()`` and ``optimizer.step()``."""


@dataclass(frozen=True, kw_only=True)
class Change:
    """One matched region before and after. ``same`` regions agree in everything but the text of their lines."""

    pass_name: str
    kind: ChangeKind
    old: tuple[Group, ...]
    new: tuple[Group, ...]
    lost_edges: tuple[Edge, ...] = ()

    @property
    def section(self) -> Section:
        """Where it is: the new section where there is one."""
        return (self.new or self.old)[0].section

    @property
    def launches(self) -> tuple[int, int]:
        """Launches before and after."""
        return sum(g.launches for g in self.old), sum(g.launches for g in self.new)

    @property
    def bytes(self) -> tuple[int | None, int | None]:
        """Bytes before and after; ``None`` where one is unknown."""
        return _sum(self.old), _sum(self.new)

    @property
    def added_ops(self) -> tuple[str, ...]:
        """Ops that the region did not have before."""
        return _minus(self.new, self.old)

    @property
    def removed_ops(self) -> tuple[str, ...]:
        """Ops that the region has no longer."""
        return _minus(self.old, self.new)

    @property
    def refs(self) -> tuple[Ref, ...]:
        """Lines of the new groups, else of the old ones."""
        return tuple(dict.fromkeys(r for g in (self.new or self.old) for r in g.refs))


class Totals(NamedTuple):
    """A pass of a lock: kernel launches, known bytes, groups without known bytes, and the device's copies and fills."""

    launches: int
    bytes: int
    unknown: int
    copies: int


@dataclass(frozen=True, kw_only=True)
class Changes:
    """All regions, in order of execution (of the new lock, then what is gone). ``edited`` are lines that the old lock
    does not know; ``other_key`` names the key fields that differ; ``unrelated``: hardly a line and a group in common.
    """

    changes: tuple[Change, ...]
    same: int
    edited: frozenset[tuple[str, str]]
    other_key: tuple[str, ...]
    totals: dict[str, tuple[Totals, Totals]]
    """Per pass that both have, before and after."""
    only_old: dict[str, Totals]
    """Passes that never ran on the new side: nothing of them is compared."""
    only_new: dict[str, Totals]
    unrelated: bool = False
    compiling: Compiling | None = None
    """The script's own torch.compile came or went: its compiled pass is compared with what it runs eagerly."""


def _sum(groups: Iterable[Group]) -> int | None:
    sizes = [g.bytes for g in groups]
    return None if None in sizes else sum(s for s in sizes if s is not None)


def _minus(left: Sequence[Group], right: Sequence[Group]) -> tuple[str, ...]:
    have = {op for g in right for op in g.ops}
    return tuple(dict.fromkeys(op for g in left for op in g.ops if op not in have))


def _phase(section: Section) -> str:
    return "forward" if section.kind == "inference" else section.kind


def _kind(old: Sequence[Group], new: Sequence[Group]) -> ChangeKind:
    if not old:
        return "added"
    if not new:
        return "removed"
    if len(old) == 1 and len(new) > 1:
        return "split"
    if len(new) == 1 and len(old) > 1:
        return "merged"
    return "changed" if len(old) == len(new) == 1 else "regrouped"


def _other_tensors(a: Group, b: Group) -> bool:
    eager = not (a.section.graph or b.section.graph)  # a side may be what a compiled graph ran eagerly before
    sides = list(zip(tensors(a, eager), tensors(b, eager), strict=True))
    if a.section.graph and b.section.graph and (a.bytes is None or b.bytes is None):
        # An operand could not be read from the log, and not the same one in every version: only tensors that both
        # sides have alone are another shape or dtype, not one that is missing.
        return any(old - new and new - old for old, new in sides)
    return any(old != new for old, new in sides)


def _pair_kind(a: Group, b: Group, bytes_percent: float) -> ChangeKind:
    if a.launches != b.launches:
        return "repeated"
    if _other_tensors(a, b) and not _same_cost(a, b):
        return "signature"
    if op_kinds(a) != op_kinds(b):
        return "changed"
    return "changed" if _other_bytes((a.bytes, b.bytes), bytes_percent) else "same"


def _same_cost(a: Group, b: Group) -> bool:
    """Another op at the same cost: ``x * x`` names one tensor twice, ``x.square()`` once."""
    return op_kinds(a) != op_kinds(b) and a.bytes is not None and a.bytes == b.bytes and tensors(a)[1] == tensors(b)[1]


def _other_bytes(sizes: tuple[int | None, int | None], bytes_percent: float) -> bool:
    before, after = sizes
    return before is not None and after is not None and abs(after - before) > before * bytes_percent / 100


def _compiled_otherwise(pairs: Pairs) -> list[Change]:
    """One change for each compiled graph whose sizes became symbolic (or static again), or that asks for a CUDA graph
    no longer (or now does)."""
    seen: dict[tuple[ChangeKind, Section], tuple[Group, Group]] = {}
    for a, b in pairs:
        old, new = a.section, b.section
        if old.graph and new.graph and bool(old.dynamic) != bool(new.dynamic):
            seen.setdefault(("dynamic", new), (a, b))
        if old.graph and new.graph and old.cuda_graph != new.cuda_graph:
            seen.setdefault(("cuda graph", new), (a, b))
    return [Change(pass_name=b.section.pass_name, kind=kind, old=(a,), new=(b,)) for (kind, _), (a, b) in seen.items()]


def _other_inputs(pairs: Pairs) -> list[Change]:
    """One change for each compiled graph that is called with other shapes where no kernel's own tensors tell: generated
    code sees a buffer's elements, not its shape."""
    partners: dict[Section, dict[Section, tuple[Group, Group]]] = {}
    back: dict[Section, set[Section]] = {}
    for a, b in pairs:
        if a.section.graph and b.section.graph:
            partners.setdefault(b.section, {}).setdefault(a.section, (a, b))
            back.setdefault(a.section, set()).add(b.section)
    told = {b.section for a, b in pairs if _other_tensors(a, b)}
    out = []
    for new, olds in partners.items():
        old = next(iter(olds))
        if len(olds) != 1 or len(back[old]) != 1 or new in told or new.kind == "backward":
            continue  # what a backward graph gets is what the forward graph kept for it
        other = Counter(old.inputs) != Counter(new.inputs) and len(old.inputs) == len(new.inputs)
        if other and bool(old.dynamic) == bool(new.dynamic):
            a, b = olds[old]
            out.append(Change(pass_name=new.pass_name, kind="inputs", old=(a,), new=(b,)))
    return out


_KEY_WORDS = (
    ("target", "target"),
    ("sm_count", "SM count"),
    ("torch", "torch"),
    ("triton", "Triton"),
    ("engine", "engine"),
)


def key_difference(old: Key, new: Key) -> tuple[str, ...]:
    """``torch 2.13.0 -> 2.14.1`` for each field of the key that differs."""
    sides = ((name, getattr(old, field), getattr(new, field)) for field, name in _KEY_WORDS)
    return tuple(f"{name} {_said(a)} -> {_said(b)}" for name, a, b in sides if a != b)


def _said(value: str | int | None) -> str | int:
    return "not known" if value is None else value


def _totals(lock: Lock, name: str) -> Totals:
    groups = [g for g in lock.groups if g.section.pass_name == name and g.what == "kernel"]
    return Totals(
        launches=sum(g.launches for g in groups if not g.copy),
        bytes=sum(g.bytes or 0 for g in groups),
        unknown=sum(g.bytes is None for g in groups),
        copies=sum(g.launches for g in groups if g.copy),
    )


def compare(old: Lock, new: Lock, *, bytes_percent: float = 1.0) -> Changes:
    """Match the groups of two locks, pass by pass and phase by phase, in the passes that both have. Keys may differ:
    ``other_key`` says so.

    ``bytes_percent``: a group whose bytes moved by no more than this is the same (gathers touch other rows with other
    data). Where only one side compiles itself, its compiled pass is compared with the other's eager one.
    """
    compile_change = compiling(old, new)
    old, new = as_run(old, new)
    position = {id(g): i for i, g in enumerate(new.groups)}
    after = len(position)
    both = [name for name in new.passes if name in old.passes]
    olds, news = ([g for g in lock.groups if g.section.pass_name in both] for lock in (old, new))
    domains = dict.fromkeys((g.section.pass_name, _phase(g.section)) for g in (*news, *olds))
    changes: list[Change] = []
    same = 0
    for pass_name, phase in domains:
        left, right = (
            [g for g in groups if g.section.pass_name == pass_name and _phase(g.section) == phase]
            for groups in (olds, news)
        )
        pairs, repeated, regions = match(left, right)
        for a, b in pairs:
            kind = _pair_kind(a, b, bytes_percent)
            same += kind == "same"
            if kind != "same":
                changes.append(Change(pass_name=pass_name, kind=kind, old=(a,), new=(b,)))
        for before, now in repeated:
            change = Change(pass_name=pass_name, kind="repeated", old=tuple(before), new=tuple(now))
            cheap = change.launches[0] == change.launches[1] and not _other_bytes(change.bytes, bytes_percent)
            same += len(now) if cheap else 0
            changes += [] if cheap else [change]
            pairs += zip(before, now, strict=False)
        for before, now in regions:
            kind, lost = _kind(before, now), lost_edges(before, now, new.flow)
            change = Change(pass_name=pass_name, kind=kind, old=tuple(before), new=tuple(now), lost_edges=lost)
            changes.append(change)
        changes += [*_compiled_otherwise(pairs), *_other_inputs(pairs)]
    known = {line_id(r) for g in old.groups for r in g.refs}
    lines = {line_id(r) for g in new.groups for r in g.refs}
    edited = frozenset(line for line in lines if line[1]) - known
    few = same < _LEAST_COMMON * min(len(olds), len(news))
    changes.sort(key=lambda c: min((position[id(g)] for g in c.new), default=after))
    return Changes(
        changes=tuple(changes),
        same=same,
        edited=edited,
        other_key=key_difference(old.key, new.key),
        totals={name: (_totals(old, name), _totals(new, name)) for name in both},
        only_old={name: _totals(old, name) for name in old.passes if name not in both},
        only_new={name: _totals(new, name) for name in new.passes if name not in both},
        compiling=compile_change,
        unrelated=bool(both) and few and len(known & lines) <= _LEAST_LINES * min(len(known), len(lines)),
    )


def graph_counts(old: Lock, new: Lock, pass_name: str) -> tuple[int, int]:
    """Compiled graphs in a pass before and after."""
    before, after = (
        len({g.section for g in lock.groups if g.section.pass_name == pass_name and g.section.graph})
        for lock in as_run(old, new)
    )
    return before, after


def reason_for(change: Change, decisions: Sequence[dict[str, Any]]) -> str | None:
    """Inductor's own words for a region that fell apart: the decision on most shared bytes between its new groups."""
    nodes = Counter(n for g in change.new for n in g.nodes)
    graphs = {i for g in change.new for i in g.graph_ids}
    best: tuple[int, str] | None = None
    for decision in decisions:
        if decision.get("graph") not in graphs:
            continue
        ends = set(decision.get("first_nodes") or ()), set(decision.get("second_nodes") or ())
        if not all(ends) or not all(e & nodes.keys() for e in ends):
            continue
        if any(ends[0] <= set(g.nodes) and ends[1] <= set(g.nodes) for g in change.new):
            continue  # these two did get fused later
        shared = decision.get("shared_bytes") or 0
        if shared and (best is None or shared > best[0]):
            best = shared, str(decision.get("reason") or decision.get("cause"))
    return best[1] if best else None
