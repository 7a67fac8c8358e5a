"""A pass without a GPU: launches predicted from recorded ops and lowered graphs, with modelled times only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from fusionaudit.device import Device
from fusionaudit.figures import launched
from fusionaudit.findings import Location, Note
from fusionaudit.inductor.model import CompiledGraph, InductorLog
from fusionaudit.inductor.output_code import resolve
from fusionaudit.program.launches import predicted_launches
from fusionaudit.program.loops import Loop, calls_of
from fusionaudit.program.model import MEMORY_BOUND, HostSync, Kernel, Pass, PassName
from fusionaudit.program.records import Place, record_steps
from fusionaudit.program.repeated import repeated_ops
from fusionaudit.program.steps import unlike_steps
from fusionaudit.tensors import Tensor
from fusionaudit.trace.schema import GraphCall, Op, OpLog, StopMark, SyncMark


def predicted_time_ns(kernel: Kernel, device: Device | None) -> int | None:
    """Modelled time: bytes at the attainable bandwidth, at least one launch; ``None`` for compute-bound kernels."""
    if device is None or kernel.category not in MEMORY_BOUND:
        return None
    moved = device.transfer_ns(kernel.global_bytes)
    if moved is None:
        return None
    # A loop that re-reads its input finds what is still in L2 there; only more than L2 goes to memory again.
    again = kernel.reread_bytes if kernel.reread_bytes > (device.l2_bytes or 0) else 0
    return max(moved + (device.transfer_ns(again) or 0), device.launch_ns)


def _op_kernels(op: Op, first_id: int) -> list[Kernel]:
    return [
        Kernel(
            id=first_id + i,
            name=launch.name,
            category=launch.category,
            ops=(op.id,),
            op_names=(op.name,),
            reads=launch.reads,
            writes=launch.writes,
            read_bytes=launch.read_bytes,
            write_bytes=launch.write_bytes,
            location=op.location,
            region=op.region,
            phase=op.phase,
        )
        for i, launch in enumerate(predicted_launches(op))
    ]


def _bind(tensor: Tensor, graph: CompiledGraph, call: GraphCall, instance: int) -> Tensor:
    """A graph's buffer as a storage of the pass: inputs and outputs are the caller's, the rest this execution's own."""
    for mine, theirs in zip(graph.inputs, call.inputs, strict=False):
        if mine.storage == tensor.storage:
            return replace(tensor, storage=theirs.storage, is_parameter=theirs.is_parameter)
    for name, theirs in zip(graph.outputs, call.outputs, strict=False):
        if name == tensor.storage:
            return replace(tensor, storage=theirs.storage)
    return replace(tensor, storage=f"{graph.id}#{instance}:{tensor.storage}")


def _graph_kernels(
    graph: CompiledGraph, call: GraphCall, first_id: int, instance: int, resources: dict[str, Any],
    caller: Location | None,
) -> list[Kernel]:  # fmt: skip
    """``caller``: the line of kernels where the whole graph has none (a module of torch, ``nn.Sequential``)."""
    caller = None if any(c.location for c in graph.calls) else caller
    resolved = resolve(graph, call.symbols) if call.symbols else graph
    figures = resources.get("graphs", {}).get(graph.id, {})
    kernels: list[Kernel] = []
    for made in resolved.calls:
        if made.kind == "cpu":
            continue
        own = figures.get(made.target, {})
        kernels.append(
            Kernel(
                id=first_id + len(kernels),
                name=made.target,
                category=made.category,  # type: ignore[arg-type]
                op_names=made.aten,
                nodes=made.nodes,
                reads=tuple(_bind(t, graph, call, instance) for t in made.reads),
                writes=tuple(_bind(t, graph, call, instance) for t in made.writes),
                read_bytes=made.read_bytes,
                write_bytes=made.write_bytes,
                reread_bytes=made.reread_bytes,
                registers=own.get("registers"),
                local_memory_bytes=own.get("stack_bytes"),
                spill_bytes=own.get("spill_bytes"),
                shared_memory_bytes=own.get("shared_bytes"),
                occupancy=own.get("occupancy"),
                graph=graph.id,
                call=made.index,
                location=made.location or caller,
                region=call.region,
                phase="backward" if graph.kind == "backward" else "forward",
            )
        )
    return kernels


