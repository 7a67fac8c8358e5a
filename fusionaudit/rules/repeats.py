"""Loops in a step: the same work for each parameter, or for each time step (each turn waits for the last)."""

from __future__ import annotations

import bisect
import itertools
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, replace

from fusionaudit.config import Config
from fusionaudit.findings import Location
from fusionaudit.program.costs import category, op_kind
from fusionaudit.program.dataflow import dataflow
from fusionaudit.program.model import Pass, Program
from fusionaudit.program.periods import best_repeat
from fusionaudit.rules.averages import is_average
from fusionaudit.rules.judging import kernel_ns
from fusionaudit.trace.schema import Op

_MANY_PARAMETERS = 4
"""Parameters from which a per-parameter loop is one: below, foreach saves less than its own set-up."""
_LOOPED = {"pointwise", "cast", "copy", "fill", "random", "reduction"}


@dataclass(frozen=True, kw_only=True)
class Loop:
    """Ops of one loop: ``kind`` parameters or recurrence, how many turns, and the ops of the whole loop in order.

    ``gradients``: it reads gradients of this step (``None``: no backward was recorded); ``writes``: the storages that
    it updates in place, gradients apart.
    """

    kind: str
    turns: int
    ops: tuple[Op, ...]
    names: tuple[str, ...]
    location: Location | None
    phase: str
    gradients: bool | None = None
    writes: frozenset[str] = frozenset()


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

    Grouped by line, and lines that take turns together; the same op has to run on several storages that no forward op
    of this step wrote (so an in-place activation in each layer is none).
    """
    by_line: dict[tuple[object, ...], list[Op]] = defaultdict(list)
    simple: list[Op] = []
    heavy: list[int] = []
    activations: set[str] = set()
    gradients: set[str] = set()
    from_gradient: set[int] = set()
    backward: set[str] = set()
    for op in p.ops:
        if category(op) is None:
            continue
        if op.phase == "backward":
            gradients.update(t.storage for t in op.outputs if t.storage is not None)
            backward.update(t.storage for t in op.outputs if t.storage is not None)
            continue
        target = op.inputs[0].storage if op.inputs else None
        kind = op_kind(op)
        optimizer = op.phase == "optimizer"
        updates = 0 in op.mutated and target is not None and target not in activations
        measures = kind == "reduction" and target is not None and target not in activations
        on_gradient = kind in _LOOPED and any(t.storage in gradients for t in op.inputs)
        if on_gradient:
            from_gradient.add(op.id)
            # What is made from a gradient (its absolute values, say) goes on being per-parameter work.
            gradients.update(t.storage for t in op.outputs if t.storage is not None and not op.mutated)
        where: tuple[object, ...] = (op.phase, op.location and (op.location.file, op.location.line))
        if kind in ("matmul", "convolution", "attention"):
            heavy.append(op.id)
        elif kind in _LOOPED:
            simple.append(op)
            if optimizer or updates or measures or on_gradient:
                by_line[where].append(op)
        if op.phase == "forward" and not on_gradient:
            activations.update(t.storage for t in op.outputs if t.storage is not None and t.storage != target)
    found: list[Loop] = []
    for place, ops in by_line.items():
        touched: dict[str, set[str]] = defaultdict(set)
        for op in ops:
            for tensor in op.inputs[:1]:
                if tensor.storage is not None and tensor.numel > 1:
                    touched[op.name].add(tensor.storage)
        least = _MANY_PARAMETERS if place[0] == "optimizer" else 2 * _MANY_PARAMETERS
        looped = {name for name, storages in touched.items() if len(storages) >= least}
        own = [op for op in ops if op.name in looped]
        if own:
            loop = _parameter_loop(own, statistics.mode(len(touched[n]) for n in touched if n in looped))
            if place[0] == "optimizer" or not _of_layers(loop, heavy):
                found.append(loop)
    out = []
    for loop in _taking_turns(found, from_gradient):
        whole = _with_feeding(loop, simple, heavy)
        reads = any(op.id in from_gradient for op in whole.ops) if backward else None
        out.append(replace(whole, gradients=reads, writes=whole.writes - backward))
    return tuple(out)


def _of_layers(loop: Loop, heavy: Sequence[int]) -> bool:
    """Its turns are the layers of a model (running statistics, caches): matrix products run between them."""
    ids = [op.id for op in loop.ops]
    gaps = sum(bisect.bisect_left(heavy, a) < bisect.bisect_left(heavy, b) for a, b in itertools.pairwise(ids))
    return 2 * gaps >= loop.turns


def _with_feeding(loop: Loop, simple: Sequence[Op], heavy: Sequence[int]) -> Loop:
    """With the ops of its turns that make what these read: ``e.copy_(d * e + (1 - d) * p)``, Adam's roots.

    Where nothing but elementwise work runs in the meantime: layers of a model are no turns of a loop.
    """
    first, last = loop.ops[0].id, loop.ops[-1].id
    if any(first < i < last for i in heavy):
        return loop
    members = {op.id for op in loop.ops}
    wanted = {t.storage for op in loop.ops for t in op.inputs if t.numel > 1}
    for op in reversed([op for op in simple if first - len(members) <= op.id <= last and op.phase == loop.phase]):
        if op.id in members or (_near(op, loop) and any(t.storage in wanted and t.numel > 1 for t in op.outputs)):
            members.add(op.id)
            wanted.update(t.storage for t in op.inputs)
    ops = [op for op in simple if op.id in members]
    return loop if len(ops) == len(loop.ops) else _parameter_loop(ops, loop.turns)


def _near(op: Op, loop: Loop) -> bool:
    """In the function of the loop, on its lines or between them."""
    places = [o.location for o in loop.ops if o.location is not None]
    at = op.location
    if at is None or not places or (at.file, at.function) != (places[0].file, places[0].function):
        return False
    lines = [place.line for place in places]
    return min(lines) <= at.line <= max(lines)


def _parameter_loop(ops: Sequence[Op], turns: int) -> Loop:
    return Loop(
        kind="parameters",
        turns=turns,
        ops=tuple(ops),
        names=tuple(dict.fromkeys(op.name for op in ops)),
        location=ops[0].location,
        phase=str(ops[0].phase),
        writes=frozenset(s for op in ops for i in op.mutated if (s := op.inputs[i].storage) is not None),
    )


def _taking_turns(found: list[Loop], from_gradient: Set[int]) -> Iterator[Loop]:
    """Loops of lines that run in turns are one loop over the same tensors; an average of what an update made is not."""
    together: list[Loop] = []
    for loop in sorted(found, key=lambda one: one.ops[0].id):
        if is_average(loop.ops) and not any(op.id in from_gradient for op in loop.ops):
            yield loop
            continue
        last = together[-1] if together else None
        function = loop.location and (loop.location.file, loop.location.function)
        same = last is not None and last.location and (last.location.file, last.location.function) == function
        if last is not None and same and last.phase == loop.phase and loop.ops[0].id < last.ops[-1].id:
            ops = sorted((*last.ops, *loop.ops), key=lambda op: op.id)
            together[-1] = _parameter_loop(ops, max(last.turns, loop.turns))
        else:
            together.append(loop)
    yield from together


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
    found: list[_Recurring] = []
    for key in often:
        indices = by_key[key]
        longest = max(depth[i] for i in indices)
        times = [kernel_ns(kernels[k], program.device) for i in indices for k in flow.steps[i].kernels]
        known = [t for t in times if t is not None]
        if longest < config.thresholds.loop_repeats or not known:
            continue
        if statistics.median(known) > config.thresholds.small_kernel_ns:
            continue
        found.append(_Recurring(indices=indices, turns=longest, phase=str(key[3])))
    whole = _loops_of(found)
    out = []
    for number, loop in enumerate(whole):
        turns = _turns([flow.steps[i].op for i in loop.indices], loop.turns)
        files = {s.op.location.file for s in (flow.steps[i] for i in loop.indices) if s.op.location is not None}
        lines = [s.op.location.line for s in (flow.steps[i] for i in loop.indices) if s.op.location is not None]
        parameters = {
            value[0]
            for s in flow.steps
            if s.op.phase == loop.phase
            and (loop.indices[0] <= s.index <= loop.indices[-1] or _within(s.op, files, lines))
            for value, tensor in s.uses
            if tensor.is_parameter
        }
        if len(parameters) >= turns - 1:
            # Each turn has weights of its own: layers or experts, which no persistent kernel keeps on the chip.
            continue
        # Work of each turn that does not depend on the last turn (projections of the input) belongs to the loop too.
        first = whole[number - 1].indices[-1] if number else -1
        last = whole[number + 1].indices[0] if number + 1 < len(whole) else len(flow.steps)
        extra = [
            i
            for key, same in by_key.items()
            for i in same
            if key[3] == loop.phase and len(same) >= turns and _within(flow.steps[i].op, files, lines)
        ]
        ops = tuple(flow.steps[i].op for i in sorted({*loop.indices, *(i for i in extra if first < i < last)}))
        out.append(
            Loop(
                kind="recurrence",
                turns=turns,
                ops=ops,
                names=tuple(dict.fromkeys(op.name for op in ops)),
                location=flow.steps[loop.indices[0]].op.location,
                phase=loop.phase,
            )
        )
    return tuple(out)


@dataclass(frozen=True, kw_only=True)
class _Recurring:
    """Steps (indices in order) of one loop, or of one op of it; ``turns``: how many in a row wait for each other."""

    indices: list[int]
    turns: int
    phase: str


def _loops_of(found: Sequence[_Recurring]) -> list[_Recurring]:
    """Ops that run in turns are one loop, of as many turns as its op that runs once in each."""
    out: list[_Recurring] = []
    for one in sorted(found, key=lambda r: r.indices[0]):
        last = out[-1] if out else None
        if last is None or last.phase != one.phase or one.indices[0] > last.indices[-1]:
            out.append(one)
            continue
        indices = sorted(last.indices + one.indices)
        out[-1] = replace(last, indices=indices, turns=min(last.turns, one.turns))
    return out


def _turns(ops: Sequence[Op], most: int) -> int:
    """Turns of a loop of these ops, where each may run several times in a turn (``x * a * b``): its period tells them
    apart by their other operands."""
    made = {t.storage for op in ops for t in op.outputs}
    often = Counter(t.storage for op in ops for t in op.inputs if t.storage not in made)
    keys = [
        (
            _loop_key(op),
            tuple(t.storage for t in op.inputs if often[t.storage] > 1),
            repr([a for a in op.arguments if not isinstance(a, dict)]),
        )
        for op in ops
    ]
    repeat = best_repeat(keys)
    if repeat is None or repeat.length * 2 < len(ops):
        return most
    # The first turn may read other tensors (a state of zeros) and so be none of the period.
    return most // max(1, round(most / repeat.count))


def _within(op: Op, files: set[str], lines: list[int]) -> bool:
    place = op.location
    return place is not None and place.file in files and min(lines) - 3 <= place.line <= max(lines) + 3
