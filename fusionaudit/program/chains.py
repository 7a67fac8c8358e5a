"""Groups of ops that one kernel could do, from dataflow: what they move now, and what they would move.

A group grows along tensors that really flow: producer and consumer of the same value, over the same elements (views
in between are fine), in one phase, stream and epoch (no host read and no compiled graph between them). It stays one
kernel's work: at most one size of reduction; no way out of the group and back in; no race on memory that it overwrites
(:mod:`fusionaudit.program.hazards`); a value that something else reads later stays an output. Elementwise ops, fills,
random ops, casts, copies and the parts of a ``cat`` join; a library softmax or norm counts as a reduction; a matmul or
convolution can only be the head, of what comes after it over the elements that it writes (an epilogue), without a
reduction.

When it is wrong: a value that the script keeps without reading it again within the step (returned, put in a list) looks
like an intermediate, so its write counts as avoidable though it is not.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, replace
from typing import Literal

from fusionaudit.findings import Location
from fusionaudit.program.costs import op_bytes, op_root, sum_known
from fusionaudit.program.dataflow import Flow, Step, ancestors, convex, dataflow, regions_bytes
from fusionaudit.program.hazards import Touches, together, touches
from fusionaudit.program.model import Pass
from fusionaudit.program.op_kinds import OpKind
from fusionaudit.program.rows import REDUCING, Size, Values, row_size, second_pass
from fusionaudit.tensors import Tensor
from fusionaudit.trace.schema import Op, Phase

ChainKind = Literal["elementwise", "into_reduction", "reduction_epilogue", "matmul_epilogue"]

_ELEMENTWISE: frozenset[OpKind] = frozenset({"pointwise", "cast", "copy", "fill", "random", "join"})
_TINY = 8
"""A tensor that many times smaller than what two reductions read is no reason to make them one kernel: a merge saves
little of the smaller one's traffic, and may have to wait for work in between."""
_HEADS: frozenset[OpKind] = frozenset({"matmul", "convolution"})


@dataclass(frozen=True, kw_only=True)
class LibraryCall:
    """A pattern that a library has as one kernel: its name, and the ``call`` that takes its place."""

    name: str
    call: str


@dataclass(frozen=True, kw_only=True)
class Chain:
    """A group of ops that one kernel (or ``kernels``) could do. Bytes are per execution; ``None``: not known.

    ``global_bytes`` is what the ops move now, ``minimum_bytes`` what has to enter and leave the group (and be read
    again, where rows do not stay on the chip). ``kernels``: two where the result of a reduction over all SMs is used on
    the data again. ``keeps_rows``: elements that a reduction of the group reads are needed outside too, so they are
    written in any case. ``library``: the call that does just this, and then the minimum is what it moves. ``calls``:
    chains with such a call among the ops; they count as that call here, what it saves is theirs.
    """

    kind: ChainKind
    op_ids: tuple[int, ...]
    ops: tuple[str, ...]
    kernel_ids: tuple[int, ...]
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    global_bytes: int | None
    minimum_bytes: int | None
    location: Location | None
    phase: Phase
    largest_bytes: int = 0
    keeps_rows: bool = False
    kernels: int = 1
    library: LibraryCall | None = None
    calls: tuple[Chain, ...] = ()

    @property
    def avoidable_bytes(self) -> int | None:
        """Bytes that go through memory only because the ops are kernels of their own."""
        if self.global_bytes is None or self.minimum_bytes is None:
            return None
        return max(0, self.global_bytes - self.minimum_bytes)

    @property
    def called(self) -> frozenset[int]:
        """Ids of the ops that ``calls`` do."""
        return frozenset(i for c in self.calls for i in c.op_ids)

    @property
    def launches(self) -> int:
        """Kernels now (fills that go with a reduction not counted), those of library calls as they would be."""
        return len(set(self.op_ids) - self.called) + sum(c.kernels for c in self.calls)


@dataclass(kw_only=True)
class _Group:
    """A group while it grows; ``mask`` has the bit of every member."""

    members: list[int]
    mask: int
    touches: Touches
    reduction: Size | None = None


def _numel(step: Step) -> int:
    return max((t.numel for _, t in step.makes), default=0)


def _same_elements(flow: Flow, producer: Step, consumer: Step) -> bool:
    """The consumer reads just what the producer wrote, over the same (or for a small producer: its broadcast)."""
    for value, read in consumer.uses:
        if flow.maker.get(value) != producer.index:
            continue
        written = next((t for v, t in producer.makes if v == value), None)
        if written is None or read.stored_elements != written.stored_elements or read.offset != written.offset:
            return False
        if read.dtype != written.dtype:
            return False
    return True