def _stop_note(name: PassName, stopped: StopMark, *, judged: bool) -> Note:
    """What it means that the audit ended the script: ``judged`` where whole steps came before."""
    place = stopped.location
    where = f"{place.file}:{place.line}" if place is not None else "the script"
    text = f"{name}: --shapes-only computes nothing, and {where} needs a value ({stopped.asked})"
    if judged:
        text += ": the script was ended there; the steps before it are judged, what follows is not"
        return Note(kind="stopped", text=text, remedy="to audit the rest, run without --shapes-only", pass_name=name)
    text += " before a whole step was recorded twice: no step can be judged"
    remedy = "run without --shapes-only (with smaller sizes if memory or time is short), or read values after the steps"
    return Note(kind="stopped", text=text, remedy=remedy, blocks=True, pass_name=name)


def _count(kernels: Sequence[Kernel]) -> str:
    copies = sum(k.category in ("memcpy", "memset") for k in kernels)
    return launched(len(kernels) - copies, copies)


def predicted_pass(
    name: PassName,
    oplog: OpLog,
    log: InductorLog,
    device: Device | None,
    *,
    resources: dict[str, Any] | None = None,
    warmup: int | None = None,
    steps: int | None = None,
    outside: frozenset[Place] | None = None,
    loop: Loop | None = None,
) -> Pass:
    """The Pass of a deviceless recording, cut down to its steady step (of ``loop``, the eager pass's); all times are
    predicted."""
    belongs = calls_of(loop, log)
    records, found = record_steps(oplog, warmup=warmup, steps=steps, outside=outside, belongs=belongs)
    told_apart = found.source != "whole"
    first, last = found.spans[-1] if found.spans else (0, 0)
    chosen, count = records[first:last], len(found.spans) if told_apart else 0
    graphs = {g.id: g for g in log.graphs}
    kernels: list[Kernel] = []
    notes = [*oplog.notes, *unlike_steps(found, name)]
    missing: set[str] = set()
    callers: dict[str, Location | None] = {}
    for instance, record in enumerate(chosen):
        if isinstance(record, Op):
            kernels.extend(_op_kernels(record, len(kernels)))
        elif isinstance(record, GraphCall):
            graph = graphs.get(record.graph)
            if graph is None:
                missing.add(record.graph)
                continue
            # Backward belongs to the line that called forward, as the recorder has it for eager ops.
            compiled = graph.id.rsplit("/", 1)[0]
            if graph.kind != "backward":
                callers[compiled] = record.location
            caller = callers.get(compiled, record.location)
            kernels.extend(_graph_kernels(graph, record, len(kernels), instance, resources or {}, caller))
    if oplog.stopped is not None:
        notes.append(_stop_note(name, oplog.stopped, judged=told_apart))
    elif not told_apart and chosen:
        notes.append(
            Note(
                kind="no-steps",
                text=f"{name}: no repeating step found; everything recorded ({_count(kernels)}) is one step",
                remedy="call fusionaudit.step() at the start of each step, or run more steps",
                pass_name=name,
            )
        )
    if not kernels:
        text = f"{name}: nothing was recorded that a GPU would run"
        remedy = "check that the script computes with tensors (on a device, if it names one)"
        notes.append(Note(kind="no-kernels", text=text, blocks=True, pass_name=name, remedy=remedy))
    elif name == "compiled" and not any(isinstance(r, GraphCall) for r in records):
        text = "compiled: no compiled graph ran: these are the launches of eager ops"
        remedy = "if something should have been compiled, compiled/stderr.txt in the capture says why it was not"
        notes.append(Note(kind="nothing-compiled", text=text, pass_name=name, remedy=remedy))
    for graph_id in sorted(missing):
        text = f"{name}: graph {graph_id} ran but its code is not in the log"
        notes.append(Note(kind="missing-graph", text=text, blocks=True, pass_name=name, remedy="run the audit again"))
    timed = []
    for kernel in kernels:
        time = predicted_time_ns(kernel, device)
        timed.append(replace(kernel, duration_ns=time, time_basis=None if time is None else "predicted"))
    ops = tuple(r for r in chosen if isinstance(r, Op))
    return Pass(
        name=name,
        engine="deviceless",
        kernels=tuple(timed),
        ops=ops,
        repeated=repeated_ops(ops, oplog) if told_apart else frozenset(),
        repeated_graphs=frozenset(r.graph for r in (*records[:first], *records[last:]) if isinstance(r, GraphCall)),
        syncs=tuple(
            HostSync(name=r.name, location=r.location, bytes=r.bytes) for r in chosen if isinstance(r, SyncMark)
        ),
        steps=count,
        log=log,
        notes=tuple(notes),
    )
