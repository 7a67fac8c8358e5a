"""Where one kernel in place of several would race: a thread overwrites what another thread has yet to read.

Threads of one kernel run in any order, so a kernel can overwrite memory that it reads only where the thread that
writes an element is the one that reads it. ``x[1:].add_(x[:-1] * 0.5)`` as one kernel is wrong: each element's
neighbour may be written before it is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fusionaudit.program.costs import op_root
from fusionaudit.program.dataflow import Flow, Step, Version
from fusionaudit.program.op_kinds import JOIN, MOVING
from fusionaudit.tensors import Tensor, overlap


@dataclass(frozen=True, kw_only=True)
class _View:
    """How a group of steps uses one view of a storage that is overwritten in the pass.

    ``oldest``: the first version that it reads or writes; ``written``: the last that it writes over an older one
    (0: none); ``whole``: no step uses an element of it for several of its own.
    """

    tensor: Tensor
    oldest: int
    written: int
    whole: bool


@dataclass(frozen=True, kw_only=True)
class Touches:
    """The views of overwritten storages that a group of steps uses, by storage and order of elements.

    ``in_order``: element i of each step comes from element i of the steps before it (a row's reduction belongs to its
    row).
    """

    views: dict[str, dict[object, _View]]
    in_order: bool


def touches(flow: Flow, step: Step) -> Touches:
    """Those of one step."""
    views: dict[str, dict[object, _View]] = {}
    largest = max((t.numel for _, t in (*step.uses, *step.makes)), default=0)
    for writes, found in ((False, step.uses), (True, step.makes)):
        for (storage, number), tensor in found:
            if storage not in flow.overwritten:
                continue
            over = writes and (number > 1 or storage in flow.carried)
            # A matmul uses each element many times; a row that a block has to itself it may overwrite.
            whole = tensor.numel == largest and step.kind not in ("matmul", "convolution")
            view = _View(tensor=tensor, oldest=number, written=number if over else 0, whole=whole)
            _add(views.setdefault(storage, {}), view)
    return Touches(views=views, in_order=op_root(step.op) not in MOVING | JOIN)


def _add(views: dict[object, _View], view: _View) -> None:
    key = (view.tensor.order, view.tensor.dtype)
    old = views.get(key)
    if old is not None:
        view = _View(
            tensor=old.tensor,
            oldest=min(old.oldest, view.oldest),
            written=max(old.written, view.written),
            whole=old.whole and view.whole,
        )
    views[key] = view


def together(
    flow: Flow, first: Touches, members: Sequence[int], second: Touches, others: Sequence[int]
) -> Touches | None:
    """Those of two groups of steps as one kernel; ``None``: it would race on memory that one of them overwrites.

    It does not where all go over the memory in the same order: same views, and nothing in between that moves elements.
    """
    in_order = first.in_order and second.in_order and _in_order(flow, members, others)
    views = dict(first.views)
    for storage, mine in second.views.items():
        theirs = views.get(storage)
        if theirs is None:
            views[storage] = mine
            continue
        pairs = [(a, b) for a in mine.values() for b in theirs.values()]
        if any(_race(a, b, in_order) or _race(b, a, in_order) for a, b in pairs):
            return None
        merged = dict(theirs)
        for view in mine.values():
            _add(merged, view)
        views[storage] = merged
    return Touches(views=views, in_order=in_order)


def hazard(flow: Flow, members: Iterable[int]) -> bool:
    """One kernel for these steps would race on memory that one of them overwrites."""
    found: Touches | None = None
    done: list[int] = []
    for i in sorted(members):
        own = touches(flow, flow.steps[i])
        found = own if found is None else together(flow, found, done, own, [i])
        if found is None:
            return True
        done.append(i)
    return False


def _race(writer: _View, other: _View, in_order: bool) -> bool:
    if not writer.written or not overlap(writer.tensor, other.tensor):
        return False
    newer = other.oldest >= writer.written
    if writer.tensor.order != other.tensor.order:
        # A later reader of just these elements takes them from the writer's registers.
        return not (newer and _same_elements(writer.tensor, other.tensor))
    return not newer and not (in_order and writer.whole and other.whole)


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


def _same_elements(a: Tensor, b: Tensor) -> bool:
    return (a.offset, a.stored_elements, a.dtype) == (b.offset, b.stored_elements, b.dtype)


def _in_order(flow: Flow, members: Sequence[int], others: Sequence[int]) -> bool:
    """What one group makes and the other reads, it reads in the order in which it was made."""
    few, many = sorted((members, others), key=len)
    there = frozenset(many) if len(few) > 1 else many
    for i in few:
        step = flow.steps[i]
        for value, tensor in step.uses:
            maker = flow.maker.get(value)
            if maker is not None and maker in there and _made(flow.steps[maker], value).order != tensor.order:
                return False
        for value, tensor in step.makes:
            for reader in flow.readers.get(value, ()):
                if reader in there and any(v == value and t.order != tensor.order for v, t in flow.steps[reader].uses):
                    return False
    return True


def _made(step: Step, value: Version) -> Tensor:
    return next(t for v, t in step.makes if v == value)
