"""Fallback, custom or user-written kernel is a barrier.

What: inside a compiled graph an op that Inductor does not generate code for (complex numbers, top-k, a custom op, a
user's Triton kernel) stands between generated kernels, so what flows to and from it goes through memory.

Why it costs: the kernels on both sides cannot become one, and the op itself cannot take them in.

How it is measured: extern, custom and user calls in the output code, apart from matmuls, convolutions and attention,
that read what a generated kernel wrote or write what one reads. The price is the bytes of those tensors. A matmul
whose only reader scatters into a tensor of the caller counts too: a template cannot take a mutation as its epilogue.

When it is wrong: the op may be better than anything generated, and its neighbours small. Ops whose output size
depends on data (nonzero) cannot be inside a kernel at all and are information. What Inductor itself puts between its
kernels (seeds of random numbers, the sum of a reduction's workspace) is no finding.

What to do: write complex arithmetic with real and imaginary parts; give a custom op a decomposition, or take the
elementwise work around it into the op; use a torch formulation that Inductor knows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from fusionaudit.config import Config
from fusionaudit.figures import counted, times
from fusionaudit.findings import Finding, Severity
from fusionaudit.inductor.model import CompiledGraph, GeneratedCall
from fusionaudit.program.costs import sum_known
from fusionaudit.program.model import Kernel, Pass, Program
from fusionaudit.rules.graph_groups import CallFlow, call_flow
from fusionaudit.rules.judging import human_bytes, worth

CODE = "FA114"
TITLE = "fallback, custom or user-written kernel is a barrier"

_LIBRARY = {"matmul", "convolution", "attention", "template", "collective"}
_SIZE_FROM_DATA = ("nonzero", "masked_select", "unique", "_local_scalar_dense", "repeat_interleave")
_NOT_WORK = ("view_as_real", "view_as_complex", "unsqueeze", "view", "permute", "_assert", "device_put", "wait_tensor",
             "slice", "select", "alias", "set_", "empty", "as_strided")  # fmt: skip
_SCATTERS = ("index_add", "index_put", "scatter", "scatter_add", "scatter_reduce")


def check(program: Program, config: Config) -> Iterator[Finding]:
    """One finding for each barrier op of a graph that ran."""
    for p in program.passes:
        if p.name != "compiled" and not p.name.startswith("imported"):
            continue
        ran: dict[str, list[Kernel]] = defaultdict(list)
        for kernel in p.kernels:
            if kernel.graph is not None:
                ran[kernel.graph].append(kernel)
        for graph in p.log.graphs:
            if graph.id in ran:
                yield from _barriers(program, p, config, graph, ran[graph.id])


def target_name(call: GeneratedCall) -> str:
    """``topk`` for ``torch.ops.aten.topk.default`` and ``auditcase.scratch_mm`` for a custom op."""
    parts = call.target.removeprefix("torch.ops.").split(".")
    if parts[0] in ("aten", "prims") and len(parts) > 1:
        return parts[1]
    return ".".join(parts[:2]) if call.target.startswith("torch.ops.") else parts[-1]


def _inductors_own(graph: CompiledGraph, call: GeneratedCall) -> bool:
    """Inductor put it there: the second stage of a reduction over its workspace, or an op of no line (its seeds)."""
    if any((t.storage or "").startswith("workspace_") for t in call.reads):
        return True
    return call.kind == "extern" and call.location is None and any(c.location is not None for c in graph.calls)


def _crossing(graph: CompiledGraph, flow: CallFlow, position: int) -> tuple[int | None, list[int]]:
    """Bytes of tensors between this call and generated kernels, and the positions of those."""
    sizes: list[int | None] = []
    beside: set[int] = set()
    for value, tensor in flow.uses[position]:
        maker = flow.maker.get(value)
        if maker is not None and graph.calls[maker].kind == "triton":
            sizes.append(tensor.nbytes)
            beside.add(maker)
    for value, tensor in flow.makes[position]:
        readers = [r for r in flow.readers.get(value, ()) if graph.calls[r].kind == "triton"]
        if readers:
            sizes.append(tensor.nbytes)
            beside.update(readers)
    return (sum_known(sizes) if sizes else 0), sorted(beside)


def _barriers(
    program: Program, p: Pass, config: Config, graph: CompiledGraph, kernels: list[Kernel]
) -> Iterator[Finding]:
    flow = call_flow(graph)
    found: dict[str, list[int]] = defaultdict(list)
    for position, call in enumerate(graph.calls):
        name = target_name(call)
        opaque = call.kind in ("extern", "custom", "user_triton") and call.category not in _LIBRARY
        if opaque and name not in _NOT_WORK and not _inductors_own(graph, call):
            found[name].append(position)
        elif call.category in ("matmul", "convolution") and _scattered(graph, flow, position):
            found[f"{name} into a scatter"].append(position)
    for name, positions in found.items():
        crossing, beside = [], set()
        for position in positions:
            size, near = _crossing(graph, flow, position)
            crossing.append(size)
            beside.update(near)
        if beside or _blocks_views(graph, positions):
            yield _finding(program, p, config, graph, kernels, name, positions, sum_known(crossing), sorted(beside))


def _blocks_views(graph: CompiledGraph, positions: list[int]) -> bool:
    """Complex ops reach their neighbours through view_as_real and view_as_complex, which are calls as well.

    One that is alone in its graph stands between nothing.
    """
    if sum(c.kind != "cpu" and target_name(c) not in _NOT_WORK for c in graph.calls) < 2:
        return False
    return any("complex" in t.dtype for i in positions for t in (*graph.calls[i].reads, *graph.calls[i].writes))


def _scattered(graph: CompiledGraph, flow: CallFlow, position: int) -> bool:
    """The only reader of a matmul's result scatters it into one of the graph's inputs."""
    outside = {t.storage for t in graph.inputs}
    for value, _ in flow.makes[position]:
        readers = flow.readers.get(value, ())
        if len(readers) != 1 or value in flow.final:
            continue
        reader = graph.calls[readers[0]]
        scatters = any(op.split(".")[-1] in _SCATTERS or op in _SCATTERS for op in reader.aten)
        if reader.kind == "triton" and scatters and any(t.storage in outside for t in reader.writes):
            return True
    return False


def _finding(
    program: Program,
    p: Pass,
    config: Config,
    graph: CompiledGraph,
    kernels: list[Kernel],
    name: str,
    positions: list[int],
    crossing: int | None,
    beside: list[int],
) -> Finding:
    first = graph.calls[positions[0]]
    saving = None
    if program.device is not None and crossing is not None:
        saving = (program.device.transfer_ns(2 * crossing) or 0) + program.device.launch_ns
    judged = worth(program, p, config, saving_ns=saving, avoidable_bytes=None if crossing is None else 2 * crossing)
    severity: Severity = "info" if any(word in name for word in _SIZE_FROM_DATA) else judged.severity
    wanted = {graph.calls[i].index for i in (*positions, *beside)}
    near = ", whose neighbours are no generated kernels either"
    if beside:
        near = f", beside {counted(len(beside), 'generated kernel')}: {human_bytes(crossing)} go to and from it"
        near += " through memory"
    kind = {"user_triton": "a user's Triton kernel", "custom": "a custom op"}.get(first.kind, "a library call")
    if "scatter" in name and first.category in ("matmul", "convolution"):
        reason = "a matmul template cannot take an epilogue that writes into the caller's tensor"
    elif any("complex" in t.dtype for t in (*first.reads, *first.writes)):
        reason = "Inductor generates no code for complex numbers and calls ATen"
    else:
        reason = f"Inductor generates no code for it: it stays {kind}"
    return Finding(
        rule=CODE,
        pass_name=p.name,
        severity=severity,
        message=f"{name} is a barrier in graph {graph.id}, {times(len(positions))}{near}",
        ops=(name,),
        kernel_ids=tuple(k.id for k in kernels if k.call in wanted),
        location=first.location,
        avoidable_bytes=None if crossing is None else 2 * crossing,
        saving_ns=saving,
        basis=judged.basis,
        reason=reason,
        remedy="write complex arithmetic with real numbers"
        if "complex" in reason
        else "take the work around it into the op, or give it a decomposition that Inductor can generate",
        confidence="medium",
        evidence={"calls": len(positions), "neighbours": len(beside), "share_of_step": judged.share},
        graph=graph.id,
        key=f"{graph.kind} {name}",
    )
