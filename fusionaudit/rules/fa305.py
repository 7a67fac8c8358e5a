"""Fused too much: re-reads or recomputes more than it saves.

What: a generated kernel goes over its inputs in several passes though a row would fit on the chip, or several kernels
derive the same value again from its inputs where storing it once would move less.

Why it costs: bytes. The sum of two softmaxes in one kernel reads both inputs twice; a residual stream that each later
norm derives again reads 3, 5, 7, 9 tensors where 2 would do.

How it is measured: repeated loads of one kernel (output code) larger than L2, with rows short enough to stay in
registers (64 KB); and, over the kernels of a graph, inputs that later kernels read together again to compute the same
nodes, against one write and one read of the result.

When it is wrong: re-reads that hit L2 cost less than their bytes; recomputing saves memory, which may be the point.

What to do: keep the two rows in two kernels; realise the shared value (a graph break, or lower
torch._inductor.config.realize_reads_threshold).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from fusionaudit.config import Config
from fusionaudit.figures import counted
from fusionaudit.findings import Finding
from fusionaudit.inductor.model import CompiledGraph
from fusionaudit.program.model import Kernel, Pass, Program
from fusionaudit.rules.graph_groups import Value, call_flow, space
from fusionaudit.rules.judging import human_bytes, short, worth

CODE = "FA305"
TITLE = "fused too much: re-reads or recomputes more than it saves"

_ROW_BYTES = 65536
"""A row that one block can keep in registers: 64 KB are 64 of 255 registers in each of 256 threads."""
_DEFAULT_L2 = 50 << 20


def check(program: Program, config: Config) -> Iterator[Finding]:
    """Kernels that re-read, and values that several kernels of a graph derive again."""
    for p in program.passes:
        if p.name != "compiled" and not p.name.startswith("imported"):
            continue
        yield from _rereads(program, p, config)
        ran = {k.graph for k in p.kernels if k.graph is not None}
        for graph in p.log.graphs:
            if graph.id in ran:
                finding = _recomputed(program, p, config, graph)
                if finding is not None:
                    yield finding


def _rereads(program: Program, p: Pass, config: Config) -> Iterator[Finding]:
    """One finding a graph, over all its kernels that go over large inputs again."""
    l2 = (program.device.l2_bytes if program.device is not None else None) or _DEFAULT_L2
    graphs = {g.id: g for g in p.log.graphs}
    groups: dict[str, list[Kernel]] = defaultdict(list)
    for kernel in p.kernels:
        graph = graphs.get(kernel.graph or "")
        if graph is not None and kernel.reread_bytes > l2 and _row_fits(graph, kernel):
            groups[graph.id].append(kernel)
    for graph_id, group in groups.items():
        again = sum(k.reread_bytes for k in group)
        saving = None if program.device is None else program.device.transfer_ns(again)
        judged = worth(program, p, config, saving_ns=saving, avoidable_bytes=again)
        first = group[0]
        yield Finding(
            rule=CODE,
            pass_name=p.name,
            severity=judged.severity,
            message=f"{counted(len(group), 'kernel')} of graph {graph_id} ({short(first.op_names)}) "
            f"{'go' if len(group) > 1 else 'goes'} over the same rows in several loops and loads {human_bytes(again)} "
            "more than once, though a row is small enough to be kept on the chip",
            ops=first.op_names,
            kernel_ids=tuple(k.id for k in group),
            location=first.location,
            avoidable_bytes=again,
            saving_ns=saving,
            basis=judged.basis,
            reason="it loops over a row once for each statistic and once for the result, and loads the row each time",
            remedy="compile the reductions apart, so that each kernel keeps its row; or try "
            "torch._inductor.config.triton.multi_kernel = 1, which also makes a kernel that keeps its rows",
            confidence="medium",
            evidence={"kernels": [k.name for k in group], "share_of_step": judged.share},
            graph=graph_id,
            key="reread",
        )


def _row_fits(graph: CompiledGraph, kernel: Kernel) -> bool:
    """The kernel reduces rows that one block can keep, and is no part of a split reduction."""
    call = next((c for c in graph.calls if c.index == kernel.call), None)
    made = next((k for k in graph.kernels if call is not None and k.name == call.target), None)
    shape = space(made, call) if call is not None else None
    if shape is None or shape[1] <= 1:
        return False
    widest = max((t.itemsize or 4 for t in kernel.reads), default=4)
    return shape[1] * widest <= _ROW_BYTES and len(kernel.writes) > 0


def recomputed_bytes(graph: CompiledGraph) -> tuple[int, list[int], tuple[str, ...]]:
    """(bytes that storing would spare, positions of the calls, nodes that are computed again) of a graph.

    Going through the generated calls in order: what a call reads together with an earlier one to compute the same nodes
    could have been one stored value from that earlier call on.
    """
    flow = call_flow(graph)
    sizes: dict[Value, int] = {}
    spared, calls, again = 0, [], []
    stored: set[int] = set()
    earlier: list[tuple[int, set[Value], set[str]]] = []
    tensors = {n.name: n.tensor for n in graph.nodes}
    for position, call in enumerate(graph.calls):
        if call.kind != "triton":
            continue
        reads = {v for v, _ in flow.uses[position]}
        for value, tensor in flow.uses[position]:
            sizes[value] = max(tensor.nbytes or 0, sizes.get(value, 0))
        nodes = set(call.nodes)
        best: tuple[int, int, set[str]] | None = None
        for before, their_reads, their_nodes in earlier:
            common, shared = reads & their_reads, nodes & their_nodes
            if len(common) < 2 or not shared:
                continue
            big = [sizes[v] for v in common if sizes[v] * 2 >= max(sizes[c] for c in common)]
            result = max((tensors[n].nbytes or 0 for n in shared if tensors.get(n) is not None), default=max(big))  # type: ignore[union-attr]
            gain = sum(big) - max(result, 1)
            cost = 0 if before in stored else result
            if len(big) >= 2 and gain > 0 and (best is None or gain - cost > best[0]):
                best = (gain - cost, before, shared)
        if best is not None:
            spared += best[0]
            stored.add(best[1])
            calls += [best[1], position]
            again += sorted(best[2])
        earlier.append((position, reads, nodes))
    return spared, sorted(set(calls)), tuple(dict.fromkeys(again))


def _recomputed(program: Program, p: Pass, config: Config, graph: CompiledGraph) -> Finding | None:
    spared, positions, nodes = recomputed_bytes(graph)
    if spared < config.thresholds.min_bytes or len(positions) < 3:
        return None
    indices = {graph.calls[i].index for i in positions}
    mine: list[Kernel] = [k for k in p.kernels if k.graph == graph.id and k.call in indices]
    runs = max(1, round(len(mine) / len(indices))) if mine else 1
    saving = None if program.device is None else program.device.transfer_ns(spared * runs)
    judged = worth(program, p, config, saving_ns=saving, avoidable_bytes=spared * runs)
    ops: dict[str, int] = defaultdict(int)
    by_name = {n.name: n for n in graph.nodes}
    for name in nodes:
        if name in by_name:
            ops[by_name[name].op] += 1
    place = next((by_name[n].location for n in nodes if n in by_name and by_name[n].location is not None), None)
    return Finding(
        rule=CODE,
        pass_name=p.name,
        severity=judged.severity,
        message=f"{len(positions)} kernels of graph {graph.id} each compute the same values ({short(ops)}) from the "
        f"same inputs: they load {human_bytes(spared * runs)} more a step than if the first had stored the result",
        ops=tuple(ops),
        kernel_ids=tuple(k.id for k in mine),
        location=place,
        avoidable_bytes=spared * runs,
        saving_ns=saving,
        basis=judged.basis,
        reason="a value with few reads is inlined into every kernel that needs it and never stored",
        remedy="lower torch._inductor.config.realize_reads_threshold so that the value is stored once",
        confidence="medium",
        evidence={"nodes": list(nodes[:20]), "share_of_step": judged.share},
        graph=graph.id,
        key=f"{graph.kind} recompute",
    )
