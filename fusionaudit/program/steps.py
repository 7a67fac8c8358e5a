"""Finds the steady step of a program in the order of its launches (or of its recorded ops)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from fusionaudit.findings import Note
from fusionaudit.program.model import PassName
from fusionaudit.program.periods import Repeat, best_repeat
from fusionaudit.trace.schema import Activity

_LEVEL_SHARE = 0.8
"""A finer key is preferred if its step has at least that share of the coarser key's different launches."""

_WARMED_UP = 0.5
"""A different step came before if that share of a step's keys did."""

GRAPH_WEIGHT = 1 << 40
"""What a call of a compiled graph is worth: more than any op."""

_CLEAR_GAP = 2
"""A step boundary is moved along the pattern only to where the device waits at least twice as long."""


@dataclass(frozen=True, kw_only=True)
class Steps:
    """``spans`` are (first, last + 1) of each steady step, in order; the last one is the best to look at.

    ``source``: ``marks`` (the program said where steps start), ``period`` (found by repetition) or ``whole`` (neither:
    one span over everything). ``confidence`` is the share of elements from the first span to the end of the sequence
    that the spans explain. ``alike``: the steps work on the same sizes.
    """

    spans: tuple[tuple[int, int], ...]
    source: Literal["marks", "period", "whole"]
    confidence: float = 1.0
    alike: bool = True


def unlike_steps(steps: Steps, name: PassName) -> tuple[Note, ...]:
    """What to say of steps of other sizes each: a mixture's experts, a cache that grows."""
    if steps.alike:
        return ()
    text = (
        f"{name}: the steps run the same ops on other sizes each time: what is told is the last of {len(steps.spans)}"
    )
    return (Note(kind="unlike-steps", text=text, pass_name=name),)


def find_steps(
    keys: Sequence[Hashable],
    marks: Sequence[int | None] = (),
    *,
    warmup: int | None = None,
    steps: int | None = None,
    gaps: Sequence[int] = (),
    weights: Sequence[int] = (),
) -> Steps:
    """The steady steps of a sequence of keys.

    ``marks`` gives each element's step number where the program said it (at least two numbers are needed, else they
    are left aside). ``warmup`` steps are dropped from the front, at most ``steps`` are kept from the back. ``gaps`` are
    waits before each element: they decide where a repeating pattern is cut into steps. ``weights`` are what each
    element is worth: of two repeating patterns the weightier one is the step.
    """
    if not keys:
        return Steps(spans=(), source="whole", confidence=0.0)
    marked = _marked(keys, marks, warmup)
    if marked:
        return _finish(marked, "marks", len(keys), 0, steps)
    kept = _common(keys)
    repeat = best_repeat([keys[i] for i in kept], [weights[i] for i in kept] if weights else ())
    if repeat is None:
        return Steps(spans=((0, len(keys)),), source="whole", confidence=0.0)
    return _finish(_cut(keys, kept, repeat, gaps), "period", len(keys), warmup or 0, steps)


def _finish(
    spans: list[tuple[int, int]],
    source: Literal["marks", "period"],
    size: int,
    warmup: int,
    steps: int | None,
) -> Steps:
    spans = spans[min(warmup, len(spans) - 1) :]
    if steps is not None and steps > 0:
        spans = spans[-steps:]
    explained = sum(b - a for a, b in spans)
    return Steps(spans=tuple(spans), source=source, confidence=explained / (size - spans[0][0]))


# -- by marks ----------------------------------------------------------------------------------------------------------


def _marked(keys: Sequence[Hashable], marks: Sequence[int | None], warmup: int | None) -> list[tuple[int, int]]:
    """Spans of the marked steps that are steady; empty where there are no marks.

    Without ``warmup``: those that do the same as most do. What the last step has after that (a checksum, a print) is
    cut off.
    """
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for i, mark in enumerate(marks):
        if mark is not None:
            first.setdefault(mark, i)
            last[mark] = i
    if not first:
        return []
    order = sorted(first, key=lambda mark: first[mark])
    spans = []
    for number, mark in enumerate(order):
        end = last[mark] + 1
        if number + 1 < len(order):
            end = min(end, first[order[number + 1]])
        spans.append((first[mark], end))
    if warmup is not None:
        spans = spans[min(warmup, len(spans) - 1) :]
    work = [tuple(keys[a:b]) for a, b in spans]
    counts = Counter(work)
    usual = max(range(len(work)), key=lambda i: (counts[work[i]], i))
    if counts[work[usual]] < 2:
        pattern = _shared_start(work)
        if pattern is None:
            return spans if warmup is not None or len(spans) < 2 else spans[1:]
    else:
        pattern = work[usual]
    size = len(pattern)
    return [(a, a + size) for (a, _), done in zip(spans, work, strict=True) if done[:size] == pattern]


