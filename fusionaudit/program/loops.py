"""Which of a script's loops a pass's step is taken from: the eager and the compiled pass must be of the same one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from fusionaudit.figures import times
from fusionaudit.findings import Location, Note
from fusionaudit.inductor.model import CompiledGraph, InductorLog
from fusionaudit.program.model import Kernel, Pass
from fusionaudit.tensors import Tensor
from fusionaudit.trace.schema import GraphCall, Op, OpLog, Record

Line = tuple[str, int]
_MOST = 0.5
"""A graph works on a step's data if more of its inputs than that are like tensors of the step."""
_TURNS = 2
"""A step holds several of the other pass's if it runs most of the lines of both at least that many times as often."""


def _line(place: Location | None) -> frozenset[Line]:
    return frozenset() if place is None else frozenset([(place.file, place.line)])


def _like(tensors: Iterable[Tensor]) -> set[tuple[int, str]]:
    """Elements and dtypes: generated code sees a buffer's elements, not its shape."""
    return {(t.stored_elements, t.dtype) for t in tensors}


def _lines_of(graph: CompiledGraph) -> frozenset[Line]:
    places = [n.location for n in graph.nodes] + [p for c in graph.calls for p in (*c.locations, c.location)]
    return frozenset().union(*map(_line, places))


@dataclass(frozen=True, kw_only=True)
class Loop:
    """The eager pass's step: its ``lines``, what its ``tensors`` look like, and the lines that only run
    ``elsewhere`` in the script."""

    lines: frozenset[Line]
    elsewhere: frozenset[Line]
    tensors: frozenset[tuple[int, str]]

    def has(self, lines: frozenset[Line], inputs: Sequence[Tensor]) -> bool | None:
        """Whether compiled code of these lines, called with these inputs, is part of the step; ``None``: cannot be
        told (the code of an installed library: eager ops have the line that calls it)."""
        if not lines & self.lines:
            return False if lines & self.elsewhere else None
        known = {(elements, dtype) for elements, dtype in _like(inputs) if elements != 1}  # any loop has single numbers
        return len(known & self.tensors) > _MOST * len(known) if known else True

    def has_graph(self, graph: CompiledGraph, inputs: Sequence[Tensor]) -> bool | None:
        """:meth:`has` for a call of a graph."""
        return self.has(_lines_of(graph), inputs)


def loop_of(p: Pass, oplog: OpLog) -> Loop | None:
    """The loop of an eager pass; ``None`` where no step was told apart."""
    if not p.steps:
        return None
    lines = frozenset().union(*(_line(op.location) for op in p.ops))
    every = frozenset().union(*(_line(r.location) for r in oplog.records if isinstance(r, Op)))
    tensors = frozenset(_like(t for op in p.ops for t in (*op.inputs, *op.outputs)))
    return Loop(lines=lines, elsewhere=every - lines, tensors=tensors)


def calls_of(loop: Loop | None, log: InductorLog) -> Callable[[Record], bool | None]:
    """Tells of a record of the compiled pass whether it is a graph's call that belongs to the loop."""
    graphs = {g.id: g for g in log.graphs}

    def belongs(record: Record) -> bool | None:
        if loop is None or not isinstance(record, GraphCall) or record.graph not in graphs:
            return None
        return loop.has_graph(graphs[record.graph], record.inputs)

    return belongs


def other_loop(eager: Pass, compiled: Pass, loop: Loop | None) -> Note | None:
    """A blocking note where the two steps have nothing in common that could be compared."""
    if loop is None or not compiled.steps:
        return None
    graphs = {g.id: g for g in compiled.log.graphs}
    ran = {k.graph: graphs[k.graph] for k in compiled.kernels if k.graph in graphs}
    told = [loop.has_graph(graph, _inputs(compiled.kernels, graph)) for graph in ran.values()]
    if not told or any(t is not False for t in told):
        return None
    text = (
        f"the passes' steps are of different loops: eager's is the one that runs {_place(eager)}, compiled's the one "
        f"that runs {_place(compiled)}; they cannot be compared"
    )
    remedy = "call fusionaudit.step() at the start of each turn of the loop that counts, or audit each loop by itself"
    return Note(kind="other-loop", text=text, remedy=remedy, blocks=True)


def other_steps(eager: Pass, compiled: Pass) -> Note | None:
    """A note where the compiled step holds several of the eager ones: it calls graphs of a line more often than eager
    runs that line. (A line that runs more often in eager proves nothing: its loop may be inside of a graph.)"""
    if not eager.steps or not compiled.steps:
        return None
    ran = Counter((line, op.name) for op in eager.ops for line in _line(op.location))
    often: Counter[Line] = Counter()
    for (line, _), count in ran.items():
        often[line] = max(often[line], count)
    calls: Counter[Line] = Counter()
    launches = Counter((k.graph, k.call) for k in compiled.kernels)
    for graph in compiled.log.graphs:
        # One call of a library may be several launches: the call with the fewest tells how often the graph ran.
        count = min((n for (g, _), n in launches.items() if g == graph.id), default=0)
        if count and graph.kind != "backward":
            calls.update(dict.fromkeys(_lines_of(graph), count))
    both = sorted(often.keys() & calls.keys())
    more = [line for line in both if calls[line] >= _TURNS * often[line]]
    if not more or len(more) <= _MOST * len(both):
        return None
    file, number = more[0]
    text = (
        f"the passes' steps are not the same work: compiled's runs {file}:{number} {times(calls[more[0]])}, eager's "
        f"{times(often[more[0]])}; their figures are not set against each other"
    )
    return Note(kind="other-steps", text=text, remedy="call fusionaudit.step() at the start of each turn of the loop")


def _inputs(kernels: Sequence[Kernel], graph: CompiledGraph) -> list[Tensor]:
    """What the graph was called with, as far as its kernels read it (with sizes resolved)."""
    own = [k for k in kernels if k.graph == graph.id]
    made = {t.storage for k in own for t in k.writes}
    return [t for k in own for t in k.reads if t.storage not in made]


def _place(p: Pass) -> str:
    """The lines of the step's launches, the one that moves the most first."""
    heaviest = sorted((k for k in p.kernels if k.location), key=lambda k: -(k.global_bytes or 0))
    lines = dict.fromkeys(f"{k.location.file}:{k.location.line}" for k in heaviest if k.location)
    return ", ".join(list(lines)[:2]) + (" ..." if len(lines) > 2 else "") if lines else "lines that are not known"