def _joins(flow: Flow, producer: Step, consumer: Step) -> bool:
    """Could one kernel hold this edge? Kinds and sizes only; the group checks the rest."""
    if producer.epoch != consumer.epoch or producer.op.phase != consumer.op.phase:
        return False
    if producer.op.stream != consumer.op.stream or not _same_elements(flow, producer, consumer):
        return False
    if _accumulates(producer.op, consumer.op):
        return False
    if producer.kind == "random" and not producer.op.inputs:
        return False  # input data made up on the device: set-up, not a stage of the computation
    made, wanted = _numel(producer), _numel(consumer)
    if producer.kind in _HEADS:
        return consumer.kind in _ELEMENTWISE and consumer.kind != "join" and made == wanted
    if producer.kind in _ELEMENTWISE and consumer.kind in REDUCING:
        # A small producer (a bias row, a mask) is not worth a merge with the reduction of something else.
        size = row_size(consumer, flow.chip)
        return size is not None and (made == size.elements or consumer.kind != "reduction") and made > 1
    if producer.kind in _ELEMENTWISE and consumer.kind in _ELEMENTWISE:
        if consumer.kind == "join":
            return producer.kind != "fill"
        return made <= wanted and wanted > 0
    if producer.kind in REDUCING and (consumer.kind in _ELEMENTWISE or consumer.kind in REDUCING):
        if producer.kind != "reduction" and consumer.kind in _ELEMENTWISE:
            return made >= wanted
        if made == wanted and consumer.kind in _ELEMENTWISE:
            return True
        size = row_size(producer, flow.chip)
        return size is not None and size.one_kernel
    return False


def _is_epilogue(flow: Flow, members: Sequence[int]) -> bool:
    """Of a group with a matmul: all else comes after it, over the elements that it writes."""
    head = next(flow.steps[i] for i in members if flow.steps[i].kind in _HEADS)
    return all(i >= head.index and _numel(flow.steps[i]) == _numel(head) for i in members)


def _accumulates(first: Op, second: Op) -> bool:
    """Both add to the same gradient, as each micro-batch does when its backward ends."""
    both = (first, second)
    if first.name != second.name or any(not o.mutated or o.phase != "backward" for o in both):
        return False
    return first.inputs[first.mutated[0]].storage == second.inputs[second.mutated[0]].storage


def _bridges(flow: Flow, producer: Step, consumer: Step, a: _Group, b: _Group) -> bool:
    """Only a few numbers connect the groups (two sums that are added up), which share no data worth the merge."""
    edge = max((t.numel for v, t in consumer.uses if flow.maker.get(v) == producer.index), default=0)
    if a.reduction is None or b.reduction is None or _numel(consumer) > edge:
        return False
    least = min(a.reduction.elements, b.reduction.elements)
    if edge * _TINY > least:
        return False
    ours, theirs = ({v for v, t in _border(flow, g.members)[0] if t.numel * _TINY > least} for g in (a, b))
    return not ours & theirs


def _merged(a: _Group, b: _Group) -> _Group | None:
    """Both as one group, ``None`` where two different reductions would have to share a kernel."""
    sizes = [s for s in (a.reduction, b.reduction) if s is not None]
    if any(not s.same_rows(sizes[0]) for s in sizes):
        return None
    members, mask = a.members + b.members, a.mask | b.mask
    size = next((s for s in sizes if s.axes is not None), sizes[0] if sizes else None)
    return _Group(members=members, mask=mask, touches=a.touches, reduction=size)


def adds_bias(op: Op) -> bool:
    """An add of a small (broadcast) tensor, as a bias is."""
    sizes = sorted(t.stored_elements for t in op.inputs)
    return op_root(op) == "add" and len(sizes) == 2 and sizes[0] * 2 <= sizes[1] and sizes[0] > 1


def _is_loose_bias(flow: Flow, step: Step) -> bool:
    """A bias added to just what a matmul wrote: addmm takes it in, whatever follows."""
    makers = [flow.steps[flow.maker[v]] for v, _ in step.uses if v in flow.maker]
    return adds_bias(step.op) and any(m.kind in _HEADS and _joins(flow, m, step) for m in makers)


