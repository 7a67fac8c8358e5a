"""What changed between two locks: fusion groups matched exactly, then by ops and lines, then by similarity.

Pure. Nothing is compared that moves by itself: kernel names and ids, line numbers, directories, order of sections.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from math import prod
from typing import Any, Literal

from fusionaudit.groups import DTYPE_SHORT, Group, Key, Lock, Ref, Section
from fusionaudit.tensors import DTYPE_BYTES

ChangeKind = Literal[
    "added", "removed", "split", "merged", "regrouped", "changed", "signature", "repeated", "dynamic", "same"
]

_LEAST_OVERLAP = 0.5
"""Share of the smaller group's ops that two groups must have in common to be taken for parts of one region.
Half: below that, chance agreement on one common op (add, mul) would tie unrelated kernels together."""

_TENSOR = re.compile(r"(\w+)\[([\d,]*)\]")
_WIDTH = {DTYPE_SHORT.get(name, name): size for name, size in DTYPE_BYTES.items()}


@dataclass(frozen=True, kw_only=True)
class Edge:
    """A tensor that used to stay inside one kernel and now goes through memory between two."""

    producer: str
    consumer: str
    tensor: str
    bytes: int | None


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


@dataclass(frozen=True, kw_only=True)
class Changes:
    """All regions, in order of execution (of the new lock, then what is gone). ``edited`` are lines that the old lock
    does not know; ``other_key`` names the key fields that differ."""

    changes: tuple[Change, ...]
    same: int
    edited: frozenset[tuple[str, str]]
    other_key: tuple[str, ...]
    totals: dict[str, tuple[tuple[int, int, int], tuple[int, int, int]]]
    """Per pass: (launches, known bytes, groups without known bytes) before and after."""


def _sum(groups: Iterable[Group]) -> int | None:
    sizes = [g.bytes for g in groups]
    return None if None in sizes else sum(s for s in sizes if s is not None)


def _minus(left: Sequence[Group], right: Sequence[Group]) -> tuple[str, ...]:
    have = {op for g in right for op in g.ops}
    return tuple(dict.fromkeys(op for g in left for op in g.ops if op not in have))


def tensor_bytes(text: str) -> int | None:
    """Bytes of ``bf16[8,1024]``; ``None`` where it is not such a text."""
    match = _TENSOR.match(text)
    if match is None or match[1] not in _WIDTH:
        return None
    return prod(int(n) for n in match[2].split(",") if n) * _WIDTH[match[1]]


def line_id(ref: Ref) -> tuple[str, str]:
    """A line by function and code; the file's name may change."""
    return ref.function, ref.code


def _lines(group: Group) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(line_id(r) for r in group.refs))


def _phase(section: Section) -> str:
    return "forward" if section.kind == "inference" else section.kind


def _where(section: Section) -> tuple[object, ...]:
    return section.kind, section.graph, section.place.partition(" ")[2], section.inputs, section.dynamic, section.number


Pairs = list[tuple[Group, Group]]


def _pair_by(old: list[Group], new: list[Group], key: Callable[[Group], Hashable], out: Pairs) -> None:
    """Moves groups with the same key from both lists into ``out``, first with first."""
    waiting: dict[Hashable, list[Group]] = {}
    for group in old:
        waiting.setdefault(key(group), []).append(group)
    for group in list(new):
        partners = waiting.get(key(group))
        if partners:
            partner = partners.pop(0)
            out.append((partner, group))
            _drop(old, partner)
            _drop(new, group)


def _drop(groups: list[Group], group: Group) -> None:
    groups.pop(next(i for i, g in enumerate(groups) if g is group))


def _pair_in_order(old: list[Group], new: list[Group], out: Pairs) -> None:
    """Pairs what is left by equal ops in the same order of execution."""
    left, right = [(g.what, g.ops) for g in old], [(g.what, g.ops) for g in new]
    taken: Pairs = []
    for block in SequenceMatcher(None, left, right, autojunk=False).get_matching_blocks():
        taken += zip(old[block.a : block.a + block.size], new[block.b : block.b + block.size], strict=True)
    for first, second in taken:
        out.append((first, second))
        _drop(old, first)
        _drop(new, second)


