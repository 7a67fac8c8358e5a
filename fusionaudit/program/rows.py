"""Reductions whose result goes back over the same data: in one kernel, in two, and what has to be read again."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fusionaudit.program.chip import Chip
from fusionaudit.program.costs import op_root, sum_known
from fusionaudit.program.dataflow import Flow, Step, Version, regions_bytes
from fusionaudit.program.op_kinds import OpKind
from fusionaudit.tensors import Tensor
from fusionaudit.trace.schema import Op

REDUCING: frozenset[OpKind] = frozenset({"reduction", "softmax", "norm"})

ONE_BLOCK_ROW = 65536
"""Elements of a row that one block still reduces in one go: 1024 threads of 64 elements (Inductor's persistent and
looped reductions stay below that before it splits them)."""
FEW_ROWS = 32
"""With fewer rows than this a kernel of one block a row leaves most SMs empty, so Inductor splits the rows."""


@dataclass(frozen=True, kw_only=True)
class Size:
    """What a reduction reads and how many rows it makes of it; ``rows`` 0: not known.

    ``axes``: which elements of memory make a row (:func:`axes_of`); ``None``: not known.
    """

    elements: int
    rows: int
    nbytes: int
    chip: Chip
    axes: tuple[object, ...] | None = None

    def same_rows(self, other: Size) -> bool:
        """One kernel can reduce both: the rows of one matrix and its columns take two, though as many."""
        alike = (self.elements, self.rows) == (other.elements, other.rows)
        return alike and (self.axes is None or other.axes is None or self.axes == other.axes)

    @property
    def one_kernel(self) -> bool:
        """A row's result can be used on the row in the same kernel: rows fit a block, or there are enough of them."""
        return self.rows <= 0 or self.rows >= FEW_ROWS or self.elements <= ONE_BLOCK_ROW

    @property
    def stays(self) -> bool:
        """One kernel finds the row on the chip when it goes over it again."""
        if self.rows <= 0:
            return True
        row = self.nbytes // self.rows
        return self.one_kernel and (
            row <= self.chip.block_bytes or row * min(self.rows, self.chip.sms) <= self.chip.l2_bytes
        )


def row_size(step: Step, chip: Chip) -> Size | None:
    """The size of a reducing step on a chip; a library norm's rows are its statistics."""
    if step.kind not in REDUCING:
        return None
    largest = max((t for _, t in step.uses), key=lambda t: t.numel, default=None)
    read = 0 if largest is None else largest.numel
    made = [t.numel for _, t in step.makes]
    smaller = [n for n in made if n < read]
    rows = max(made, default=0) if step.kind == "reduction" else max(smaller, default=0)
    if _is_backward(step) and len(step.op.inputs) > _STATISTICS and read in made:
        rows = step.op.inputs[_STATISTICS].numel
    return Size(
        elements=read,
        rows=rows,
        nbytes=(largest.nbytes or 0) if largest is not None else 0,
        chip=chip,
        axes=None if largest is None else _axes(step, largest, rows),
    )


_STATISTICS = 2
"""Of the tensors of a norm's backward, the first that has one number a row: after the gradient and the input."""


def _is_backward(step: Step) -> bool:
    return step.kind == "norm" and op_root(step.op).endswith("_backward")


