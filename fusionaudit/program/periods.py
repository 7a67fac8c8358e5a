"""Tandem repeats of a sequence: stretches that are one block of keys, repeated at least twice.

The step of a program shows up as such a stretch in its launches. Time is about linear in the length: only distances
between equal keys can be periods, the commonest few hundred of them are looked at, each in one sweep.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

_PERIODS_TRIED = 256
"""A step's period is the distance between both occurrences of each key that a step has once, so it is among the
commonest distances; in the captures under tests/data it is among the first 40."""

_NEAR, _FAR, _RARE_KEYS = 4, 64, 64
"""Occurrences back that distances are taken over: few for each key, many for the rarest keys, where a step may hold
every key several times."""

_ENOUGH_WORK = 0.8
"""A stretch competes with the richest one if its block has that share of distinct keys: warm-up steps and timed steps
differ by a few keys, a benchmark's loop or one layer of many has far fewer than a step."""


@dataclass(frozen=True, kw_only=True)
class Repeat:
    """``block`` keys from ``start`` on, ``count`` times; ``spare`` more keys continue the pattern after that.

    ``distinct`` is the number of different keys in a block, or the sum of their weights.
    """

    start: int
    block: int
    count: int
    spare: int
    distinct: int

    @property
    def end(self) -> int:
        """Where the pattern stops (with the spare keys)."""
        return self.start + self.block * self.count + self.spare

    @property
    def length(self) -> int:
        """Keys that follow the pattern."""
        return self.end - self.start


def _numbered(keys: Sequence[Hashable]) -> list[int]:
    numbers: dict[Hashable, int] = {}
    return [numbers.setdefault(key, len(numbers)) for key in keys]


def _periods(ids: Sequence[int]) -> list[int]:
    places: dict[int, list[int]] = {}
    for i, number in enumerate(ids):
        places.setdefault(number, []).append(i)
    found = Counter[int]()
    rare = sorted(places, key=lambda number: len(places[number]))[:_RARE_KEYS]
    for number, where in places.items():
        for back in range(1, min(_NEAR, len(where) - 1) + 1):
            found.update(b - a for a, b in zip(where, where[back:], strict=False))
        del number
    for number in rare:
        where = places[number][-4 * _FAR :]
        for back in range(_NEAR + 1, min(_FAR, len(where) - 1) + 1):
            found.update(b - a for a, b in zip(where, where[back:], strict=False))
    half = len(ids) // 2
    ranked = sorted((p for p in found if p <= half), key=lambda p: (-found[p], p))
    # A step around a long loop has few keys of its own: the distance of those is rare, and is the step.
    own = (where[-1] - where[-2] for where in (places[number] for number in rare) if len(where) > 1)
    return list(dict.fromkeys([*ranked[:_PERIODS_TRIED], *(p for p in own if p <= half)]))


def _repeats_of(ids: Sequence[int], period: int, weights: Sequence[int]) -> list[Repeat]:
    """The maximal stretches of one period; ``weights`` are those of the numbered keys."""
    size = len(ids) - period
    breaks = [i for i, (a, b) in enumerate(zip(ids, ids[period:], strict=False)) if a != b]
    out, begin = [], 0
    for stop in (*breaks, size):
        matches = stop - begin
        if matches >= period:
            count, spare = divmod(matches + period, period)
            distinct = sum(weights[number] for number in set(ids[begin : begin + period]))
            out.append(Repeat(start=begin, block=period, count=count, spare=spare, distinct=distinct))
        begin = stop + 1
    return out


def best_repeat(keys: Sequence[Hashable], weights: Sequence[int] = ()) -> Repeat | None:
    """The stretch that looks most like a program's steps; ``None`` where nothing repeats back to back.

    ``weights`` say how much each element is worth (its modelled time); without them every key counts one, so that a
    checksum of many small ops could pass for the step.

    Of the stretches with (nearly) the most distinct keys in a block, the one that ends last; of several that end
    there, the one with the most keys in a block that still is not a multiple of a smaller one.
    """
    ids = _numbered(keys)
    worth = [1] * (max(ids, default=-1) + 1)
    for number, weight in zip(ids, weights, strict=False):
        worth[number] = max(worth[number], weight)
    found = [r for period in _periods(ids) for r in _repeats_of(ids, period, worth)]
    if not found:
        return None
    most = max(r.distinct for r in found)
    rich = [r for r in found if r.distinct >= _ENOUGH_WORK * most]
    last = max(r.end for r in rich)
    late = [r for r in rich if r.end >= last - min(r.block, last - r.start) // 2]
    richest = max(r.distinct for r in late)
    return min((r for r in late if r.distinct == richest), key=lambda r: (r.block, -r.end))