def _shared_start(work: Sequence[tuple[Hashable, ...]]) -> tuple[Hashable, ...] | None:
    """A step that another one starts with, where all steps differ: only the last one has more after it."""
    final = work[-1]
    for done in reversed(work[:-1]):
        if done and final[: len(done)] == done and len(final) <= 2 * len(done):
            return done
    return None


# -- by period ---------------------------------------------------------------------------------------------------------


def _common(keys: Sequence[Hashable]) -> list[int]:
    """Indices of elements whose key is there more than once: one of a kind cannot belong to what repeats."""
    counts = Counter(keys)
    return [i for i, key in enumerate(keys) if counts[key] > 1]


def _cut(keys: Sequence[Hashable], kept: Sequence[int], repeat: Repeat, gaps: Sequence[int]) -> list[tuple[int, int]]:
    """The stretch cut into steps, in indices of the whole sequence.

    Where keys are left over, steps start at its start if nothing like a step is before it (what is left over then
    follows the last step, such as a final evaluation); else they end at its end (the stretch then starts with the tail
    of a warm-up step that was otherwise different). A clearly longer wait between steps overrules both.
    """
    before = {keys[i] for i in kept[: repeat.start]}
    block = {keys[i] for i in kept[repeat.start : repeat.start + repeat.block]}
    shift = repeat.spare if len(block & before) > _WARMED_UP * len(block) else 0
    if gaps:
        waits = [_wait(kept, repeat, phase, gaps) for phase in range(repeat.spare + 1)]
        widest = max(range(len(waits)), key=lambda phase: waits[phase])
        if waits[widest] > _CLEAR_GAP * waits[shift]:
            shift = widest
    out = []
    for number in range(repeat.count):
        begin = repeat.start + shift + number * repeat.block
        out.append((kept[begin], kept[begin + repeat.block - 1] + 1))
    return out


def _wait(kept: Sequence[int], repeat: Repeat, phase: int, gaps: Sequence[int]) -> int:
    """The shortest wait before any step but the first, if steps start at that phase."""
    places = (repeat.start + phase + number * repeat.block for number in range(1, repeat.count))
    return min((gaps[kept[place]] for place in places), default=0)


def function_of(graph: str) -> Hashable:
    """A compiled graph's function and kind, whichever version it is (``1/3/forward``): one that is compiled anew at
    each call does the same work all the same."""
    parts = graph.split("/")
    return parts[0], parts[-1]


# -- on a trace's activities ------------------------------------------------------------------------------------------


def _name_key(a: Activity) -> Hashable:
    return (a.name, a.kind, a.bytes if a.kind != "kernel" else None)


def _runs(activities: Sequence[Activity]) -> list[tuple[int, int]]:
    """(first, last + 1) of each call of a compiled graph, and of each launch beside them.

    A call counts as one: its launches differ a little from call to call (split-K products, lazily zeroed workspaces).
    """
    out: list[tuple[int, int]] = []
    previous = None
    for i, a in enumerate(activities):
        call = None if a.graph_call is None else (a.graph_call, a.graph_call_id)
        if call is not None and call == previous:
            out[-1] = (out[-1][0], i + 1)
        else:
            out.append((i, i + 1))
        previous = call
    return out


