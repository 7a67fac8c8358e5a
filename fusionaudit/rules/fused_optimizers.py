"""Foreach chains that one fused kernel does, from dataflow: of torch's optimizers (``fused=True``) and by hand."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from fusionaudit.findings import Location
from fusionaudit.program.chains import moved_bytes
from fusionaudit.program.costs import op_kind, op_root
from fusionaudit.program.dataflow import dataflow
from fusionaudit.program.launches import multi_tensor_launches
from fusionaudit.program.model import Pass, Program
from fusionaudit.rules.library_ops import has_fused
from fusionaudit.trace.schema import Op

_DTYPES = {"float64", "float32", "float16", "bfloat16"}
"""What the fused kernels take."""

_WHOLE = {"_foreach_norm", "_foreach_max", "_foreach_powsum"}
"""They reduce whole tensors."""


@dataclass(frozen=True, kw_only=True)
class ForeachStep:
    """All foreach calls of an optimizer's ``step`` at one line, or of an update by hand in one function, in one step of
    the program.

    ``calls`` is how many fused calls do the same (one for each group of parameters and dtype), ``launches`` the
    kernels that these launch.
    """

    ops: tuple[Op, ...]
    location: Location
    by_hand: bool
    tensors: int
    calls: int
    launches: int
    global_bytes: int | None
    minimum_bytes: int | None


def foreach_steps(program: Program, p: Pass) -> list[ForeachStep]:
    """The updates in a pass that go in foreach kernels and have a fused form."""
    version = str(program.environment.get("torch", ""))
    by_line: dict[tuple[object, ...], list[Op]] = defaultdict(list)
    by_hand: dict[tuple[object, ...], list[Op]] = defaultdict(list)
    waits = 0
    for op in p.ops:
        where = op.location
        if where is None or op_kind(op) != "foreach":
            continue
        if has_fused(where.library, version):
            by_line[(where.file, where.line, where.library)].append(op)
        elif where.library is None and op_root(op) in _WHOLE:
            waits += 1  # what follows a norm may need all of it
        elif where.library is None:
            by_hand[(where.file, where.function, op.phase, waits)].append(op)
    found = [_foreach_step(p, ops) for ops in by_line.values()]
    found += [_foreach_step(p, ops, by_hand=True) for ops in by_hand.values()]
    return [step for step in found if step is not None]


def _foreach_step(p: Pass, ops: list[Op], *, by_hand: bool = False) -> ForeachStep | None:
    calls = [call for call in _calls(ops) if len(call) > 1 and call[-1].mutated]
    taken = {op.id for call in calls for op in call}
    if any(t.dtype not in _DTYPES for call in calls for op in call for t in op.inputs):
        return None
    flow = dataflow(p)
    index = {step.op.id: step.index for step in flow.steps}
    total: int | None = 0
    minimum: int | None = 0
    launches = 0
    for call in calls:
        now, least = moved_bytes(flow, [index[op.id] for op in call if op.id in index])
        total = None if total is None or now is None else total + now
        minimum = None if minimum is None or least is None else minimum + least
        updated = [call[-1].inputs[i] for i in call[-1].mutated]
        lists = len({t.storage for op in call for t in op.inputs if t.numel > 1} - _made(call))
        launches += multi_tensor_launches([t.numel for t in updated], round(lists / max(1, len(updated))))
    if not calls:
        return None
    mine = tuple(op for op in ops if op.id in taken or not _large(op))
    return ForeachStep(
        ops=mine,
        by_hand=by_hand,
        location=next(op.location for op in mine if op.location is not None),
        tensors=sum(len(call[-1].mutated) for call in calls),
        calls=len(calls),
        launches=launches,
        global_bytes=total,
        minimum_bytes=minimum,
    )


def _made(call: list[Op]) -> set[str | None]:
    """Storages of results in between (roots, bias-corrected moments)."""
    return {t.storage for op in call for t in op.outputs}


def _large(op: Op) -> list[str]:
    """Storages of its tensors; numbers (step counters, bias corrections) tie no two groups together."""
    return [t.storage for t in (*op.inputs, *op.outputs) if t.storage is not None and t.numel > 1]


def _calls(ops: list[Op]) -> list[list[Op]]:
    """The ops of each group of tensors; where the optimizer runs again, its ops are a call of their own.

    It does where a parameter or a state is updated by the same op once more, which no optimizer does in one step.
    """
    home: dict[str, int] = {}
    members: dict[int, list[Op]] = {}
    for number, op in enumerate(ops):
        storages = _large(op)
        if not storages:
            continue
        joined = [op]
        for root in sorted({home[s] for s in storages if s in home}):
            joined = members.pop(root) + joined
        members[number] = joined
        home.update({s: number for one in joined for s in _large(one)})
    out: list[list[Op]] = []
    for group in members.values():
        between = _made(group)
        seen: set[tuple[str, str | None]] = set()
        call: list[Op] = []
        for op in sorted(group, key=lambda o: o.id):
            updated = {(op.name, op.inputs[i].storage) for i in op.mutated} - {(op.name, s) for s in between}
            if updated & seen:
                out.append(call)
                seen, call = set(), []
            seen |= updated
            call.append(op)
        out.append(call)
    return out
