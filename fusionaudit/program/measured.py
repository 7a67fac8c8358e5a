"""A pass from a trace: the steady step's launches with measured times, tied to ops and to compiled graphs."""

from __future__ import annotations

import re
import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from fusionaudit.figures import counted
from fusionaudit.findings import Location, Note
from fusionaudit.inductor.model import CompiledGraph, GeneratedCall, InductorLog
from fusionaudit.program.costs import category, mutated_inputs, op_bytes
from fusionaudit.program.graphs import align, choose_graph, replayed_graph
from fusionaudit.program.imported import imported_ops
from fusionaudit.program.launches import Operands, launch_operands
from fusionaudit.program.loops import Loop
from fusionaudit.program.model import Category, HostSync, Kernel, Pass, PassName
from fusionaudit.program.records import Place, activity_steps, same_launches
from fusionaudit.program.repeated import repeated_ops
from fusionaudit.program.steps import Steps, steady_activities, unlike_steps
from fusionaudit.tensors import total_bytes
from fusionaudit.trace.schema import Activity, Op, OpLog, RangeOp, Trace

_NAME_CATEGORIES: tuple[tuple[str, Category], ...] = (
    (r"^triton_poi_", "pointwise"), (r"^triton_per_", "persistent_reduction"), (r"^triton_red_", "reduction"),
    (r"^triton_(mm|tem|flex|bmm|addmm)", "template"), (r"^triton_for_", "foreach"), (r"^triton_spl_", "scan"),
    (r"nccl", "collective"), (r"multi_tensor_apply", "foreach"),
    (r"fmha|flash|attention|sdpa", "attention"), (r"gemm|cutlass|gemv|nvjet|splitKreduce|cublas", "matmul"),
    (r"cudnn.*conv|implicit_convolve|conv2d|convolve|xmma_fprop|xmma_dgrad|xmma_wgrad", "convolution"),
    (r"softmax|SoftMax", "softmax"), (r"layer_norm|LayerNorm|RowwiseMoments|GammaBeta|batch_norm|bn_fw|bn_bw", "norm"),
    (r"reduce_kernel|reduce", "reduction"), (r"distribution_|philox|dropout", "random"),
    (r"index|gather|scatter|embedding", "index"), (r"CatArrayBatchedCopy", "copy"), (r"scan|cumsum", "scan"),
    (r"sort|topk|TopK", "sort"), (r"copy_kernel|direct_copy", "copy"), (r"elementwise_kernel|vectorized", "pointwise"),
)  # fmt: skip


_BESIDE: tuple[Category, ...] = ("pointwise", "reduction")
"""What ATen launches beside a library's kernel for one op."""
_LEAST_MATCH = 0.5
"""Below this share of launches with a known op, chains cannot be judged: silence would read as "all fine"."""


def kernel_category(name: str) -> Category:
    """Category from a kernel's name alone, for launches that no op explains; ``opaque`` where the name says nothing."""
    for pattern, found in _NAME_CATEGORIES:
        if re.search(pattern, name):
            return found
    return "opaque"


def _copy_bytes(activity: Activity) -> tuple[int | None, int | None]:
    """Device memory read and written by a memcpy or memset of the size that the trace has."""
    if activity.bytes is None:
        return None, None
    if activity.kind == "memset":
        return 0, activity.bytes
    kind = (activity.copy_kind or "").lower()
    if "device-to-host" in kind or "dtoh" in kind:
        return activity.bytes, 0
    if "host-to-device" in kind or "htod" in kind:
        return 0, activity.bytes
    return activity.bytes, activity.bytes