def _keys(heads: Sequence[Activity]) -> list[list[Hashable]]:
    """Keys from fine to coarse: with op, shapes and where inputs come from; with op and shapes; the name alone.

    Where inputs come from tells the calls of a function from the turns of a loop inside it: the first turn reads what
    no op before it made. A call of a compiled graph is the graph in all of them, or its function if it ran once.
    """
    fine: list[Hashable] = []
    middle: list[Hashable] = []
    coarse: list[Hashable] = []
    previous_replay: int | None = None
    calls = Counter(a.graph_call for a in heads)
    for a in heads:
        graph = a.graph_call and (a.graph_call if calls[a.graph_call] > 1 else function_of(a.graph_call))
        replay = a.correlation if a.graph_node is not None else None
        starts = replay is not None and replay != previous_replay
        previous_replay = replay
        op = None if a.op is None else (a.op.name, a.op.shapes)
        key: Hashable = graph or (_name_key(a), a.grid, op, starts)
        middle.append(key)
        fine.append(graph or (key, _sources(a)))
        coarse.append(graph or _name_key(a))
    return [fine, middle, coarse]


def _sources(a: Activity) -> tuple[int, ...]:
    """How many ops ago each input was made; -1: not by an op that was seen.

    Inputs without a shape are left out: torch tells tensors apart by address there, and those of scalars are reused.
    """
    if a.op is None:
        return ()
    pairs = zip(a.op.shapes, a.op.input_ops, strict=False)
    return tuple(-1 if output < 0 else a.op.op_id - op_id for shape, (op_id, output) in pairs if shape)


def _gaps(activities: Sequence[Activity]) -> list[int]:
    """Waits between launches on the host (on the device where launches are not known) before each activity."""
    out, end = [], None
    for a in activities:
        start = a.start_ns
        out.append(0 if end is None else max(0, start - end))
        end = a.end_ns if end is None else max(end, a.end_ns)
    return out


def _weights(heads: Sequence[Activity], runs: Sequence[tuple[int, int]], prefer: frozenset[int]) -> list[int]:
    """Where compiled graphs run, a step has one: the launches of a checksum after the steps are worth nothing."""
    inside = [a.graph_call is not None or a.graph_node is not None for a in heads]
    if not any(inside):
        return []
    weights = [GRAPH_WEIGHT * (b - a) if i else 1 for i, (a, b) in zip(inside, runs, strict=True)]
    return [w * GRAPH_WEIGHT if a in prefer else w for w, (a, _) in zip(weights, runs, strict=True)]


def steady_activities(
    activities: Sequence[Activity], *, warmup: int | None = None, steps: int | None = None,
    prefer: frozenset[int] = frozenset(),
) -> Steps:  # fmt: skip
    """The steady steps of a trace, as indices into ``activities`` (compiling ones left out by the caller).

    Marks (``fusionaudit.step()``) win. Else the finest key that explains about as much as coarser ones do.
    ``prefer`` are activities of graphs that the step is to hold.
    """
    runs = _runs(activities)
    heads = [activities[first] for first, _ in runs]
    found = _steady_heads(heads, runs, _gaps(activities), warmup=warmup, steps=steps, prefer=prefer)
    return replace(found, spans=tuple((runs[a][0], runs[b - 1][1]) for a, b in found.spans))


def _steady_heads(
    heads: Sequence[Activity],
    runs: Sequence[tuple[int, int]],
    all_gaps: Sequence[int],
    *,
    warmup: int | None,
    steps: int | None,
    prefer: frozenset[int],
) -> Steps:
    marks, levels = [a.step for a in heads], _keys(heads)
    if not heads or any(m is not None for m in marks):
        return find_steps(levels[1], marks, warmup=warmup, steps=steps)
    gaps, weights = [all_gaps[first] for first, _ in runs], _weights(heads, runs, prefer)
    fine, middle, coarse = (find_steps(keys, warmup=warmup, steps=steps, gaps=gaps, weights=weights) for keys in levels)
    # The fine key counts only where it sees that a shorter step was a loop's turn. In itself it is brittle: what an
    # optimizer's state comes from differs between the first step and the next.
    reaches = fine.spans[-1][1] >= middle.spans[-1][1]
    best = fine if reaches and _block(fine) > _block(middle) else middle
    richer = _richness(levels[1], coarse) * _LEVEL_SHARE > _richness(levels[1], best)
    return coarse if richer else best


def _block(steps: Steps) -> int:
    return steps.spans[-1][1] - steps.spans[-1][0] if steps.source == "period" else 0


def _richness(keys: Sequence[Hashable], steps: Steps) -> int:
    if steps.source != "period":
        return 0
    first, last = steps.spans[-1]
    return len(set(keys[first:last]))
