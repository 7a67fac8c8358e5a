"""Calls of a graph that copy a temporary back over the graph's input that it was made from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fusionaudit.inductor.kernels import Shift, shifts
from fusionaudit.inductor.model import CompiledGraph
from fusionaudit.rules.graph_groups import CallFlow, Value, call_flow
from fusionaudit.rules.library_ops import roots
from fusionaudit.tensors import Tensor


@dataclass(frozen=True, kw_only=True)
class CopyBack:
    """The call at ``position`` copies ``temporary`` over (``whole``: all of) an input of the graph.

    ``needed``: an update in place would race, since an element of the input is used to make another one.
    """

    position: int
    temporary: Tensor
    whole: bool
    needed: bool


def copy_backs(graph: CompiledGraph) -> Iterator[CopyBack]:
    """All copies back of a graph."""
    flow = call_flow(graph)
    given = {t.storage: t for t in graph.inputs if t.storage is not None}
    for position, call in enumerate(graph.calls):
        if "copy" not in roots(call.aten) and call.category != "copy":
            continue
        found = next(_copied(graph, flow, position, given), None)
        if found is not None:
            yield found


def _copied(graph: CompiledGraph, flow: CallFlow, position: int, given: dict[str, Tensor]) -> Iterator[CopyBack]:
    call = graph.calls[position]
    above = [i for i in range(position) if flow.upstream[position] >> i & 1]
    for target in call.writes:
        input_ = given.get(target.storage or "")
        if input_ is None or not any(r.storage == target.storage for i in above for r in graph.calls[i].reads):
            continue
        for value, source in flow.uses[position]:
            if flow.maker.get(value) is None or source.storage == target.storage:
                continue
            whole = source.numel == input_.numel
            if whole or call.category == "copy":
                needed = _moves(graph, flow, position, target.storage or "", above)
                yield CopyBack(position=position, temporary=source, whole=whole, needed=needed)


def _moves(graph: CompiledGraph, flow: CallFlow, position: int, storage: str, above: list[int]) -> bool:
    """An element of the input at one place goes into what is written to another place of it."""
    kernels = {k.name: k for k in graph.kernels}
    still: frozenset[Shift] = frozenset({0})
    moved: dict[Value, frozenset[Shift]] = {}
    for i in (*above, position):
        call = graph.calls[i]
        from_input = [(n, v) for n, (v, _) in enumerate(flow.uses[i]) if v[0] == storage or v in moved]
        if not from_input:
            continue
        kernel = kernels.get(call.target)
        if call.kind != "triton" or kernel is None:
            return True  # a library call works out of place
        steps = shifts(kernel.name, kernel.source) if kernel.source else {}
        unknown: frozenset[Shift] = frozenset({None}) if kernel.source else still
        aligned = len(flow.uses[i]) == len(call.reads) and len(flow.makes[i]) == len(call.writes)
        for m, (made, _) in enumerate(flow.makes[i]):
            total: set[Shift] = set(moved.get(made, ()))
            for n, value in from_input:
                step = steps.get((n, m), unknown) if aligned else unknown
                if made[0] == value[0]:
                    step = still  # an update in place of the temporary: the rest of it stays where it is
                before = moved.get(value, still)
                total |= {None if a is None or b is None else a + b for a in before for b in step}
            moved[made] = frozenset(total)
    return any(shift != 0 for v, found in moved.items() if v[0] == storage for shift in found)
