"""Ties launches to the calls of the compiled graphs that made them."""

from __future__ import annotations

from collections.abc import Sequence

from fusionaudit.inductor.model import CompiledGraph, GeneratedCall
from fusionaudit.trace.schema import Activity

_COPY_IN = "aten._foreach_copy_.default"
"""How torch copies a call's inputs to where a CUDA graph was recorded to read them; no generated code calls it."""


def align(graph: CompiledGraph, activities: Sequence[Activity]) -> list[GeneratedCall | None]:
    """The call of the graph behind each activity of one execution of it, in order; ``None`` where none fits.

    A Triton kernel goes to the next call of its name; other kernels go to the extern, copy or fill calls between the
    Triton calls around them, one call for each op range (all kernels of one ``aten::addmm`` belong to one call).
    """
    calls = [c for c in graph.calls if c.kind != "cpu"]
    names = {c.target for c in calls}
    out: list[GeneratedCall | None] = []
    position = 0
    last_extern: tuple[object, int] | None = None
    for activity in activities:
        if activity.op is not None and activity.op.name == _COPY_IN:
            out.append(None)
            continue
        if activity.kind == "kernel" and activity.name in names:
            found = next((i for i in range(position, len(calls)) if calls[i].target == activity.name), None)
            if found is None:
                out.append(None)
                continue
            out.append(calls[found])
            position, last_extern = found + 1, None
            continue
        token = activity.op.op_id if activity.op is not None else activity.correlation
        if last_extern is not None and activity.op is not None and last_extern[0] == token:
            out.append(calls[last_extern[1]])
            continue
        found = next((i for i in range(position, len(calls)) if calls[i].kind not in ("triton", "user_triton")), None)
        barrier = next((i for i in range(position, len(calls)) if calls[i].kind == "triton"), len(calls))
        if found is None or found > barrier:
            # Several kernels of one extern call without a range to tell (graph replay): they stay with that call.
            out.append(calls[last_extern[1]] if last_extern is not None else None)
            continue
        out.append(calls[found])
        position, last_extern = found + 1, (token, found)
    return out


def score(graph: CompiledGraph, activities: Sequence[Activity]) -> float:
    """Share of Triton launches on both sides that line up in order: 1.0 is a perfect match."""
    wanted = [c.target for c in graph.calls if c.kind == "triton"]
    names = set(wanted)
    seen = [a.name for a in activities if a.kind == "kernel" and (a.name in names or a.name.startswith("triton_"))]
    if not wanted and not seen:
        externs = sum(c.kind == "extern" for c in graph.calls)
        return 0.5 if externs and activities else 0.0
    matched, position = 0, 0
    for name in seen:
        found = next((i for i in range(position, len(wanted)) if wanted[i] == name), None)
        if found is not None:
            matched, position = matched + 1, found + 1
    return 2 * matched / (len(wanted) + len(seen))


def choose_graph(
    graphs: Sequence[CompiledGraph], key: str | None, activities: Sequence[Activity]
) -> CompiledGraph | None:
    """The graph that was called: by its id or cache key where known, else the one whose launches fit best."""
    for graph in graphs:
        if key is not None and key in (graph.cache_key, graph.id):
            return graph
    ranked = sorted(((score(g, activities), i) for i, g in enumerate(graphs)), key=lambda s: (-s[0], s[1]))
    return graphs[ranked[0][1]] if ranked and ranked[0][0] > 0.0 else None


def replayed_graph(graphs: Sequence[CompiledGraph], activities: Sequence[Activity]) -> CompiledGraph | None:
    """The graph whose launches, and no others, one replay of a CUDA graph makes, where the trace has no range to tell
    (the script captured it itself, under torch.profiler). ``None`` where none or several fit."""
    fitting = [g for g in graphs if score(g, activities) == 1.0]
    if len(fitting) != 1 or None in align(fitting[0], activities):
        return None
    return fitting[0]
