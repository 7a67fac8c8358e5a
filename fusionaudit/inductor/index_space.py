"""Exact counts of the addresses that an index expression reaches over an iteration space, without enumerating it.

An index of a generated kernel is a sum of coefficients times *atoms*. An atom ``(base, d, m)`` is ``base // d % m``
(``m`` ``None``: no modulo) of one of the kernel's indices (``xindex``, ``r0_index``, ...). Atoms of one base whose
``d`` and ``d*m`` divide each other in a chain are digits of a mixed-radix number and so are independent; the number
of distinct values of the sum then follows from the digits' ranges and coefficients.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

Atom = tuple[str, int, int | None]
Bounds = Mapping[Atom, tuple[int, int]]


@dataclass(frozen=True)
class Value:
    """What is known of a value in a kernel: ``const + sum(coefficient * atom)``, or opaque.

    ``opaque``: it is some function of ``deps`` (and of loaded data if ``loaded``, of block numbers if ``blocked``),
    besides the linear part.
    """

    terms: tuple[tuple[Atom, int], ...] = ()
    const: int = 0
    opaque: bool = False
    deps: frozenset[Atom] = frozenset()
    loaded: bool = False
    blocked: bool = False

    @property
    def atoms(self) -> frozenset[Atom]:
        """All atoms that the value depends on."""
        return self.deps | {a for a, _ in self.terms}

    @property
    def constant(self) -> int | None:
        """The number, if it is one."""
        return None if self.terms or self.opaque else self.const


_MOST_ATOMS = 64
"""More digits than that in one index are given up on, so that a long sum takes no quadratic time; indices in generated
kernels have under ten."""


def mix(*values: Value, loaded: bool = False, blocked: bool = False) -> Value:
    """An opaque function of the values."""
    deps: frozenset[Atom] = frozenset().union(*(v.atoms for v in values))
    if len(deps) > _MOST_ATOMS:
        deps, blocked = frozenset(), True
    return Value(
        opaque=True,
        deps=deps,
        loaded=loaded or any(v.loaded for v in values),
        blocked=blocked or any(v.blocked for v in values),
    )


def add(a: Value, b: Value, factor: int = 1) -> Value:
    """``a + factor * b``."""
    terms: dict[Atom, int] = dict(a.terms)
    for atom, coefficient in b.terms:
        terms[atom] = terms.get(atom, 0) + factor * coefficient
    if len(terms) > _MOST_ATOMS:
        return mix(a, b)
    return Value(
        terms=tuple(sorted(((t, c) for t, c in terms.items() if c), key=repr)),
        const=a.const + factor * b.const,
        opaque=a.opaque or b.opaque,
        deps=a.deps | b.deps,
        loaded=a.loaded or b.loaded,
        blocked=a.blocked or b.blocked,
    )


@dataclass(frozen=True)
class Region:
    """The addresses that one access touches: ``offset + sum(coefficient * [0, n))`` over ``dims``.

    ``count`` is how many are distinct (an upper bound unless ``exact``). An indirect region has no addresses, only
    the number of evaluations of its index; ``key`` tells two of them apart.
    """

    offset: int
    dims: tuple[tuple[int, int], ...]
    count: int
    exact: bool = True
    indirect: bool = False
    key: str = ""

    @property
    def high(self) -> int:
        """The largest address (relative to the pointer)."""
        return self.offset + sum(c * (n - 1) for c, n in self.dims)

    @property
    def dense(self) -> bool:
        """Every address between ``offset`` and ``high`` is touched."""
        return not self.indirect and self.exact and self.count == self.high - self.offset + 1


@dataclass
class Space:
    """Extents of the bases; composite bases are made for ``//`` and ``%`` of contiguous sums of several atoms."""

    extents: dict[str, int] = field(default_factory=dict)
    parts: dict[str, frozenset[Atom]] = field(default_factory=dict)

    def size(self, atom: Atom) -> int:
        """Number of values that the atom takes."""
        base, divisor, modulus = atom
        whole = -(-self.extents.get(base, 1) // divisor)
        return whole if modulus is None else min(modulus, whole)

    def highest(self, value: Value) -> int:
        """The largest value of a linear one."""
        return value.const + sum(c * (self.size(a) - 1) for a, c in value.terms if c > 0)

    def _nonnegative(self, value: Value) -> bool:
        return value.const >= 0 and all(c > 0 for _, c in value.terms)

    def floordiv(self, value: Value, divisor: int) -> Value:
        """``value // divisor`` for a linear value, simplified as far as it stays linear."""
        if divisor == 1:
            return value
        if value.opaque or divisor <= 0:
            return mix(value)
        if not self._nonnegative(value):
            return mix(value)
        if self.highest(value) < divisor:
            return Value()
        if len(value.terms) == 1 and value.const == 0 and value.terms[0][1] == 1:
            base, d, m = value.terms[0][0]
            if m is None or m % divisor == 0:
                return self._linear((base, d * divisor, None if m is None else m // divisor))
        multiples = [(a, c) for a, c in value.terms if c % divisor == 0]
        rest = Value(terms=tuple((a, c) for a, c in value.terms if c % divisor), const=value.const % divisor)
        if multiples or value.const >= divisor:
            tail = Value() if self.highest(rest) < divisor else self.floordiv(rest, divisor)
            head = Value(terms=tuple((a, c // divisor) for a, c in multiples), const=value.const // divisor)
            return add(head, tail)
        base_name = self._composite(value)
        return mix(value) if base_name is None else self._linear((base_name, divisor, None))

    def modulo(self, value: Value, modulus: int) -> Value:
        """``value % modulus`` for a linear value, simplified as far as it stays linear."""
        if modulus == 1:
            return Value()
        if value.opaque or modulus <= 0 or not self._nonnegative(value):
            return mix(value)
        if self.highest(value) < modulus:
            return value
        if len(value.terms) == 1 and value.const == 0 and value.terms[0][1] == 1:
            base, d, m = value.terms[0][0]
            if m is None or m % modulus == 0:
                return self._linear((base, d, modulus))
        kept = Value(terms=tuple((a, c) for a, c in value.terms if c % modulus), const=value.const % modulus)
        if len(kept.terms) < len(value.terms) or kept.const != value.const:
            return self.modulo(kept, modulus)
        base_name = self._composite(value)
        return mix(value) if base_name is None else self._linear((base_name, 1, modulus))

    def _linear(self, atom: Atom) -> Value:
        return Value() if self.size(atom) <= 1 else Value(terms=((atom, 1),))

    def _composite(self, value: Value) -> str | None:
        """A base of its own for a sum that takes each value from 0 to its highest exactly once."""
        if value.const or value.opaque:
            return None
        expected = 1
        for atom, coefficient in sorted(value.terms, key=lambda t: t[1]):
            if coefficient != expected:
                return None
            expected *= self.size(atom)
        name = "+".join(f"{c}*{a}" for a, c in value.terms)
        self.extents[name] = expected
        self.parts[name] = value.atoms
        return name

    def _digits(self, atoms: Iterable[Atom]) -> dict[str, list[int]]:
        """Breakpoints of each base; a base whose breakpoints are no divisor chain is left out."""
        marks: dict[str, set[int]] = defaultdict(set)
        for base, divisor, modulus in atoms:
            marks[base].add(divisor)
            if modulus is not None and divisor * modulus < self.extents.get(base, 1):
                marks[base].add(divisor * modulus)
        chains = {}
        for base, points in marks.items():
            chain = sorted(points)
            if all(b % a == 0 for a, b in pairwise(chain)):
                chains[base] = chain
        return chains

    def region(self, value: Value, bounds: Bounds) -> Region | None:
        """The region of an index under bounds on atoms; ``None`` where block numbers enter it."""
        if value.blocked:
            return None
        used = value.atoms
        bases = {a[0] for a in used}
        limits = {a: b for a, b in bounds.items() if a[0] in bases}
        chains = self._digits([*used, *limits])
        coefficients: dict[Atom, int] = defaultdict(int)
        touched: set[Atom] = set()
        exact = True
        for atom in used:
            for digit, _ in self._split(atom, chains):
                touched.add(digit)
        for atom, coefficient in value.terms:
            for digit, weight in self._split(atom, chains):
                coefficients[digit] += coefficient * weight
        ranges = {d: (0, self.size(d) - 1) for d in touched}
        for atom, (low, high) in limits.items():
            pieces = self._split(atom, chains)
            digit, weight = pieces[-1]
            if digit in ranges:
                old = ranges[digit]
                ranges[digit] = (max(old[0], low // weight), min(old[1], high // weight))
                exact = exact and len(pieces) == 1
        if any(low > high for low, high in ranges.values()):
            return Region(offset=0, dims=(), count=0)
        evaluations = 1
        for low, high in ranges.values():
            evaluations *= high - low + 1
        if value.opaque:
            return Region(offset=0, dims=(), count=evaluations, exact=False, indirect=True)
        offset, dims = value.const, []
        for digit, coefficient in coefficients.items():
            low, high = ranges[digit]
            offset += coefficient * (low if coefficient > 0 else high)
            if coefficient and high > low:
                dims.append((abs(coefficient), high - low + 1))
        composite = len(bases) > 1 and any(b in self.parts for b in bases)
        # A last digit that the extent does not fill makes its base's digits depend on each other.
        whole = all(
            b in chains and (self.extents.get(b, 1) % chains[b][-1] == 0 or sum(d[0] == b for d in touched) == 1)
            for b in bases
        )
        independent = whole and not composite
        count, sure = sumset(dims)
        return Region(
            offset=offset, dims=tuple(sorted(dims)), count=min(count, evaluations), exact=exact and sure and independent
        )

    def _split(self, atom: Atom, chains: Mapping[str, list[int]]) -> list[tuple[Atom, int]]:
        """The digits of an atom, lowest first, each with its weight within the atom."""
        base, divisor, modulus = atom
        chain = chains.get(base)
        if chain is None:
            return [(atom, 1)]
        end = None if modulus is None else divisor * modulus
        out: list[tuple[Atom, int]] = []
        for i, point in enumerate(chain):
            if point < divisor or (end is not None and point >= end):
                continue
            following = chain[i + 1] if i + 1 < len(chain) else None
            if following is None:
                out.append(((base, point, None), point // divisor))
            else:
                out.append(((base, point, following // point), point // divisor))
        return out or [(atom, 1)]


def sumset(dims: Iterable[tuple[int, int]]) -> tuple[int, bool]:
    """How many distinct values ``sum(c * [0, n))`` has for positive ``c``, and whether that is exact.

    >>> sumset([(1, 512), (512, 4)])
    (2048, True)
    >>> sumset([(1, 3), (1, 8)])
    (10, True)
    """
    count, span, step, exact = 1, 0, 0, True
    for coefficient, n in sorted(dims):
        if n <= 1:
            continue
        reach = coefficient * (n - 1)
        if count == 1:
            count, step = n, coefficient
        elif step and coefficient % step == 0 and coefficient <= step * count:
            count += reach // step
        elif coefficient > span:
            count, step = count * n, 0
        else:
            count, step, exact = min(count * n, span + reach + 1), 0, False
        span += reach
    return count, exact


def _progressions(offsets: list[int]) -> list[tuple[int, int]] | None:
    """Offsets as a sum of arithmetic progressions (``{0, 1, 64, 65}`` is ``[(1, 2), (64, 2)]``), or ``None``."""
    if len(offsets) == 1:
        return []
    step = offsets[1] - offsets[0]
    run = 1
    while run < len(offsets) and offsets[run] - offsets[run - 1] == step:
        run += 1
    if len(offsets) % run:
        return None
    starts = offsets[::run]
    if [s + i * step for s in starts for i in range(run)] != offsets:
        return None
    rest = _progressions(starts)
    return None if rest is None else [(step, run), *rest]


def merged(regions: Iterable[Region]) -> list[Region]:
    """The direct regions of one pointer with those joined that repeat in steps, without what lies in a dense one."""
    shapes: dict[tuple[tuple[int, int], ...], set[int]] = defaultdict(set)
    kept: list[Region] = []
    for region in regions:
        if region.count and not region.indirect:
            shapes[region.dims].add(region.offset)
            kept.append(region)
    joined: list[Region] = []
    for dims, offsets in shapes.items():
        same = [r for r in kept if r.dims == dims]
        if len(offsets) == 1:
            joined.append(min(same, key=lambda r: r.count))
            continue
        extra = _progressions(sorted(offsets))
        if extra is None:
            joined.extend({r.offset: r for r in same}.values())
            continue
        both = tuple(sorted([*dims, *extra]))
        count, sure = sumset(both)
        count = min(count, sum({r.offset: r.count for r in same}.values()))
        joined.append(Region(offset=min(offsets), dims=both, count=count, exact=sure and all(r.exact for r in same)))
    joined.sort(key=lambda r: -r.count)
    apart: list[Region] = []
    for region in joined:
        if not any(r.dense and r.offset <= region.offset and region.high <= r.high for r in apart):
            apart.append(region)
    return apart


def union(regions: Iterable[Region]) -> tuple[int, bool]:
    """Distinct addresses of several regions of one pointer, and whether the number is exact (else an upper bound)."""
    given = list(regions)
    indirect = {r for r in given if r.indirect}
    apart = merged(given)
    total = sum(r.count for r in apart)
    exact = all(r.exact for r in apart) and not indirect
    if len(apart) > 1:
        hull = max(r.high for r in apart) - min(r.offset for r in apart) + 1
        ordered = sorted(apart, key=lambda r: r.offset)
        exact = exact and all(a.high < b.offset for a, b in pairwise(ordered))
        total = min(total, hull)
    return total + sum(r.count for r in indirect), exact