def _op_shares(activities: Sequence[Activity], ops: dict[int, Op]) -> dict[int, tuple[int | None, int | None]]:
    """(read, write) bytes of each activity index that an op explains.

    The bytes of an op go to its one kernel. Several launches of one kernel (foreach chunks) share them by grid size.
    Several different kernels: not known for each, so ``None`` (the op's total would be a guess for either).
    """
    by_op: dict[int, list[int]] = defaultdict(list)
    for i, activity in enumerate(activities):
        if activity.op is not None and activity.kind == "kernel":
            by_op[activity.op.op_id].append(i)
    out: dict[int, tuple[int | None, int | None]] = {}
    for op_id, indices in by_op.items():
        op = ops.get(op_id)
        read, write = op_bytes(op) if op is not None else (None, None)
        if len(indices) == 1:
            out[indices[0]] = (read, write)
        elif len({activities[i].name for i in indices}) == 1 and read is not None and write is not None:
            grids = [max(1, (activities[i].grid or (1, 1, 1))[0]) for i in indices]
            total, given_read, given_write = sum(grids), 0, 0
            for i, grid in zip(indices[:-1], grids, strict=False):
                share = (read * grid // total, write * grid // total)
                out[i], given_read, given_write = share, given_read + share[0], given_write + share[1]
            out[indices[-1]] = (read - given_read, write - given_write)
        else:
            out.update(_launch_shares([(i, activities[i].name) for i in indices], op))
    return out


def _launch_shares(launches: Sequence[tuple[int, str]], op: Op | None) -> dict[int, tuple[int | None, int | None]]:
    """(read, write) bytes of an op's different kernels, where each does work that can be told by its name."""
    out: dict[int, tuple[int | None, int | None]] = {i: (None, None) for i, _ in launches}
    each = () if op is None else launch_operands(op)
    # What is no library kernel adds a bias, or sums its gradient; it comes last.
    own = [i for i, name in launches if kernel_category(name) in _BESIDE]
    library = [i for i, _ in launches if i not in own]
    small = sum(len(outs[0].shape) <= 1 or outs[0] in ins for ins, outs in each)
    if len(own) == small:
        out.update(zip(own, (_moved(e) for e in each[len(each) - small :]), strict=True))
    if len(library) == len(each) - small == 1:
        out[library[0]] = _moved(each[0])
    return out


def _moved(operands: Operands) -> tuple[int | None, int | None]:
    return total_bytes(operands[0]), total_bytes(operands[1])


Ties = dict[int, tuple[CompiledGraph, GeneratedCall]]
"""The compiled graph and call of an activity, by its index."""


def _graph_calls(activities: Sequence[Activity], graphs: Sequence[CompiledGraph]) -> Ties:
    """The compiled graph and call of each activity index that runs inside a compiled graph."""
    executions: dict[tuple[str | None, int | None], list[int]] = defaultdict(list)
    replays: dict[int | None, list[int]] = defaultdict(list)
    for i, activity in enumerate(activities):
        if activity.graph_call is not None:
            executions[(activity.graph_call, activity.graph_call_id)].append(i)
        elif activity.graph_node is not None and activity.op is None:
            replays[activity.correlation].append(i)
    chosen: dict[str | None, CompiledGraph | None] = {}
    out: Ties = {}
    runs: list[tuple[CompiledGraph | None, list[int]]] = []
    for (key, _), indices in executions.items():
        if key not in chosen:
            chosen[key] = choose_graph(graphs, key, [activities[i] for i in indices])
        runs.append((chosen[key], indices))
    runs += [(replayed_graph(graphs, [activities[i] for i in own]), own) for own in replays.values()]
    for graph, indices in runs:
        if graph is None:
            continue
        for i, call in zip(indices, align(graph, [activities[i] for i in indices]), strict=True):
            if call is not None:
                out[i] = (graph, call)
    return out


def _kernel(
    index: int,
    activity: Activity,
    op: Op | None,
    share: tuple[int | None, int | None] | None,
    generated: tuple[CompiledGraph, GeneratedCall] | None,
    first_of_call: bool,
) -> Kernel:
    kernel = Kernel(
        id=index,
        name=activity.name,
        category=kernel_category(activity.name),
        duration_ns=activity.duration_ns,
        time_basis="measured",
        start_ns=activity.start_ns,
        launch_ns=None
        if activity.launch_start_ns is None or activity.launch_end_ns is None
        else activity.launch_end_ns - activity.launch_start_ns,
        registers=activity.registers,
        local_memory_bytes=activity.local_bytes_per_thread,
        shared_memory_bytes=None
        if activity.static_shared_bytes is None
        else activity.static_shared_bytes + (activity.dynamic_shared_bytes or 0),
        grid=activity.grid,
        block=activity.block,
        stream=activity.stream,
        replayed=activity.graph_node is not None,
        region=activity.region,
    )
    if activity.kind != "kernel":
        read, write = _copy_bytes(activity)
        kernel = replace(kernel, category=activity.kind, read_bytes=read, write_bytes=write, bytes_basis="measured")
    if generated is not None:
        graph, call = generated
        kernel = replace(
            kernel,
            graph=graph.id,
            call=call.index,
            op_names=call.aten,
            nodes=call.nodes,
            reads=call.reads,
            writes=call.writes,
            location=call.location,
            phase="backward" if graph.kind == "backward" else "forward",
        )
        if activity.kind == "kernel" and call.kind == "triton":
            kernel = replace(kernel, category=call.category)  # type: ignore[arg-type]
        if activity.kind == "kernel" and first_of_call:
            kernel = replace(
                kernel,
                read_bytes=call.read_bytes,
                write_bytes=call.write_bytes,
                reread_bytes=call.reread_bytes,
            )
    elif op is not None:
        kernel = replace(
            kernel, ops=(op.id,), op_names=(op.name,), reads=op.inputs, writes=op.outputs or mutated_inputs(op),
            location=op.location, phase=op.phase, region=op.region or kernel.region,
        )  # fmt: skip
        if activity.kind == "kernel":
            found = category(op)
            if launch_operands(op) and kernel.category in _BESIDE:
                found = kernel.category
            read, write = share or (None, None)
            kernel = replace(kernel, category=found or kernel.category, read_bytes=read, write_bytes=write)
    elif activity.op is not None:
        kernel = replace(kernel, op_names=(activity.op.name,))
    return kernel


def _medians(activities: Sequence[Activity], steps: Steps) -> list[Activity]:
    """The last step's activities, each with the median duration of its position over all steps of the same shape."""
    first, last = steps.spans[-1]
    chosen = list(activities[first:last])
    same = [
        activities[a:b]
        for a, b in steps.spans
        if b - a == len(chosen) and all(x.name == y.name for x, y in zip(activities[a:b], chosen, strict=True))
    ]
    if len(same) < 2:
        return chosen
    durations = [round(statistics.median(run[i].duration_ns for run in same)) for i in range(len(chosen))]
    return [replace(a, end_ns=a.start_ns + d) for a, d in zip(chosen, durations, strict=True)]


def _span_and_idle(activities: Sequence[Activity], steps: Steps) -> tuple[int | None, int | None]:
    """Median over the steps of (device span from first start to next step's first start or own end, idle part)."""
    spans, idles = [], []
    for number, (first, last) in enumerate(steps.spans):
        run = activities[first:last]
        if not run:
            continue
        end = max(a.end_ns for a in run)
        following = steps.spans[number + 1][0] if number + 1 < len(steps.spans) else None
        if following is not None and following == last:
            end = max(end, activities[following].start_ns)
        busy, reached = 0, run[0].start_ns
        for activity in sorted(run, key=lambda a: a.start_ns):
            busy += max(0, activity.end_ns - max(activity.start_ns, reached))
            reached = max(reached, activity.end_ns)
        spans.append(end - run[0].start_ns)
        idles.append(end - run[0].start_ns - busy)
    if not spans:
        return None, None
    # The lower of two: the first step of a short script still loads kernels.
    return round(statistics.median_low(spans)), round(statistics.median_low(idles))


def _of_loop(
    activities: Sequence[Activity], ties: Ties, log: InductorLog, loop: Loop | None, *, warmup: int | None,
    steps: int | None,
) -> Steps:  # fmt: skip
    """The steady step; where it holds no graph of the eager pass's loop and others do, one that does."""
    found = steady_activities(activities, warmup=warmup, steps=steps)
    if loop is None or found.source != "period":
        return found
    of = {g.id: loop.has_graph(g, g.inputs) is True for g in log.graphs}
    own = frozenset(i for i, (graph, _) in ties.items() if of[graph.id])
    if not own or any(first <= i < last for i in own for first, last in found.spans):
        return found
    again = steady_activities(activities, warmup=warmup, steps=steps, prefer=own)
    return again if any(first <= i < last for i in own for first, last in again.spans) else found


def measured_pass(
    name: PassName,
    engine: str,
    trace: Trace,
    oplog: OpLog | None,
    log: InductorLog,
    *,
    warmup: int | None = None,
    steps: int | None = None,
    step_names: Sequence[str] = (),
    outside: frozenset[Place] | None = None,
    loop: Loop | None = None,
) -> Pass:
    """The Pass of one trace, cut down to its steady step; ``step_names`` are the launches of a step known already,
    ``outside`` is what the compiled pass ran outside graphs, ``loop`` the eager pass's."""
    activities = [a for a in trace.activities if not a.compiling]
    ties = _graph_calls(activities, log.graphs)
    found = same_launches(activities, step_names)
    if found is None and name == "eager" and oplog is not None:
        found = activity_steps(activities, oplog, warmup=warmup, steps=steps, outside=outside)
    if found is None:
        found = _of_loop(activities, ties, log, loop, warmup=warmup, steps=steps)
    # The clean passes have no ranges by design: only their times count.
    attributed = not name.startswith("clean")
    notes = [n for n in trace.notes if attributed or n.blocks]
    notes += (*(oplog.notes if oplog is not None else ()), *unlike_steps(found, name))
    if found.source == "whole" and activities and attributed:
        what = f"the whole recording ({counted(len(activities), 'launch or copy', 'launches and copies')})"
        notes.append(
            Note(
                kind="no-steps",
                text=f"{name}: no repeating step found; {what} is one step",
                remedy="call fusionaudit.step() at the start of each step, or run more steps",
                pass_name=name,
            )
        )
    chosen = _medians(activities, found) if activities else []
    recorded = {r.id: r for r in oplog.records if isinstance(r, Op)} if oplog is not None else {}
    used = {a.op.op_id for a in chosen if a.op is not None}
    if recorded:
        ops = {i: recorded[i] for i in sorted(used & set(recorded))}
        if ops:
            low, high = min(ops), max(ops)
            ops = {i: op for i, op in recorded.items() if low <= i <= high}
    else:
        ops = imported_ops(chosen, trace.range_ops)
    generated = _graph_calls(chosen, log.graphs)
    loose = [a if i not in generated else replace(a, op=None) for i, a in enumerate(chosen)]
    shares = _op_shares(loose, ops)
    kernels: list[Kernel] = []
    seen_calls: set[tuple[int | None, str, int]] = set()
    unmatched = 0
    for i, activity in enumerate(chosen):
        tie = generated.get(i)
        first = False
        if tie is not None and activity.kind == "kernel":
            run = activity.correlation if activity.graph_call is None else activity.graph_call_id
            token = (run, tie[0].id, tie[1].index)
            first = token not in seen_calls
            seen_calls.add(token)
        op = None if activity.op is None else ops.get(activity.op.op_id)
        unmatched += tie is None and activity.op is None
        kernel = _kernel(i, activity, op, shares.get(i), tie, first)
        previous_end = max((a.end_ns for a in chosen[max(0, i - 8) : i]), default=None)
        gap = None if previous_end is None else max(0, activity.start_ns - previous_end)
        kernels.append(replace(kernel, gap_ns=gap))
    extra = sum(1 for k, i in zip(kernels, range(len(kernels)), strict=True) if i in generated and k.read_bytes is None)
    if chosen and attributed:
        share = 1 - unmatched / len(chosen)
        names = sorted({k.name for i, k in enumerate(kernels) if i not in generated and chosen[i].op is None})
        text = f"{name}: tied to an op: {share:.1%} of {counted(len(chosen), 'launch or copy', 'launches and copies')}"
        if names:
            text += f"; not tied: {', '.join(n[:40] for n in names[:5])}" + (" ..." if len(names) > 5 else "")
        lost = share < _LEAST_MATCH
        remedy = "record it with op ranges (emit_nvtx, or torch.profiler's CPU activities)" if lost else ""
        notes.append(Note(kind="match-rate", text=text, pass_name=name, blocks=lost, remedy=remedy))
    if all(i in generated for i, k in enumerate(kernels) if k.replayed):
        notes = [n for n in notes if n.kind != "opaque-graph"]  # the log ties them
    if extra:
        text = f"{name}: bytes of {counted(extra, 'launch', 'launches')} in graphs are not known"
        notes.append(Note(kind="unknown-bytes", text=text))
    span, idle = _span_and_idle(activities, found) if activities else (None, None)
    # A wait after the last launch of the step is the script's end or the next step's business.
    begin = (chosen[0].launch_start_ns or chosen[0].start_ns) if chosen else 0
    end = (chosen[-1].launch_end_ns or chosen[-1].start_ns) if chosen else 0
    syncs = tuple(
        HostSync(name=s.name, duration_ns=s.end_ns - s.start_ns, location=_sync_location(s.op, recorded))
        for s in trace.syncs
        if begin <= s.start_ns <= end
    )
    return Pass(
        name=name, engine=engine, kernels=tuple(kernels), ops=tuple(ops[i] for i in sorted(ops)), syncs=syncs,
        steps=0 if found.source == "whole" else len(found.spans), step_ns=span, idle_ns=idle,
        repeated_graphs=_outside_step(ties, found),
        repeated=frozenset() if found.source == "whole" else repeated_ops(ops.values(), oplog),
        unmatched_kernels=unmatched, log=log, notes=tuple(notes),
    )  # fmt: skip


def _outside_step(ties: Ties, found: Steps) -> frozenset[str]:
    first, last = found.spans[-1] if found.spans else (0, 0)
    return frozenset(graph.id for i, (graph, _) in ties.items() if not first <= i < last)


def _sync_location(op: RangeOp | None, recorded: dict[int, Op]) -> Location | None:
    return recorded[op.op_id].location if op is not None and op.op_id in recorded else None