def _axes(step: Step, source: Tensor, rows: int) -> tuple[object, ...] | None:
    rank = len(source.shape)
    if step.kind == "norm":
        if "batch_norm" in op_root(step.op):
            return axes_of(source, [d for d in range(rank) if d != 1])
        whole = any(t.numel == source.numel for _, t in step.makes)  # else gradients of weights: columns
        return (source.numel // rows, 1 if whole else rows) if rows else None
    if step.kind == "softmax":
        dim = next((a for a in step.op.arguments if isinstance(a, int) and not isinstance(a, bool)), None)
        return None if dim is None else axes_of(source, [dim])
    dims = reduced_dims(step.op)
    if dims is None and rows == 1:
        dims = list(range(rank))
    if dims is None:
        kept = next((t.shape for _, t in step.makes if len(t.shape) == rank), None)
        dims = None if kept is None else [d for d in range(rank) if kept[d] == 1]
    return None if dims is None else axes_of(source, dims)


def reduced_dims(op: Op) -> list[int] | None:
    """Of a reduction; ``None``: all, or not recorded."""
    given = op.arguments[1:]
    dims = next((a for a in given if isinstance(a, list)), None)
    if dims is None and op_root(op) in ("max", "min"):
        dims = [a for a in given[:1] if isinstance(a, int)]
    return dims if dims and all(isinstance(d, int) for d in dims) else None


def axes_of(source: Tensor, dims: Sequence[int]) -> tuple[object, ...]:
    """Which elements of memory make a row, the same for all views of one tensor: its length, and what lies within."""
    if not source.shape or any(not -len(source.shape) <= d < len(source.shape) for d in dims):
        return ()
    reduced = {d % len(source.shape) for d in dims}
    order = [d for d, n in enumerate(source.shape) if n > 1]
    if all(source.strides[d] for d in order):  # what is repeated has no place in memory
        order.sort(key=lambda d: -source.strides[d])
    runs = [
        (within, math.prod(source.shape[d] for d in found))
        for within, found in itertools.groupby(order, key=lambda d: d in reduced)
    ]
    lengths = [i for i, (within, _) in enumerate(runs) if within]
    if len(lengths) != 1:
        return tuple(runs)
    return (runs[lengths[0]][1], math.prod(size for _, size in runs[lengths[0] + 1 :]))


Values = list[tuple[Version, Tensor]]


@dataclass(frozen=True, kw_only=True)
class SecondPass:
    """Work of a group that starts once its rows are reduced, over rows that are no longer on the chip.

    ``again_bytes`` has to be read (or kept and read) for it a second time; ``kernels`` that the group takes at least.
    """

    kernels: int
    again_bytes: int | None


def second_pass(flow: Flow, members: Iterable[int]) -> SecondPass | None:
    """The second pass that a group cannot do without; ``None``: it goes over its rows once.

    Several statistics of a row are one pass (Welford, online softmax); using them on the row is another. So are the
    gradients of a norm's weights, which are sums over its columns, beside that of its input.
    """
    inside = frozenset(members)
    steps = [flow.steps[i] for i in sorted(inside)]
    columns = [s for s in steps if _has_columns(s)]
    if columns:
        return SecondPass(kernels=2, again_bytes=sum_known(_columns_again(flow, inside, s) for s in columns))
    found = {s.index: row_size(s, flow.chip) for s in steps if s.kind == "reduction"}
    sizes = {i: size for i, size in found.items() if size is not None and not size.stays}
    behind: set[int] = set()
    for step in steps:
        for value, tensor in step.uses:
            maker = flow.maker.get(value)
            back = maker in sizes and max((t.numel for _, t in step.makes), default=0) > tensor.numel
            if maker in behind or back:
                behind.add(step.index)
    # What a reduction still waits for belongs to the first pass.
    for step in reversed(steps):
        readers = [r for v, _ in step.makes for r in flow.readers.get(v, ()) if r in inside]
        if step.kind in REDUCING or any(r not in behind for r in readers):
            behind.discard(step.index)
    if not behind:
        return None
    kernels = 1 if all(size.one_kernel for size in sizes.values()) else 2
    kept, again = _crossing(flow, inside, behind)
    choices = [b for b in (kept, again) if b is not None]
    return SecondPass(kernels=kernels, again_bytes=min(choices) if choices else None)


def _has_columns(step: Step) -> bool:
    """A norm's backward that sums over rows (for its input) and over columns (for its weights)."""
    if not _is_backward(step) or "batch_norm" in op_root(step.op):
        return False
    largest = max((t.numel for _, t in step.uses), default=0)
    return len({t.numel == largest for _, t in step.makes}) == 2


def _columns_again(flow: Flow, inside: frozenset[int], step: Step) -> int | None:
    """Bytes for the columns beyond what the library's kernel for them reads as well: what the group makes of its
    operands is made again, or kept."""
    largest = max((t.numel for _, t in step.uses), default=0)
    operands = [(v, t) for v, t in step.uses if t.numel == largest]
    made = [(v, t) for v, t in operands if flow.maker.get(v) in inside]
    entering: Values = []
    pending, seen = [v for v, _ in made], {v for v, _ in operands}
    while pending:
        for value, tensor in flow.steps[flow.maker[pending.pop()]].uses:
            if value in seen:
                continue
            seen.add(value)
            maker = flow.maker.get(value)
            if maker in inside and flow.steps[maker].kind not in REDUCING:
                pending.append(value)
            else:
                entering.append((value, tensor))
    kept = regions_bytes([(v, t) for v, t in made if not flow.leaves(v, inside)])
    read, again = regions_bytes(made), regions_bytes(entering)
    return None if kept is None or read is None or again is None else max(0, min(kept, again - read))


def _crossing(flow: Flow, inside: frozenset[int], behind: set[int]) -> tuple[int | None, int | None]:
    """Bytes beyond one pass where the second reads values that the first keeps, and where it makes them again."""
    first = inside - behind
    entered = {v for i in first for v, _ in flow.steps[i].uses if flow.maker.get(v) not in inside}
    keep: Values = []
    remake: Values = []
    pending = sorted(behind)
    seen = set(pending)
    while pending:
        step = flow.steps[pending.pop()]
        for value, tensor in step.uses:
            maker = flow.maker.get(value)
            if maker not in inside:
                remake += [(value, tensor)] if value in entered else []
                if step.index in behind:
                    keep += [(value, tensor)] if value in entered else []
            elif maker in first:
                if step.index in behind:
                    keep.append((value, tensor))
                if flow.steps[maker].kind in REDUCING:
                    remake.append((value, tensor))
                elif maker not in seen:
                    seen.add(maker)
                    pending.append(maker)
    # A value that is needed later is written in any case: it is only read again.
    written = [(v, t) for v, t in keep if flow.maker.get(v) in first and not flow.leaves(v, inside)]
    read, wrote, again = regions_bytes(keep), regions_bytes(written), regions_bytes(remake)
    return (None if read is None or wrote is None else read + wrote), again
