"""Copies and casts between kernels that a fused kernel would not make.

What: a kernel that only moves or casts: between two kernels that could read or write the wanted form themselves, the
same tensor cast again and again within a step, or (compiled) a copy that Inductor put in for a layout or a mutation.

Why it costs: a copy reads and writes its tensor once for no work. A float32 weight of 4M elements cast to bfloat16 in
each of 64 calls moves 1.6 GB a step.

How it is measured: eager: chains of copies with at most one kernel of work (dataflow), casts of one value repeated in
a step, and copies between two kernels that cannot fuse. Compiled: generated kernels whose ops only move or cast,
apart from casts of parameters (FA108 has those).

When it is wrong: a copy can be wanted: to keep a value that is overwritten later, or as a layout that makes a
following matmul or convolution faster.

What to do: cast or lay out once, outside the loop; let the producer write the wanted dtype; keep one memory format
throughout; torch.compile the region.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace

from fusionaudit.config import Config
from fusionaudit.figures import counted
from fusionaudit.findings import Finding
from fusionaudit.program.chains import Chain
from fusionaudit.program.costs import op_bytes, sum_known
from fusionaudit.program.dataflow import Flow, Step, dataflow
from fusionaudit.program.hazards import protects
from fusionaudit.program.model import Kernel, Pass, Program
from fusionaudit.program.op_kinds import CAST, COPY
from fusionaudit.rules.chain_findings import chain_findings, chains_of, eager_like
from fusionaudit.rules.constants import constant_steps
from fusionaudit.rules.copy_backs import copy_backs
from fusionaudit.rules.graph_groups import call_flow
from fusionaudit.rules.judging import between_ns, compiled_away, human_bytes, human_time, kernel_ns, short, worth
from fusionaudit.rules.library_ops import roots
from fusionaudit.rules.repeats import claimed_ops

CODE = "FA105"
TITLE = "copies and casts between kernels that a fused kernel would not make"

_MOVING = CAST | COPY
_LAYOUT_ONLY = frozenset({"view", "permute", "transpose", "t", "slice", "select", "unsqueeze", "squeeze", "expand",
                          "split", "split_with_sizes", "unbind", "alias", "detach", "reshape", "_unsafe_view",
                          "as_strided"})  # fmt: skip
_LEAST_SHARE = 0.01
_LIBRARY = {"matmul", "convolution", "attention", "template", "collective"}
_REMEDY = "write the wanted dtype or layout in the kernel before (torch.compile does), or convert once outside the loop"


def is_copying(chain: Chain) -> bool:
    """At most one op of the chain works; the others only move or cast, after or around it."""
    if chain.library is not None:
        return False
    names = roots(chain.ops)
    working = [n for n in names if n not in _MOVING]
    if len(working) == len(names) or len(working) > 1:
        return False
    return chain.kind == "elementwise" or names[0] == (working or names[:1])[0]


def check(program: Program, config: Config) -> Iterator[Finding]:
    """Eager chains of copies, repeated casts, copies between opaque kernels; compiled copy kernels."""
    passes = eager_like(program)
    wanted = [
        (p, [c for c in chains_of(p) if c.kind in ("elementwise", "matmul_epilogue") and is_copying(c)]) for p in passes
    ]
    text = "only move or cast what the kernel beside them could read or write in that form"
    yield from chain_findings(CODE, program, config, wanted, text, _REMEDY)
    for p in passes:
        yield from _loose_copies(program, p, config)
    compiled = program.get("compiled")
    if compiled is not None:
        yield from _compiled_copies(program, compiled, config)
        yield from _copied_back(program, compiled, config)


def _loose_copies(program: Program, p: Pass, config: Config) -> Iterator[Finding]:
    """Casts of one value made several times, and copies between kernels that cannot take them in."""
    flow = dataflow(p)
    taken = {i for c in chains_of(p) for i in c.op_ids} | claimed_ops(program, p, config)
    constant = {s.op.id for s in constant_steps(p)}
    repeated: dict[tuple[object, ...], list[Step]] = defaultdict(list)
    between: dict[tuple[object, ...], list[Step]] = defaultdict(list)
    for step in flow.steps:
        if step.kind not in ("cast", "copy") or not step.uses or not step.op.outputs or step.op.mutated:
            continue
        if step.op.id in constant:
            continue
        value, source = step.uses[0]
        target = step.op.outputs[0]
        where = step.op.location and (step.op.location.file, step.op.location.line)
        if step.kind == "cast":
            repeated[(value, source.offset, source.shape, target.dtype, where)].append(step)
        if step.op.id not in taken and _is_between(flow, step) and not protects(flow, step):
            between[(step.op.name, where, source.dtype, target.dtype)].append(step)
    used: set[int] = set()
    for group in repeated.values():
        if len(group) > 1:
            used.update(s.op.id for s in group)
            what = f"one {group[0].uses[0][1].dtype} tensor is cast {len(group)} times a step"
            yield _finding(program, p, config, group, group[1:], what, "cast it once and keep the result")
    for group in between.values():
        rest = [s for s in group if s.op.id not in used]
        if rest:
            what = f"{counted(len(rest), short([rest[0].op.name]) + ' kernel')} a step between two kernels"
            yield _finding(program, p, config, rest, rest, what, _REMEDY)


def _is_between(flow: Flow, step: Step) -> bool:
    """Made by a kernel of this step, read by kernels of this step only."""
    made = any(v in flow.maker for v, _ in step.uses)
    return made and all(not flow.leaves(v, frozenset(flow.readers.get(v, ()))) for v, _ in step.makes)


def _finding(
    program: Program, p: Pass, config: Config, group: list[Step], spared: list[Step], what: str, remedy: str
) -> Finding:
    whole, avoidable = sum_known(b for s in spared for b in op_bytes(s.op)), _beyond_chains(p, spared)
    kernels = {k.id: k for k in p.kernels}
    saving = sum_known(kernel_ns(kernels[k], program.device) for s in spared for k in s.kernels)
    if avoidable != whole and program.device is not None:
        saving = program.device.transfer_ns(avoidable)
    judged = worth(program, p, config, saving_ns=saving, avoidable_bytes=avoidable)
    if saving is not None:
        saving += between_ns(p, [k for s in spared for k in s.kernels], left=0)
    away = compiled_away(program, p, [s.op for s in group]) and _is_gone(program, group)
    return Finding(
        rule=CODE,
        pass_name=p.name,
        severity="info" if away else judged.severity,
        message=f"{what}: {human_bytes(avoidable)} a step need not move"
        + (f", about {human_time(saving)}" if saving else ""),
        ops=(group[0].op.name,),
        op_ids=tuple(s.op.id for s in group),
        kernel_ids=tuple(k for s in group for k in s.kernels),
        location=group[0].op.location,
        avoidable_bytes=avoidable,
        saving_ns=saving,
        basis=judged.basis,
        reason="torch.compile in the script takes these copies away" if away else None,
        remedy=remedy,
        confidence="high" if p.name == "eager" else "medium",
        evidence={"copies": len(group), "share_of_step": judged.share},
        key=f"{group[0].op.phase} {group[0].op.outputs[0].dtype}",
    )


def _beyond_chains(p: Pass, spared: list[Step]) -> int | None:
    """What these kernels move, without what the findings of their chains count: values inside those."""
    flow = dataflow(p)
    of_op = {step.op.id: step.index for step in flow.steps}
    found = sorted(chains_of(p), key=lambda c: len(c.op_ids))  # one around a library's pattern holds its ops as well
    chain_of = {i: frozenset(of_op[o] for o in c.op_ids) for c in found for i in c.op_ids}
    out: list[int | None] = []
    for step in spared:
        inside = chain_of.get(step.op.id)
        if inside is None:
            out += op_bytes(step.op)
            continue
        out += [t.nbytes for v, t in step.uses if flow.maker.get(v) not in inside]
        out += [t.nbytes for v, t in step.makes if flow.leaves(v, inside)]
    return sum_known(out)


def _is_gone(program: Program, group: list[Step]) -> bool:
    """No kernel of the compiled pass still does only this: same dtypes and size."""
    compiled = program.get("compiled")
    wanted = {(s.uses[0][1].dtype, s.op.outputs[0].dtype, s.op.outputs[0].numel) for s in group}
    left = sum(
        k.graph is not None
        and bool(k.reads and k.writes)
        and only_moves(k)
        and (k.reads[0].dtype, k.writes[0].dtype, k.writes[0].numel) in wanted
        for k in (compiled.kernels if compiled is not None else ())
    )
    return left * 2 < len(group)


def only_moves(kernel: Kernel) -> bool:
    """A generated kernel that only moves, casts or re-views."""
    if kernel.graph is None or kernel.category not in ("copy", "pointwise"):
        return False
    names = set(roots(kernel.op_names))
    return kernel.category == "copy" or (names <= _MOVING | _LAYOUT_ONLY and bool(names & _MOVING))


def _not_inductors(p: Pass) -> set[tuple[str, int]]:
    """(graph, call) of copies that something else speaks for.

    A copy of a graph's inputs is what the program asks for (or a cast of a parameter, FA108); a copy beside a call
    that Inductor cannot open is there because of that (FA114); a cast of a matmul's result is its epilogue (FA104); a
    copy back over an input is needed, or has a finding of its own.
    """
    out: set[tuple[str, int]] = set()
    for graph in p.log.graphs:
        flow = call_flow(graph)
        given = {t.storage for t in graph.inputs}
        back = {c.position for c in copy_backs(graph) if c.needed or c.whole}
        for position, call in enumerate(graph.calls):
            makers = [flow.maker.get(v) for v, _ in flow.uses[position]]
            inputs_only = all(m is None for m in makers) and {t.storage for t in call.reads} <= given
            beside = [graph.calls[m] for m in makers if m is not None]
            opaque = [c for c in beside if c.kind in ("extern", "custom", "user_triton") and c.category not in _LIBRARY]
            cast = bool(call.reads and call.writes) and call.reads[0].dtype != call.writes[0].dtype
            epilogue = cast and any(c.category in ("matmul", "convolution") for c in beside)
            if inputs_only or opaque or epilogue or position in back:
                out.add((graph.id, call.index))
    return out


def _compiled_copies(program: Program, p: Pass, config: Config) -> Iterator[Finding]:
    """Kernels of the graphs that only move or cast what other kernels of the graph made."""
    asked = _not_inductors(p)
    groups: dict[tuple[object, ...], list[Kernel]] = defaultdict(list)
    for kernel in p.kernels:
        if not only_moves(kernel) or all(t.is_parameter for t in kernel.reads) or not kernel.reads:
            continue
        if (kernel.graph, kernel.call) in asked:
            continue
        if any(t.device.startswith("cpu") for t in kernel.reads):
            continue
        groups[(kernel.graph, kernel.op_names)].append(kernel)
    # Inductor's doing is measured against what its graphs take, not against the rest of the step.
    inside = replace(p, kernels=tuple(k for k in p.kernels if k.graph is not None))
    every = sum_known(kernel_ns(k, program.device) for group in groups.values() for k in group)
    together = worth(program, inside, config, saving_ns=every, avoidable_bytes=None).severity if groups else "info"
    for (_, names), group in groups.items():
        avoidable = sum_known(k.global_bytes for k in group)
        saving = sum_known(kernel_ns(k, program.device) for k in group)
        judged = worth(program, inside, config, saving_ns=saving, avoidable_bytes=avoidable)
        # Copies add up: each that matters at all is as bad as all of them together.
        severity = together if (judged.share or 0.0) >= _LEAST_SHARE else judged.severity
        ops = group[0].op_names
        yield Finding(
            rule=CODE,
            pass_name=p.name,
            severity=severity,
            message=f"Inductor made {counted(len(group), 'kernel')} a step that only copy or cast ({short(ops)}): "
            f"{human_bytes(avoidable)}" + (f", about {human_time(saving)}" if saving else ""),
            ops=ops,
            kernel_ids=tuple(k.id for k in group),
            location=group[0].location,
            avoidable_bytes=avoidable,
            saving_ns=saving,
            basis=judged.basis,
            reason=_why(group[0]),
            remedy="keep one dtype and memory format on both sides; update in place what is written whole",
            evidence={"op_root": op_root_names(group[0]), "share_of_step": judged.share},
            graph=group[0].graph,
            key=str(names),
        )


def _copied_back(program: Program, p: Pass, config: Config) -> Iterator[Finding]:
    """In-place updates that Inductor makes in a temporary of full size."""
    for graph in p.log.graphs:
        mine = [k for k in p.kernels if k.graph == graph.id]
        found = [c for c in copy_backs(graph) if c.whole and not c.needed] if mine else []
        if not found:
            continue
        runs = max(1, round(len(mine) / max(1, sum(c.kind != "cpu" for c in graph.calls))))
        total = sum_known(c.temporary.nbytes for c in found)
        avoidable = None if total is None else 2 * total * runs
        saving = None if program.device is None else program.device.transfer_ns(avoidable)
        judged = worth(program, p, config, saving_ns=saving, avoidable_bytes=avoidable)
        indices = {graph.calls[c.position].index for c in found}
        first = graph.calls[found[0].position]
        yield Finding(
            rule=CODE,
            pass_name=p.name,
            severity=judged.severity,
            message=f"graph {graph.id} updates an input in a full-size temporary and copies it back: "
            f"{human_bytes(avoidable)} a step" + (f", about {human_time(saving)}" if saving else ""),
            ops=first.aten,
            kernel_ids=tuple(k.id for k in mine if k.call in indices),
            location=first.location,
            avoidable_bytes=avoidable,
            saving_ns=saving,
            basis=judged.basis,
            reason="the in-place update was made functional and not turned back into one that is in place",
            remedy="make one update of it (one index_put or slice), or do them outside the compiled function",
            confidence="medium",
            evidence={"copies": len(found), "share_of_step": judged.share},
            graph=graph.id,
            key="copied back",
        )


def op_root_names(kernel: Kernel) -> list[str]:
    """Distinct op names of the kernel, for the evidence."""
    return list(dict.fromkeys(roots(kernel.op_names)))


def _why(kernel: Kernel) -> str:
    source, target = kernel.reads[0], kernel.writes[0] if kernel.writes else None
    if target is not None and source.dtype != target.dtype:
        return f"a cast from {source.dtype} to {target.dtype} found no kernel to join"
    if target is not None and source.strides != target.strides:
        return "the next kernel wants another memory layout"
    return "a value that is overwritten or returned is kept in a copy of its own"
