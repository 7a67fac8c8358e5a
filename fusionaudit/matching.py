"""Which groups of two locks belong together: matched exactly, then by ops and lines, then by similarity. Pure."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from difflib import SequenceMatcher

from fusionaudit.groups import Group, Ref, Section

_LEAST_OVERLAP = 0.5
"""Share of the smaller group's ops that two groups must have in common to be taken for parts of one region.
Half: below that, chance agreement on one common op (add, mul) would tie unrelated kernels together."""


def line_id(ref: Ref) -> tuple[str, str]:
    """A line by function and code; the file's name may change."""
    return ref.function, ref.code


def _lines(group: Group) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(line_id(r) for r in group.refs))


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


def match(old: list[Group], new: list[Group]) -> tuple[Pairs, list[tuple[list[Group], list[Group]]]]:
    """(pairs, regions of what has no partner). Takes the paired groups out of both lists."""
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
