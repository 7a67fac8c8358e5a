"""The steady step in what the recorder wrote: views count too, so a loop inside a step is not taken for it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

from fusionaudit.program.costs import category, op_bytes
from fusionaudit.program.epochs import steps_of_epoch
from fusionaudit.program.steps import GRAPH_WEIGHT, Steps, find_steps, function_of
from fusionaudit.trace.schema import Activity, GraphCall, Op, OpLog, Record, StepMark


def _key(record: Record) -> object:
    """What makes two records the same work in two steps: op and layouts, or graph and sizes."""
    if isinstance(record, Op):
        return (record.name, tuple((t.shape, t.strides, t.dtype) for t in record.inputs))
    if isinstance(record, GraphCall):
        return (record.graph, tuple(sorted(record.symbols.items())))
    return type(record).__name__


def _keys(records: Sequence[Record]) -> list[object]:
    """The key of each record. A function that is compiled anew at each call is the same work all the same."""
    keys = [_key(r) for r in records]
    counts = Counter(keys)
    return [
        function_of(r.graph) if isinstance(r, GraphCall) and counts[key] == 1 else key
        for r, key in zip(records, keys, strict=True)
    ]


def _weight(record: Record) -> int:
    """What a record is worth when steps are told apart: bytes moved, at least what a launch is worth."""
    if isinstance(record, GraphCall):
        return GRAPH_WEIGHT
    if not isinstance(record, Op):
        return 1
    if category(record) is None or _is_setup(record):
        return 1
    read, write = op_bytes(record)
    if read is None or write is None:  # a custom op: its operands, once
        return max(sum(t.nbytes or 0 for t in (*record.inputs, *record.outputs)), 1 << 20)
    return max(read + write, 1 << 20)


def _on_device(record: Record) -> bool:
    if not isinstance(record, Op):
        return True
    tensors = (*record.inputs, *record.outputs)
    return not tensors or any(t.device != "cpu" for t in tensors)


def _length(steps: Steps) -> int:
    return steps.spans[-1][1] - steps.spans[-1][0]


def _lasting(records: Sequence[Record], block: int) -> set[str]:
    """Storages that outlive two blocks between being made and being read last: weights, buffers, inputs.

    None of the host's: who made those is not among the records.
    """
    made: dict[str, int] = {}
    read: dict[str, int] = {}
    for i, record in enumerate(records):
        if isinstance(record, (Op, GraphCall)):
            read.update((t.storage, i) for t in record.inputs if t.storage is not None and t.device != "cpu")
            for tensor in record.outputs:
                if tensor.storage is not None:
                    made.setdefault(tensor.storage, i)
    return {storage for storage, last in read.items() if last - made.get(storage, -1) > 2 * block}


def _reads_of(record: Record, lasting: set[str]) -> tuple[str, ...]:
    if not isinstance(record, (Op, GraphCall)):
        return ()
    return tuple(t.storage for t in record.inputs if t.storage is not None and t.storage in lasting)


Place = tuple[str, str, int]
"""An op at a line of a file."""


def places_of(oplog: OpLog) -> frozenset[Place]:
    """Where the ops of a recording come from; of the compiled pass: what ran outside compiled graphs."""
    return frozenset(place for place in map(_place, oplog.records) if place is not None)


def _place(record: Record) -> Place | None:
    if not isinstance(record, Op) or record.location is None:
        return None
    return record.base_name, record.location.file, record.location.line


def record_steps(
    oplog: OpLog, *, warmup: int | None = None, steps: int | None = None, outside: frozenset[Place] | None = None,
    belongs: Callable[[Record], bool | None] | None = None,
) -> tuple[list[Record], Steps]:  # fmt: skip
    """The records that concern the device, and the spans of the steady steps among them (one over all if none).

    ``outside``: what the compiled pass ran outside graphs (:func:`places_of`). Ops of an eager pass that are not there
    are what the script compiles, and its step has some: a checksum that repeats after the steps has none.
    ``belongs`` tells which records of the compiled pass are of the eager pass's loop: the step is to hold some.
    """
    marks: list[int | None] = []
    current: int | None = None
    kept: list[Record] = []
    for record in oplog.records:
        if isinstance(record, StepMark):
            current = record.index
        elif _on_device(record):
            kept.append(record)
            marks.append(current)
    if not kept:
        return [], Steps(spans=(), source="whole")
    keys, weights = _keys(kept), [_weight(r) for r in kept]
    found = _find(kept, keys, marks, weights, warmup)
    compiled = [outside is not None and (place := _place(r)) is not None and place not in outside for r in kept]
    if found.source == "period" and any(compiled) and not _any_in(compiled, found):
        heavier = [w + GRAPH_WEIGHT if c else w for w, c in zip(weights, compiled, strict=True)]
        found = _find(kept, keys, marks, heavier, warmup)
        if not _any_in(compiled, found):
            found = Steps(spans=(), source="whole")
    same = [belongs is not None and belongs(r) is True for r in kept]
    if found.source == "period" and any(same) and not _any_in(same, found):
        heavier = [w * GRAPH_WEIGHT if s else w for w, s in zip(weights, same, strict=True)]
        again = _find(kept, keys, marks, heavier, warmup)
        if _any_in(same, again):
            found, weights = again, heavier
    if oplog.stopped is not None:
        found = _whole_steps(found, kept, keys, marks, warmup)
    if not found.spans or (found.source == "period" and not _is_convincing(found, kept, keys, weights)):
        found = Steps(spans=((0, len(kept)),), source="whole", confidence=0.0)
    if found.source != "marks" and found.confidence < _EXPLAINED and oplog.stopped is None:
        rough = _of_unlike_sizes(kept, weights, warmup)
        holds = rough is not None and all(_any_in(f, rough) for f in (compiled, same) if any(f))
        found = rough if rough is not None and holds and rough.confidence > found.confidence else found
    if steps is not None and steps > 0:
        found = replace(found, spans=found.spans[-steps:])
    return kept, found


def _find(
    records: Sequence[Record], keys: Sequence[object], marks: Sequence[int | None], weights: Sequence[int],
    warmup: int | None,
) -> Steps:  # fmt: skip
    found = find_steps(keys, marks, warmup=warmup, weights=weights)
    if found.source != "period":
        return found
    # Layers of one shape look like steps; what tells them apart is whose weights they use.
    lasting = _lasting(records, _length(found))
    fine = [(key, _reads_of(record, lasting)) for key, record in zip(keys, records, strict=True)]
    finer = find_steps(fine, marks, warmup=warmup, weights=weights)
    if finer.source == "period" and _length(finer) > _length(found) and finer.spans[-1][1] >= found.spans[-1][1]:
        found = finer
    return steps_of_epoch(found, records, keys, weights)


_EXPLAINED = 0.5
"""Steps that leave out half of what runs between and after them are a few like ops of steps that are not alike."""


def _of_unlike_sizes(records: Sequence[Record], weights: Sequence[int], warmup: int | None) -> Steps | None:
    """Steps that run the same ops on the same weights with other sizes each: a mixture's experts, a cache that grows.

    Layers of other widths, or a function that is called with several sizes, share no weights and are no steps.
    """
    keys = [
        (r.base_name, r.location, r.phase) if isinstance(r, Op)
        else function_of(r.graph) if isinstance(r, GraphCall)
        else type(r).__name__
        for r in records
    ]  # fmt: skip
    found = find_steps(keys, warmup=warmup, weights=weights)
    if found.source != "period" or len(found.spans) < 2 or not _is_convincing(found, records, keys, weights):
        return None
    return replace(found, alike=False) if _share_weights(records, found, _SAME_WORK, least=1) else None


def _share_weights(records: Sequence[Record], found: Steps, share: float, *, least: int = 0) -> bool:
    """The last two steps read the same lasting storages: that share of them, and so many at least."""
    lasting = _lasting(records, _length(found))
    first, second = ({s for r in records[a:b] for s in _reads_of(r, lasting)} for a, b in found.spans[-2:])
    return len(first & second) >= max(least, share * min(len(first), len(second)))


def _any_in(flags: Sequence[bool], found: Steps) -> bool:
    return any(any(flags[first:last]) for first, last in found.spans)


def _whole_steps(
    found: Steps, records: Sequence[Record], keys: Sequence[object], marks: Sequence[int | None], warmup: int | None
) -> Steps:
    """The steps of a script that the audit ended: what was running then is no step. No spans where none is left.

    By marks: the last one counts if it holds all that another one holds. By period: two like stretches may be layers
    of a step that was cut; then they do not share their weights.
    """
    none = Steps(spans=(), source="whole")
    like = len(found.spans) > 1 and _same(keys, found.spans[-2], found.spans[-1])
    if found.source == "marks" and not like:
        cut = marks.index(max(m for m in marks if m is not None))
        before = find_steps(keys[:cut], marks[:cut], warmup=warmup) if cut else none
        return before if before.source == "marks" else none
    if found.source == "period" and len(found.spans) > 1 and not _share_weights(records, found, 0.5):
        return none
    return found


def _same(keys: Sequence[object], one: tuple[int, int], other: tuple[int, int]) -> bool:
    return list(keys[slice(*one)]) == list(keys[slice(*other)])


def _is_convincing(found: Steps, records: Sequence[Record], keys: Sequence[object], weights: Sequence[int]) -> bool:
    """False where a few like ops of a straight-line script pass for steps: then nothing may be cut away.

    The last two steps have to hold the same work, and all of them a good part of what the script does beside its
    set-up (by count or by weight: a step of tiny ops may be followed by a large checksum).
    """
    (a, b), (c, d) = found.spans[-2:] if len(found.spans) > 1 else (found.spans[0], found.spans[0])
    common = Counter(keys[a:b]) & Counter(keys[c:d])
    if sum(common.values()) < _SAME_WORK * max(b - a, d - c):
        return False
    inside = [i for first, last in found.spans for i in range(first, last) if weights[i] > 1]
    work = [i for i, r in enumerate(records) if weights[i] > 1 and not _is_setup(r)]
    if not inside or not work:
        return False
    return max(len(inside) / len(work), sum(weights[i] for i in inside) / sum(weights[i] for i in work)) >= _LEAST_SHARE


_SAME_WORK = 0.8
_LEAST_SHARE = 0.25
"""Chosen so that two steps of one kernel and the float64 checksum of the public cases still count as steps."""


def _is_setup(record: Record) -> bool:
    """Makes or fills tensors from nothing: parameters, inputs, optimizer state."""
    if not isinstance(record, Op):
        return False
    fills = record.base_name in _FILLS
    return fills or not any(t.device != "cpu" for t in record.inputs)


_FILLS = frozenset({"aten.uniform_", "aten.normal_", "aten.fill_", "aten.zero_", "aten.copy_", "aten.zeros_like"})


def activity_steps(
    activities: Sequence[Activity], oplog: OpLog, *, warmup: int | None = None, steps: int | None = None,
    outside: frozenset[Place] | None = None,
) -> Steps | None:  # fmt: skip
    """The recorder's steps as spans of activities; ``None`` where the two do not fit (then periods have to do)."""
    records, found = record_steps(oplog, warmup=warmup, steps=steps, outside=outside)
    if found.source == "whole":
        return None
    spans = []
    for first, last in found.spans:
        ids = {r.id for r in records[first:last] if isinstance(r, Op)}
        own = [i for i, a in enumerate(activities) if a.op is not None and a.op.recorded and a.op.op_id in ids]
        if not own or own[-1] - own[0] + 1 != len(own):
            return None
        spans.append((own[0], own[-1] + 1))
    return Steps(spans=tuple(spans), source=found.source, confidence=found.confidence)


def same_launches(activities: Sequence[Activity], names: Sequence[str]) -> Steps | None:
    """The last back-to-back runs of exactly these launches: the step of a recorded pass in one without a recorder."""
    spans: list[tuple[int, int]] = []
    end, length = len(activities), len(names)
    while length and end >= length:
        if all(a.name == n for a, n in zip(activities[end - length : end], names, strict=True)):
            spans.append((end - length, end))
            end -= length
        elif spans:
            break
        else:
            end -= 1
    # One launch may be there by chance; a whole sequence is the step even where only the last one was like it.
    return Steps(spans=tuple(reversed(spans)), source="period") if len(spans) > 1 or (spans and length > 1) else None
