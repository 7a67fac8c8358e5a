"""Which ranges enclose a launch: the innermost op, the compiled graph's call, region, step, and compilation."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from fusionaudit.trace.range_text import Meaning
from fusionaudit.trace.schema import RangeOp


@dataclass(frozen=True, kw_only=True)
class OpenRange:
    """A range on a thread. ``end_ns`` is the end of time for one that was never closed."""

    start_ns: int
    end_ns: int
    thread: int
    meaning: Meaning


@dataclass(frozen=True, kw_only=True)
class Point:
    """A moment on a thread; ``kernel`` is the name of what it launches."""

    time_ns: int
    thread: int | None
    kernel: str = ""


@dataclass(frozen=True, kw_only=True)
class Context:
    """What encloses a point."""

    op: RangeOp | None = None
    graph_call: str | None = None
    graph_call_id: int | None = None
    region: str | None = None
    step: int | None = None
    compiling: bool = False


_Numbered = tuple[OpenRange, int]


def _active(ranges: list[_Numbered], points: list[tuple[int, Point]]) -> list[tuple[int, list[_Numbered]]]:
    """For each point, in time order, the ranges open at it, outermost first. Ranges may overlap without nesting."""
    ranges.sort(key=lambda r: (r[0].start_ns, -r[0].end_ns))
    points.sort(key=lambda p: p[1].time_ns)
    out: list[tuple[int, list[_Numbered]]] = []
    current: list[_Numbered] = []
    ends: list[int] = []
    following = 0
    for index, point in points:
        while following < len(ranges) and ranges[following][0].start_ns <= point.time_ns:
            opened = ranges[following]
            following += 1
            if opened[0].end_ns < point.time_ns:
                continue
            current.append(opened)
            heapq.heappush(ends, opened[0].end_ns)
        if ends and ends[0] < point.time_ns:
            while ends and ends[0] < point.time_ns:
                heapq.heappop(ends)
            current = [r for r in current if r[0].end_ns >= point.time_ns]
        out.append((index, list(current)))
    return out


def _choose_op(open_ranges: list[_Numbered], kernel: str) -> RangeOp | None:
    """The innermost op. Our recorder's wins over torch's own; nested ranges of one name are one op, the outer.

    (``aten::abs`` calls ``aten::abs.out``: what reads the result names the outer one as its producer.)
    """
    ops = [(r.meaning.kind, r.meaning.op) for r, _ in open_ranges if r.meaning.op is not None]
    recorded = [op for _, op in ops if op.recorded]
    if recorded:
        return recorded[-1]
    if ops and ops[-1][0] == "node" and ops[-1][1].name == kernel:
        return ops[-1][1]
    dispatched = [op for kind, op in ops if kind == "op"]
    if not dispatched:
        return ops[-1][1] if ops else None
    position = len(dispatched) - 1
    while position > 0 and dispatched[position - 1].name == dispatched[position].name:
        position -= 1
    parents = tuple(op.op_id for op in reversed(dispatched[:position]))
    return replace(dispatched[position], parents=parents) if parents else dispatched[position]


def resolve(ranges: Sequence[OpenRange], points: Sequence[Point]) -> list[Context]:
    """The context of each point.

    Ops and graph calls count on the point's own thread. Steps, regions and compilation are opened by the main thread
    and hold for autograd's threads too: where the own thread has none, whatever is open anywhere counts.
    """
    calls = sorted((r for r in ranges if r.meaning.kind == "graph"), key=lambda r: r.start_ns)
    numbers = {id(r): i for i, r in enumerate(calls)}
    by_thread: dict[int, list[_Numbered]] = defaultdict(list)
    shared: list[_Numbered] = []
    for r in ranges:
        numbered = (r, numbers.get(id(r), -1))
        by_thread[r.thread].append(numbered)
        if r.meaning.kind in ("step", "region", "compile"):
            shared.append(numbered)
    points_by_thread: dict[int | None, list[tuple[int, Point]]] = defaultdict(list)
    for i, point in enumerate(points):
        points_by_thread[point.thread].append((i, point))
    out = [Context()] * len(points)
    for thread, own_points in points_by_thread.items():
        if thread is None or thread not in by_thread:
            continue
        for i, open_ranges in _active(by_thread[thread], own_points):
            if not open_ranges:
                continue
            graph = next((r for r in reversed(open_ranges) if r[0].meaning.kind == "graph"), None)
            region = next((r for r in reversed(open_ranges) if r[0].meaning.kind == "region"), None)
            out[i] = Context(
                op=_choose_op(open_ranges, points[i].kernel),
                graph_call=graph[0].meaning.value if graph else None,
                graph_call_id=graph[1] if graph else None,
                region=region[0].meaning.value if region else None,
            )
    if not shared:
        return out
    for i, open_ranges in _active(shared, list(enumerate(points))):
        step = next((r for r, _ in reversed(open_ranges) if r.meaning.kind == "step"), None)
        region_text = next((r.meaning.value for r, _ in reversed(open_ranges) if r.meaning.kind == "region"), None)
        out[i] = replace(
            out[i],
            step=int(step.meaning.value) if step else None,
            region=out[i].region if out[i].region is not None else region_text,
            compiling=any(r.meaning.kind == "compile" for r, _ in open_ranges),
        )
    return out


def range_ops(ranges: Sequence[OpenRange]) -> tuple[RangeOp, ...]:
    """All op ranges in order of their start, also those that launched nothing."""
    found = [r for r in ranges if r.meaning.kind == "op"]
    found.sort(key=lambda r: (r.start_ns, -r.end_ns))
    return tuple(r.meaning.op for r in found if r.meaning.op is not None)
