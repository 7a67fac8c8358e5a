"""Loops in a step: the same work for each parameter, or for each time step (each turn waits for the last)."""

from __future__ import annotations

import statistics
from collections import defaultdict
from dataclasses import dataclass

from fusionaudit.config import Config
from fusionaudit.findings import Location
from fusionaudit.program.costs import category, op_kind
from fusionaudit.program.dataflow import dataflow
from fusionaudit.program.model import Pass, Program
from fusionaudit.rules.judging import kernel_ns
from fusionaudit.trace.schema import Op

_MANY_PARAMETERS = 4
"""Parameters from which a per-parameter loop is one: below, foreach saves less than its own set-up."""
_LOOPED = {"pointwise", "cast", "copy", "fill", "random", "reduction"}


@dataclass(frozen=True, kw_only=True)
class Loop:
    """Ops of one loop: ``kind`` parameters or recurrence, how many turns, and the ops of the whole loop in order."""

    kind: str
    turns: int
    ops: tuple[Op, ...]
    names: tuple[str, ...]
    location: Location | None
    phase: str


_memo: list[tuple[Pass, Config, tuple[Loop, ...]]] = []


def loops(program: Program, p: Pass, config: Config) -> tuple[Loop, ...]:
    """All loops of the pass; worked out once for all rules that ask."""
    for known, with_config, found in _memo:
        if known is p and with_config == config:
            return found
    result = (*parameter_loops(p), *recurrences(program, p, config))
    _memo.append((p, config, result))
    del _memo[:-8]
    return result


def claimed_ops(program: Program, p: Pass, config: Config) -> frozenset[int]:
    """Ids of ops that a loop finding speaks for, so that chain rules need not."""
    return frozenset(op.id for loop in loops(program, p, config) for op in loop.ops)


def parameter_loops(p: Pass) -> tuple[Loop, ...]:
    """Elementwise and norm work done tensor by tensor: in an optimizer, in place on parameters, or on gradients.

    Grouped by line; the same op has to run on several storages that no forward op of this step wrote (so an in-place
    activation in each layer is none).
    """
    by_line: dict[tuple[object, ...], list[Op]] = defaultdict(list)
    activations: set[str] = set()
    gradients: set[str] = set()
    for op in p.ops:
        if category(op) is None:
            continue
        if op.phase == "backward":
            gradients.update(t.storage for t in op.outputs if t.storage is not None)
            continue
        target = op.inputs[0].storage if op.inputs else None
        kind = op_kind(op)
        optimizer = op.phase == "optimizer"
        updates = 0 in op.mutated and target is not None and target not in activations
        measures = kind == "reduction" and target is not None and target not in activations
        on_gradient = target in gradients
        if on_gradient:
            # What is made from a gradient (its absolute values, say) goes on being per-parameter work.
            gradients.update(t.storage for t in op.outputs if t.storage is not None)
        if kind in _LOOPED and (optimizer or updates or measures or on_gradient):
            where = op.location and (op.location.file, op.location.line)
            by_line[(op.phase, where)].append(op)
        if op.phase == "forward" and not on_gradient:
            activations.update(t.storage for t in op.outputs if t.storage is not None and t.storage != target)
    out = []
    for (phase, _), ops in by_line.items():
        touched: dict[str, set[str]] = defaultdict(set)
        for op in ops:
            for tensor in op.inputs[:1]:
                if tensor.storage is not None and tensor.numel > 1:
                    touched[op.name].add(tensor.storage)
        least = _MANY_PARAMETERS if phase == "optimizer" else 2 * _MANY_PARAMETERS
        looped = {name for name, storages in touched.items() if len(storages) >= least}
        mine = tuple(op for op in ops if op.name in looped)
        if not mine:
            continue
        out.append(
            Loop(
                kind="parameters",
                turns=max(len(touched[name]) for name in looped),
                ops=mine,
                names=tuple(dict.fromkeys(op.name for op in mine)),
                location=mine[0].location,
                phase=str(phase),
            )
        )
    return tuple(out)


def _loop_key(op: Op) -> tuple[object, ...]:
    where = op.location and (op.location.file, op.location.line)
    return (op.name, where, tuple(t.shape for t in op.outputs), op.phase)


def _is_sum(op: Op) -> bool:
    """Numbers that are added up one by one carry no state worth a kernel of their own."""
    return all(t.numel <= 1 for t in op.outputs)


def recurrences(program: Program, p: Pass, config: Config) -> tuple[Loop, ...]:
    """The same small op from one line again and again, each depending on the one before (an RNN as a Python loop)."""
    flow = dataflow(p)
    kernels = {k.id: k for k in p.kernels}
    by_key: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for step in flow.steps:
        by_key[_loop_key(step.op)].append(step.index)
    often = {
        key: None
        for key, indices in by_key.items()
        if len(indices) >= config.thresholds.loop_repeats and not _is_sum(flow.steps[indices[0]].op)
    }
    if not often:
        return ()
    # For each op, how many runs of each op that runs often its inputs depend on in a row.
    depth: dict[int, int] = {}
    carried: list[dict[tuple[object, ...], int]] = []
    for step in flow.steps:
        key = _loop_key(step.op)
        before: dict[tuple[object, ...], int] = {}
        for value, _ in step.uses:
            maker = flow.maker.get(value)
            if maker is not None:
                for k, n in carried[maker].items():
                    before[k] = max(before.get(k, 0), n)
        if key in often:
            before[key] = before.get(key, 0) + 1
            depth[step.index] = before[key]
        carried.append(before)
    in_loop: dict[tuple[object, ...], list[int]] = defaultdict(list)
    turns: dict[tuple[object, ...], int] = {}
    for key in often:
        indices = by_key[key]
        longest = max(depth[i] for i in indices)
        times = [kernel_ns(kernels[k], program.device) for i in indices for k in flow.steps[i].kernels]
        known = [t for t in times if t is not None]
        if longest < config.thresholds.loop_repeats or not known:
            continue
        if statistics.median(known) > config.thresholds.small_kernel_ns:
            continue
        group: tuple[object, ...] = (key[3],)
        in_loop[group].extend(indices)
        turns[group] = max(turns.get(group, 0), longest)
    # Work of each turn that does not depend on the last turn (projections of the input) belongs to the loop as well.
    out = []
    for group, indices in in_loop.items():
        files = {s.op.location.file for s in (flow.steps[i] for i in indices) if s.op.location is not None}
        lines = [s.op.location.line for s in (flow.steps[i] for i in indices) if s.op.location is not None]
        parameters = {
            value[0]
            for s in flow.steps
            if s.op.phase == group[0] and _within(s.op, files, lines)
            for value, tensor in s.uses
            if tensor.is_parameter
        }
        if len(parameters) >= turns[group]:
            # Each turn has weights of its own: layers of a model, which no persistent kernel keeps on the chip.
            continue
        extra = [
            i
            for key, found in by_key.items()
            for i in found
            if key[3] == group[0] and len(found) >= turns[group] and _within(flow.steps[i].op, files, lines)
        ]
        members = sorted(set(indices) | set(extra))
        ops = tuple(flow.steps[i].op for i in members)
        out.append(
            Loop(
                kind="recurrence",
                turns=turns[group],
                ops=ops,
                names=tuple(dict.fromkeys(op.name for op in ops)),
                location=flow.steps[min(indices)].op.location,
                phase=str(group[0]),
            )
        )
    return tuple(out)


def _within(op: Op, files: set[str], lines: list[int]) -> bool:
    place = op.location
    return place is not None and place.file in files and min(lines) - 3 <= place.line <= max(lines) + 3
