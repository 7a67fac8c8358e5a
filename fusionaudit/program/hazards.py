"""Where one kernel in place of several would race: a thread overwrites what another thread has yet to read.

Threads of one kernel run in any order, so a kernel can overwrite memory that it reads only where the thread that
writes an element is the one that reads it. ``x[1:].add_(x[:-1] * 0.5)`` as one kernel is wrong: each element's
neighbour may be written before it is read.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from fusionaudit.program.costs import op_root
from fusionaudit.program.dataflow import Flow, Step, Version
from fusionaudit.program.op_kinds import JOIN, MOVING
from fusionaudit.tensors import Tensor, overlap

_Touch = tuple[int, Version, Tensor]
"""A step, the value that it reads or writes, and the view through which it does."""


def hazard(flow: Flow, members: Iterable[int]) -> bool:
    """One kernel for these steps would race on memory that one of them overwrites.

    It does not where all go over the memory in the same order: same views, and nothing in between that moves elements.
    """
    steps = [flow.steps[i] for i in sorted(members)]
    written = [(s.index, v, t) for s in steps for v, t in s.makes if _overwrites(flow, v)]
    if not written:
        return False
    storages = {v[0] for _, v, _ in written}
    touched: dict[str, list[_Touch]] = defaultdict(list)
    for step in steps:
        for value, tensor in (*step.uses, *step.makes):
            if value[0] in storages:
                touched[value[0]].append((step.index, value, tensor))
    in_order: bool | None = None
    for writer, value, target in written:
        for other, touch, tensor in touched[value[0]]:
            if other == writer or (tensor.order == target.order and touch[1] >= value[1]):
                continue  # what it wrote stays with the thread
            if not overlap(target, tensor):
                continue
            if touch[1] >= value[1] and _same_elements(tensor, target):
                continue
            if tensor.order != target.order:
                return True
            if in_order is None:
                in_order = _in_order(flow, steps)
            if not in_order or not (_whole(flow.steps[other], tensor) and _whole(flow.steps[writer], target)):
                return True
    return False


def protects(flow: Flow, step: Step) -> bool:
    """The step keeps a copy of a value that is overwritten before the copy is read, or by whom reads it."""
    for value, source in step.uses:
        overwriting = [
            s for s in flow.steps[step.index + 1 :] for v, t in s.makes if v[0] == value[0] and overlap(t, source)
        ]
        last = max((r for made, _ in step.makes for r in flow.readers.get(made, ())), default=step.index)
        for writer in overwriting:
            if writer.index < last or (writer.index == last and hazard(flow, (step.index, last))):
                return True
    return False


def _overwrites(flow: Flow, value: Version) -> bool:
    return value[1] > 1 or value[0] in flow.carried


def _same_elements(a: Tensor, b: Tensor) -> bool:
    return (a.offset, a.stored_elements, a.dtype) == (b.offset, b.stored_elements, b.dtype)


def _whole(step: Step, tensor: Tensor) -> bool:
    """Each element of the tensor is for one element of the step (or for the row that a block has to itself)."""
    if step.kind in ("matmul", "convolution"):
        return False
    return tensor.numel == max(t.numel for _, t in (*step.uses, *step.makes))


def _in_order(flow: Flow, steps: list[Step]) -> bool:
    """Element i of each step comes from element i of the steps before it (a row's reduction belongs to its row)."""
    made = {v: t for s in steps for v, t in s.makes}
    if any(op_root(s.op) in MOVING | JOIN for s in steps):
        return False
    return all(v not in made or made[v].order == t.order for s in steps for v, t in s.uses)