def _score(a: Group, b: Group) -> float:
    """How much two groups look like parts of one region; 0: not at all."""
    if a.what != "kernel" or b.what != "kernel":
        return 0.0
    left, right = set(a.ops), set(b.ops)
    common = len(left & right)
    if not common or common < _LEAST_OVERLAP * min(len(left), len(right)):
        return 0.0
    lines_a, lines_b = set(_lines(a)), set(_lines(b))
    lines = len(lines_a & lines_b) / max(len(lines_a | lines_b), 1)
    tensors_a, tensors_b = {*a.reads, *a.writes}, {*b.reads, *b.writes}
    tensors = len(tensors_a & tensors_b) / max(len(tensors_a | tensors_b), 1)
    return common / len(left | right) + lines + tensors / 2 + (_where(a.section) == _where(b.section)) / 4


def _regions(old: list[Group], new: list[Group]) -> list[tuple[list[Group], list[Group]]]:
    """Connected parts of "is the best match of" between what is left on both sides."""
    owner = {("old", i): ("old", i) for i in range(len(old))} | {("new", i): ("new", i) for i in range(len(new))}

    def find(x: tuple[str, int]) -> tuple[str, int]:
        while owner[x] != x:
            x = owner[x]
        return x

    def join_best(mine: str, groups: list[Group], theirs: str, others: list[Group]) -> None:
        for i, group in enumerate(groups):
            scores = [(_score(group, other), -j) for j, other in enumerate(others)]
            best = max(scores, default=(0.0, 0))
            if best[0] > 0:
                owner[find((mine, i))] = find((theirs, -best[1]))

    join_best("new", new, "old", old)
    join_best("old", old, "new", new)
    parts: dict[tuple[str, int], tuple[list[Group], list[Group]]] = {}
    for i, group in enumerate(new):
        parts.setdefault(find(("new", i)), ([], []))[1].append(group)
    for i, group in enumerate(old):
        parts.setdefault(find(("old", i)), ([], []))[0].append(group)
    return list(parts.values())


def _lost_edges(old: Sequence[Group], new: Sequence[Group]) -> tuple[Edge, ...]:
    """Tensors between the new groups whose two ends used to be in one old group."""
    out = []
    for i, first in enumerate(new):
        for second in new[i + 1 :]:
            tensor = next((t for t in first.writes if t in second.reads), None)
            if tensor is None:
                continue
            for group in old:
                ends = [op for op in first.ops if op in group.ops], [op for op in second.ops if op in group.ops]
                if ends[0] and ends[1]:
                    size = tensor_bytes(tensor)
                    out.append(Edge(producer=ends[0][-1], consumer=ends[1][0], tensor=tensor, bytes=size))
                    break
    return tuple(out)


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


def _sizes(texts: Sequence[str]) -> list[str]:
    """Dtype and element count of each tensor, in any order: how generated code views a buffer is its own affair."""
    out = []
    for text in texts:
        match = _TENSOR.match(text)
        out.append(f"{match[1]}[{prod(int(n) for n in match[2].split(',') if n)}]" if match else text)
    return sorted(out)


def _other_tensors(a: Group, b: Group) -> bool:
    if (a.reads, a.writes) == (b.reads, b.writes):
        return False
    if a.section.graph and b.section.graph:
        if a.bytes is None or b.bytes is None:
            return False  # an operand could not be read from the log: what is left of the list says nothing
        return (_sizes(a.reads), _sizes(a.writes)) != (_sizes(b.reads), _sizes(b.writes))
    return True


def _pair_kind(a: Group, b: Group, bytes_percent: float) -> ChangeKind:
    if a.launches != b.launches:
        return "repeated"
    if _other_tensors(a, b):
        return "signature"
    if a.ops != b.ops:
        return "changed"
    if a.bytes is None or b.bytes is None:
        return "same"
    moved = abs(b.bytes - a.bytes)
    return "changed" if moved > a.bytes * bytes_percent / 100 else "same"


