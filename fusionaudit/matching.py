"""Which groups of two locks belong together: matched by what they do and their lines, then by similarity. Pure."""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Callable, Hashable
from difflib import SequenceMatcher
from math import prod

from fusionaudit.groups import Group, Ref, Section

_LEAST_OVERLAP = 0.5
"""Share of the smaller group's ops that two groups must have in common to be taken for parts of one region.
Half: below that, chance agreement on one common op (add, mul) would tie unrelated kernels together."""


def line_id(ref: Ref) -> tuple[str, str]:
    """A line by function and code; the file's name may change."""
    return ref.function, ref.code


_TENSOR = re.compile(r"(\w+)\[([\d,]*)\](?:\(([\d,-]*)\))?")


@functools.lru_cache(maxsize=4096)
def stored(text: str, as_laid_out: bool) -> str:
    """A tensor of a lock by what is stored of it: dtype and elements. How it is viewed or spread is left out, as are
    its strides but for a ``~`` where it is not in the order of its dimensions and ``as_laid_out``."""
    match = _TENSOR.fullmatch(text)
    if match is None:
        return text
    sizes = [int(n) for n in match[2].split(",") if n]
    if match[3] is None:
        return f"{match[1]}[{prod(sizes)}]"
    steps = [int(n) for n in re.findall(r"-?\d+", match[3])]
    kept = [(n, step) for n, step in zip(sizes, steps, strict=False) if n != 1 and step]
    inner = [prod(n for n, _ in kept[i + 1 :]) for i in range(len(kept))]
    turned = as_laid_out and [step for _, step in kept] != inner
    return f"{match[1]}[{prod(n for n, _ in kept)}]{'~' if turned else ''}"


def tensors(group: Group, as_laid_out: bool = True) -> tuple[Counter[str], Counter[str]]:
    """What a group reads and writes, in any order: which operand stands first costs nothing. Strides count only in
    eager code, if ``as_laid_out``: how generated code views a buffer is its own affair."""
    eager = as_laid_out and not group.section.graph
    return Counter(stored(t, eager) for t in group.reads), Counter(stored(t, eager) for t in group.writes)


_KIN = {"aten.sub": "aten.add", "aten.rsub": "aten.add", "aten.div": "aten.mul"}
"""Ops that a rewriting turns into each other: a difference is a sum with ``alpha=-1``, ``x / 2`` is ``x * 0.5``."""


def op_kinds(group: Group) -> frozenset[str]:
    """The ops of a group without what costs nothing: their order, a sign, and whether they work in place."""
    names = (op[:-1] if op.endswith("_") and not op.endswith("__") else op for op in group.ops)
    return frozenset(_KIN.get(name, name) for name in names)


def _work(group: Group) -> Hashable:
    """What a group does, wherever it is written: groups that agree in it cost the same."""
    return group.what, op_kinds(group), *(frozenset(side.items()) for side in tensors(group))


def _lines(group: Group) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(line_id(r) for r in group.refs))


def _where(section: Section) -> tuple[object, ...]:
    return section.kind, section.graph, section.place.partition(" ")[2], section.inputs, section.dynamic, section.number


Pairs = list[tuple[Group, Group]]
Region = tuple[list[Group], list[Group]]


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
    left, right = ([(g.what, op_kinds(g)) for g in groups] for groups in (old, new))
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
    left, right = op_kinds(a), op_kinds(b)
    common = len(left & right)
    if not common or common < _LEAST_OVERLAP * min(len(left), len(right)):
        return 0.0
    lines_a, lines_b = set(_lines(a)), set(_lines(b))
    lines = len(lines_a & lines_b) / max(len(lines_a | lines_b), 1)
    tensors_a, tensors_b = {*a.reads, *a.writes}, {*b.reads, *b.writes}
    tensors = len(tensors_a & tensors_b) / max(len(tensors_a | tensors_b), 1)
    return common / len(left | right) + lines + tensors / 2 + (_where(a.section) == _where(b.section)) / 4


def _regions(old: list[Group], new: list[Group]) -> list[Region]:
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
    parts: dict[tuple[str, int], Region] = {}
    for i, group in enumerate(new):
        parts.setdefault(find(("new", i)), ([], []))[1].append(group)
    for i, group in enumerate(old):
        parts.setdefault(find(("old", i)), ([], []))[0].append(group)
    return list(parts.values())


def _same_work(pairs: Pairs, old: list[Group], new: list[Group]) -> list[Region]:
    """Takes groups of equal work together where a pair of them runs another number of times: two lines that became
    calls of one function are two groups before and one that runs twice after."""
    waiting: dict[Hashable, Region] = {}
    for a, b in list(pairs):
        work = _work(a)
        if a.launches != b.launches and work == _work(b):
            olds, news = waiting.setdefault(work, ([], []))
            olds.append(a)
            news.append(b)
            pairs[:] = [p for p in pairs if p[0] is not a]
    for groups, side in ((old, 0), (new, 1)):
        for group in list(groups):
            work = _work(group)
            if work in waiting:
                waiting[work][side].append(group)
                _drop(groups, group)
    return list(waiting.values())


def match(old: list[Group], new: list[Group]) -> tuple[Pairs, list[Region], list[Region]]:
    """(pairs, regions of equal work that runs another number of times, regions of what has no partner). Takes the
    groups out of both lists."""
    pairs: Pairs = []
    keys: tuple[Callable[[Group], Hashable], ...] = (
        lambda g: (_where(g.section), _work(g), _lines(g)),
        lambda g: (_work(g), _lines(g)),
        lambda g: (_where(g.section), _work(g)),
        _work,
        lambda g: (_where(g.section), g.what, op_kinds(g), _lines(g)),
        lambda g: (g.what, op_kinds(g), _lines(g)),
    )
    for key in keys[:4]:
        _pair_by(old, new, key, pairs)
    repeated = _same_work(pairs, old, new)
    for key in keys[4:]:
        _pair_by(old, new, key, pairs)
    _pair_in_order(old, new, pairs)
    regions = _regions(old, new)
    gone = [olds[0] for olds, news in regions if not news and olds[0].what == "kernel"]
    come = [news[0] for olds, news in regions if not olds and news[0].what == "kernel"]
    replaced: Pairs = []
    _pair_by(gone, come, lambda g: (len(g.ops), g.launches, *(frozenset(t.items()) for t in tensors(g))), replaced)
    _pair_by(gone, come, lambda g: (len(g.ops), g.launches, g.bytes, frozenset(tensors(g)[1].items())), replaced)
    taken = {id(g) for pair in replaced for g in pair}
    regions = [r for r in regions if not any(id(g) in taken for side in r for g in side)]
    return [*pairs, *replaced], repeated, regions
