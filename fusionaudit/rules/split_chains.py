"""Chains of the eager pass whose ops run in several compiled graphs, or partly outside any, once compiled."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from fusionaudit.findings import Location
from fusionaudit.inductor.model import CompiledGraph, GraphBreak
from fusionaudit.program.chains import Chain
from fusionaudit.program.costs import sum_known
from fusionaudit.program.dataflow import Flow, Step, dataflow, regions_bytes
from fusionaudit.program.model import Kernel, Pass
from fusionaudit.rules.chain_findings import whole_chains
from fusionaudit.trace.schema import Op

OUTSIDE = ""
"""The unit of ops that run eagerly in the compiled pass."""
Unit = str
"""What Dynamo compiled as one: the frame in ``0/1/forward`` (versions of one function are one unit), or OUTSIDE."""
_Place = tuple[str, int]


@dataclass(frozen=True, kw_only=True)
class Crossing:
    """What of a chain goes from one unit to another through memory: at least one launch and ``nbytes`` (written and
    read) that one kernel would not need. ``at`` is the line where the second unit takes it up."""

    chain: Chain
    first: Unit
    second: Unit
    nbytes: int | None
    at: Location | None


@dataclass(frozen=True, kw_only=True)
class Units:
    """Which unit runs the ops of a line, by phase."""

    graphs: dict[tuple[_Place, bool], frozenset[Unit]]
    outside: frozenset[tuple[str, _Place]]

    def of(self, op: Op) -> Unit | None:
        """``None``: not known, or several functions share the line."""
        if op.location is None:
            return None
        place = (op.location.file, op.location.line)
        found = self.graphs.get((place, op.phase == "backward"), frozenset())
        if (op.name, place) in self.outside:
            return OUTSIDE if not found else None
        return next(iter(found)) if len(found) == 1 else None


def frame(compile_id: str | None) -> Unit | None:
    """``0`` for ``0/1`` and for ``0/1/forward``."""
    return None if not compile_id else compile_id.split("/")[0]


def lines_of(graph: CompiledGraph) -> set[_Place]:
    """(file, line) of all that a graph computes."""
    places = [n.location for n in graph.nodes] + [at for c in graph.calls for at in (c.location, *c.locations)]
    return {(at.file, at.line) for at in places if at is not None}


def units_of(compiled: Pass) -> Units:
    """The units of a compiled pass, of the graphs that ran in its step."""
    ran = {k.graph for k in compiled.kernels}
    graphs: dict[tuple[_Place, bool], set[Unit]] = defaultdict(set)
    for graph in compiled.log.graphs:
        unit = frame(graph.compile_id)
        if graph.id in ran and unit is not None:
            for place in lines_of(graph):
                graphs[place, graph.kind == "backward"].add(unit)
    return Units(
        graphs={key: frozenset(found) for key, found in graphs.items()},
        outside=frozenset((o.name, (o.location.file, o.location.line)) for o in compiled.ops if o.location is not None),
    )


def fell_out(at: Location | None, broken: Location | None) -> bool:
    """What runs eagerly there does so because of the break: it is in the function that broke (or not known)."""
    if at is None or broken is None or at.function is None or broken.function is None:
        return True
    return (at.file, at.function) == (broken.file, broken.function)


def of_break(found: Sequence[Crossing], broken: GraphBreak) -> list[Crossing]:
    """Those that leave the graph which broke: for another graph, or for what the break left without one.

    What crosses into eager ops elsewhere would cross without the break too, unless a later graph takes it up.
    """
    mine = [c for c in found if c.first == frame(broken.compile_id)]

    def due(c: Crossing) -> bool:
        if c.second != OUTSIDE or fell_out(c.at, broken.location):
            return True
        return any(o.first == OUTSIDE and o.second != c.first and o.chain is c.chain for o in found)

    return [c for c in mine if due(c)]


def split_at(eager: Pass, place: Location, units: Units) -> list[Chain]:
    """The chains that have ops both above and below the line, in that file, of what could be in one graph."""
    by_id = {op.id: op for op in eager.ops}
    out = []
    for chain in whole_chains(eager):
        placed = [(units.of(op), op.location) for op in (by_id[i] for i in chain.op_ids)]
        placed = [(unit, at) for unit, at in placed if unit != OUTSIDE or fell_out(at, place)]
        lines = [at.line for _, at in placed if at is not None and at.file == place.file]
        found = {unit for unit, _ in placed}
        one_graph = len(found) == 1 and not found & {None, OUTSIDE}
        if lines and min(lines) < place.line <= max(lines) and not one_graph:
            out.append(chain)
    return out


def crossings(eager: Pass, units: Units) -> list[Crossing]:
    """Where the chains of the eager pass cross from one unit to another, in order of execution."""
    flow = dataflow(eager)
    by_id = {s.op.id: s for s in flow.steps}
    return [c for chain in whole_chains(eager) for c in _of_chain(flow, [by_id[i] for i in chain.op_ids], chain, units)]


def _of_chain(flow: Flow, steps: list[Step], chain: Chain, units: Units) -> list[Crossing]:
    inside = frozenset(s.index for s in steps)
    unit = {s.index: units.of(s.op) for s in steps}
    between: dict[tuple[Unit, Unit], list[Step]] = defaultdict(list)
    for step in steps:
        for value, _ in step.uses:
            maker = flow.maker.get(value)
            if maker is None or maker not in inside:
                continue
            first, second = unit[maker], unit[step.index]
            if first is not None and second is not None and first != second and step not in between[first, second]:
                between[first, second].append(step)
    out = []
    for (first, second), takers in between.items():
        passed = [(v, t) for s in takers for v, t in s.uses if (m := flow.maker.get(v)) in inside and unit[m] == first]
        written = [(v, t) for v, t in passed if not flow.leaves(v, inside)]
        nbytes = sum_known((regions_bytes(passed), regions_bytes(written)))
        out.append(Crossing(chain=chain, first=first, second=second, nbytes=nbytes, at=takers[0].op.location))
    return out


def kernels_at(compiled: Pass, eager: Pass, found: list[Crossing]) -> tuple[int, ...]:
    """The compiled kernels on both sides."""
    by_id = {op.id: op for op in eager.ops}
    ops = [by_id[i] for c in found for i in c.chain.op_ids]
    places = {(op.location.file, op.location.line) for op in ops if op.location is not None}
    sides = {unit for c in found for unit in (c.first, c.second)}

    def beside(k: Kernel) -> bool:
        own = OUTSIDE if k.graph is None else frame(k.graph)
        return own in sides and k.location is not None and (k.location.file, k.location.line) in places

    return tuple(k.id for k in compiled.kernels if beside(k))