def _groups(flow: Flow, upstream: list[int], without: Set[int] = frozenset()) -> list[_Group]:
    """All groups. Rows that are reduced end a matmul's epilogue: what one kernel does with them is theirs."""
    loose = {s.index for s in flow.steps if s.kind in _HEADS or _is_loose_bias(flow, s)}
    rows = [g for g in _grow(flow, upstream, loose | without) if g.reduction is not None and _takes_rows(flow, g)]
    found = rows + _grow(flow, upstream, {i for g in rows for i in g.members} | without)
    feeding = [_feeding(flow, g) for g in found]
    taken = {i for g in feeding for i in g.members} | without
    # What only reads the same input as a reduction's producers is a group of its own.
    rest = [] if feeding == found else _grow(flow, upstream, taken)
    return feeding + [_feeding(flow, g) for g in rest]


def _feeding(flow: Flow, group: _Group) -> _Group:
    """Of a group that ends in a reduction, the steps that the reduction waits for, and what follows it."""
    steps = [flow.steps[i] for i in sorted(group.members)]
    if _kind(steps) != "into_reduction":
        return group
    behind = {s.index for s in steps if s.kind in REDUCING}
    for step in steps:
        if any(flow.maker.get(v) in behind for v, _ in step.uses):
            behind.add(step.index)
    for step in reversed(steps):
        if any(r in behind for v, _ in step.makes for r in flow.readers.get(v, ())):
            behind.add(step.index)
    kept = sorted(behind)
    return replace(group, members=kept, mask=sum(1 << i for i in kept))


def _takes_rows(flow: Flow, group: _Group) -> bool:
    """The group goes over its rows again, or nobody else needs what its reduction reads."""
    steps = [flow.steps[i] for i in sorted(group.members)]
    return _kind(steps) == "reduction_epilogue" or not _needed_outside(flow, steps)


def _needed_outside(flow: Flow, steps: Sequence[Step]) -> bool:
    """What a reduction of these steps reads is made by them and read by others as well."""
    inside = frozenset(s.index for s in steps)
    reduced = [v for s in steps if s.kind in REDUCING for v, _ in s.uses]
    return any(flow.maker.get(v) in inside and flow.leaves(v, inside) for v in reduced)


def _grow(flow: Flow, upstream: list[int], without: Set[int]) -> list[_Group]:
    groups: dict[int, _Group] = {}
    home: dict[int, int] = {}
    for step in flow.steps:
        if step.kind not in _ELEMENTWISE and step.kind not in REDUCING and step.kind not in _HEADS:
            continue
        if step.index in without:
            continue
        groups[step.index] = _Group(
            members=[step.index], mask=1 << step.index, touches=touches(flow, step), reduction=row_size(step, flow.chip)
        )
        home[step.index] = step.index
        if step.kind in _HEADS:
            continue
        makers = sorted(
            {flow.maker[v] for v, _ in step.uses if v in flow.maker and flow.maker[v] in home}, reverse=True
        )
        for maker in makers:
            producer = flow.steps[maker]
            if home[maker] == home[step.index] or not _joins(flow, producer, step):
                continue
            mine, theirs = groups[home[step.index]], groups[home[maker]]
            heads = sum(flow.steps[i].kind in _HEADS for i in (*mine.members, *theirs.members))
            if heads > 1 or (heads and (mine.reduction is not None or theirs.reduction is not None)):
                continue
            merged = _merged(mine, theirs)
            if (
                merged is None
                or (heads and not _is_epilogue(flow, merged.members))
                or not convex(merged.mask, merged.members, upstream)
            ):
                continue
            if _bridges(flow, producer, step, mine, theirs):
                continue
            used = together(flow, theirs.touches, theirs.members, mine.touches, mine.members)
            if used is None:
                continue
            merged.touches = used
            root = home[maker]
            groups.pop(home[step.index])
            groups[root] = merged
            for member in merged.members:
                home[member] = root
    return [g for g in groups.values() if len(g.members) > 1]


def _kind(steps: list[Step]) -> ChainKind:
    if steps[0].kind in _HEADS or any(s.kind in _HEADS for s in steps):
        return "matmul_epilogue"
    reducing = [s for s in steps if s.kind in REDUCING]
    if not reducing:
        return "elementwise"
    size = max(_numel(s) for s in reducing)
    first = min(s.index for s in reducing)
    after = [s for s in steps if s.index > first and s.kind in _ELEMENTWISE]
    fed = {v for s in reducing for v, _ in s.makes}
    for step in sorted(after, key=lambda s: s.index):
        if any(v in fed for v, _ in step.uses):
            fed.update(v for v, _ in step.makes)
            # A library's norm or softmax has its rows in its result; its statistics' tail is no second look at them.
            if _numel(step) > size or (_numel(step) == size and any(s.kind != "reduction" for s in reducing)):
                return "reduction_epilogue"
    return (
        "into_reduction"
        if any(s.index < max(r.index for r in reducing) for s in steps if s not in reducing)
        else ("reduction_epilogue")
    )


