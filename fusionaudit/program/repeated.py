"""Which ops of a step every step of the recording holds again, with the same arguments."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from fusionaudit.tensors import Tensor
from fusionaudit.trace.schema import Op, OpLog


def _place(op: Op) -> tuple[object, ...]:
    return op.name, op.location, op.phase, tuple(t.device for t in op.outputs)


def _layouts(tensors: Iterable[Tensor]) -> list[tuple[object, ...]]:
    return [(t.shape, t.strides, t.offset, t.dtype, t.device) for t in tensors]


def _given(op: Op) -> tuple[object, ...]:
    """All that an op was given but the values in its tensors: scalars, sizes, and which part of a storage it reads."""
    return op.arguments, _layouts(op.inputs), _layouts(op.outputs)


def repeated_ops(step: Iterable[Op], oplog: OpLog | None) -> frozenset[int]:
    """Ids of the step's ops whose arguments are the same in all steps that the log holds, at least in two.

    A line runs an op n times in the step: then its every n-th execution in the whole log is the same one of another
    step. Scalars that change (a timestep), sizes that grow and ops that ran in one step alone are not repeated.
    """
    if oplog is None:
        return frozenset()
    mine: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for op in step:
        mine[_place(op)].append(op.id)
    every: dict[tuple[object, ...], list[Op]] = defaultdict(list)
    for record in oplog.records:
        if isinstance(record, Op) and _place(record) in mine:
            every[_place(record)].append(record)
    out: set[int] = set()
    for place, ids in mine.items():
        turns, wanted = len(ids), set(ids)
        for turn in range(turns):
            same = every[place][turn::turns]
            if len(same) > 1 and all(_given(op) == _given(same[0]) for op in same[1:]):
                out.update(wanted & {op.id for op in same})
    return frozenset(out)