def _match(old: list[Group], new: list[Group]) -> tuple[Pairs, list[tuple[list[Group], list[Group]]]]:
    pairs: Pairs = []
    keys: tuple[Callable[[Group], Hashable], ...] = (
        lambda g: (_where(g.section), g.what, g.ops, g.reads, g.writes, _lines(g)),
        lambda g: (g.what, g.ops, g.reads, g.writes, _lines(g)),
        lambda g: (_where(g.section), g.what, g.ops, g.reads, g.writes),
        lambda g: (g.what, g.ops, g.reads, g.writes),
        lambda g: (_where(g.section), g.what, g.ops, _lines(g)),
        lambda g: (g.what, g.ops, _lines(g)),
    )
    for key in keys:
        _pair_by(old, new, key, pairs)
    _pair_in_order(old, new, pairs)
    return pairs, _regions(old, new)


def _dynamic(pairs: Pairs) -> list[Change]:
    """One change for each compiled graph whose sizes became symbolic (or static again)."""
    seen: dict[Section, tuple[Group, Group]] = {}
    for a, b in pairs:
        if a.section.graph and b.section.graph and bool(a.section.dynamic) != bool(b.section.dynamic):
            seen.setdefault(b.section, (a, b))
    return [Change(pass_name=b.section.pass_name, kind="dynamic", old=(a,), new=(b,)) for a, b in seen.values()]


_KEY_WORDS = (
    ("target", "target"),
    ("sm_count", "SM count"),
    ("torch", "torch"),
    ("triton", "Triton"),
    ("engine", "engine"),
)


def key_difference(old: Key, new: Key) -> tuple[str, ...]:
    """``torch 2.13.0 -> 2.14.1`` for each field of the key that differs."""
    return tuple(
        f"{name} {getattr(old, field)} -> {getattr(new, field)}"
        for field, name in _KEY_WORDS
        if getattr(old, field) != getattr(new, field)
    )


def _totals(lock: Lock, name: str) -> tuple[int, int, int]:
    groups = [g for g in lock.groups if g.section.pass_name == name]
    return sum(g.launches for g in groups), sum(g.bytes or 0 for g in groups), sum(g.bytes is None for g in groups)


def compare(old: Lock, new: Lock, *, bytes_percent: float = 1.0) -> Changes:
    """Match the groups of two locks, pass by pass and phase by phase. Keys may differ: ``other_key`` says so.

    ``bytes_percent``: a group whose bytes moved by no more than this is the same (gathers touch other rows with other
    data).
    """
    position = {id(g): i for i, g in enumerate(new.groups)}
    after = len(position)
    domains = dict.fromkeys((g.section.pass_name, _phase(g.section)) for g in (*new.groups, *old.groups))
    changes: list[Change] = []
    same = 0
    for pass_name, phase in domains:
        left, right = (
            [g for g in lock.groups if g.section.pass_name == pass_name and _phase(g.section) == phase]
            for lock in (old, new)
        )
        pairs, regions = _match(left, right)
        for a, b in pairs:
            kind = _pair_kind(a, b, bytes_percent)
            same += kind == "same"
            if kind != "same":
                changes.append(Change(pass_name=pass_name, kind=kind, old=(a,), new=(b,)))
        for olds, news in regions:
            changes.append(
                Change(
                    pass_name=pass_name,
                    kind=_kind(olds, news),
                    old=tuple(olds),
                    new=tuple(news),
                    lost_edges=_lost_edges(olds, news),
                )
            )
        changes += _dynamic(pairs)
    known = {line_id(r) for g in old.groups for r in g.refs}
    edited = frozenset(line_id(r) for g in new.groups for r in g.refs if r.code) - known
    changes.sort(key=lambda c: min((position[id(g)] for g in c.new), default=after))
    names = dict.fromkeys((*new.passes, *old.passes))
    return Changes(
        changes=tuple(changes),
        same=same,
        edited=edited,
        other_key=key_difference(old.key, new.key),
        totals={name: (_totals(old, name), _totals(new, name)) for name in names},
    )


def graph_counts(old: Lock, new: Lock, pass_name: str) -> tuple[int, int]:
    """Compiled graphs in a pass before and after."""
    before, after = (
        len({g.section for g in lock.groups if g.section.pass_name == pass_name and g.section.graph})
        for lock in (old, new)
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