def _border(flow: Flow, members: Iterable[int]) -> tuple[Values, Values]:
    """What a group reads that it did not make, and what of it is needed outside."""
    inside = frozenset(members)
    steps = [flow.steps[i] for i in sorted(inside)]
    entering = [(value, tensor) for s in steps for value, tensor in s.uses if flow.maker.get(value) not in inside]
    leaving = [(value, tensor) for s in steps for value, tensor in s.makes if flow.leaves(value, inside)]
    return entering, leaving


def moved_bytes(flow: Flow, members: Sequence[int]) -> tuple[int | None, int | None]:
    """(bytes that these steps move as kernels of their own, bytes that the fewest kernels for them would move)."""
    entering, leaving = _border(flow, members)
    # A matmul's tiles of an operand are no tiles of its result: an epilogue that needs it too reads it again.
    operands = [use for i in members if flow.steps[i].kind in _HEADS for use in flow.steps[i].uses]
    if operands:
        entering, _ = _border(flow, [i for i in members if flow.steps[i].kind not in _HEADS])
        results = {v for i in members for v, _ in flow.steps[i].makes}
        entering = [use for use in entering if use[0] not in results]
    total = sum_known(moved for i in sorted(members) for moved in op_bytes(flow.steps[i].op))
    more = second_pass(flow, members)
    sides = [regions_bytes(values) for values in (operands, entering, leaving)]
    return total, sum_known((*sides, 0 if more is None else more.again_bytes))


def _chain(flow: Flow, members: Sequence[int]) -> Chain:
    steps = [flow.steps[i] for i in sorted(members)]
    entering, leaving = _border(flow, members)
    total, minimum = moved_bytes(flow, members)
    more = second_pass(flow, members)
    return Chain(
        kind=_kind(steps),
        op_ids=tuple(s.op.id for s in steps),
        ops=tuple(s.op.name for s in steps),
        kernel_ids=tuple(k for s in steps for k in s.kernels),
        inputs=tuple(dict(entering).values()),
        outputs=tuple(dict(leaving).values()),
        global_bytes=total,
        minimum_bytes=minimum,
        location=_place(steps),
        phase=steps[0].op.phase,
        keeps_rows=_needed_outside(flow, steps),
        kernels=1 if more is None else more.kernels,
        largest_bytes=max((t.nbytes or 0 for s in steps for _, t in (*s.uses, *s.makes)), default=0),
    )


def _place(steps: Sequence[Step]) -> Location | None:
    """The line of the first op; of backward ops, that whose ops move most (each has the line of its forward op)."""
    placed = [s for s in steps if s.op.location is not None]
    if not placed or steps[0].op.phase != "backward":
        return placed[0].op.location if placed else None
    moved: dict[tuple[str, int], int] = {}
    for step in placed:
        at = step.op.location
        if at is not None:
            moved[at.file, at.line] = moved.get((at.file, at.line), 0) + (sum_known(op_bytes(step.op)) or 0)
    most = max(moved, key=lambda at: moved[at])
    return next(s.op.location for s in placed if s.op.location and (s.op.location.file, s.op.location.line) == most)


def chains(p: Pass, without: Set[int] = frozenset()) -> tuple[Chain, ...]:
    """Every group of two or more ops of the pass that one kernel could do, in order of execution.

    ``without``: ids of ops that something else speaks for.
    """
    flow = dataflow(p)
    left_out = {s.index for s in flow.steps if s.op.id in without}
    groups = _groups(flow, ancestors(flow), left_out)
    return tuple(sorted((_chain(flow, g.members) for g in groups), key=lambda c: c.op_ids[0]))


def narrowed(p: Pass, chain: Chain, without: Set[int]) -> Chain | None:
    """The chain without these ops (ids); ``None`` where less than two are left."""
    wanted = set(chain.op_ids) - without
    if len(wanted) == len(chain.op_ids):
        return chain
    flow = dataflow(p)
    members = [s.index for s in flow.steps if s.op.id in wanted]
    return _chain(flow, members) if len(members) > 1 else None
