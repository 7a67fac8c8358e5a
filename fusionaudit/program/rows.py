"""Reductions whose result goes back over the same data: in one kernel, in two, and what has to be read again."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fusionaudit.program.chip import Chip
from fusionaudit.program.dataflow import Flow, Step, Version, regions_bytes
from fusionaudit.program.op_kinds import OpKind
from fusionaudit.tensors import Tensor

REDUCING: frozenset[OpKind] = frozenset({"reduction", "softmax", "norm"})

ONE_BLOCK_ROW = 65536
"""Elements of a row that one block still reduces in one go: 1024 threads of 64 elements (Inductor's persistent and
looped reductions stay below that before it splits them)."""
FEW_ROWS = 32
"""With fewer rows than this a kernel of one block a row leaves most SMs empty, so Inductor splits the rows."""


@dataclass(frozen=True, kw_only=True)
class Size:
    """What a reduction reads and how many rows it makes of it; ``rows`` 0: not known."""

    elements: int
    rows: int
    nbytes: int
    chip: Chip

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
    return Size(elements=read, rows=rows, nbytes=(largest.nbytes or 0) if largest is not None else 0, chip=chip)


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

    Several statistics of a row are one pass (Welford, online softmax); using them on the row is another.
    """
    inside = frozenset(members)
    steps = [flow.steps[i] for i in sorted(inside)]
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
