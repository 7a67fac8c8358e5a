"""Inductor kept two fusible kernels apart.

What: two or more generated kernels of one graph share data and iterate over the same elements (or are the two stages
of one split reduction, or rows of the same length, or a pad or cat of nearly the same size), and still are kernels of
their own. The finding has Inductor's own reason from its fusion log, with ops and lines put back in.

Why it costs: what they share goes through memory twice, and each is a launch. Three statistics of one 64 MB tensor
are one pass by hand and six launches by torch 2.11.

How it is measured: groups come from the buffers and sizes in the output code; the bytes at stake are those of values
that only the group needs and of input elements that several of its kernels read (places that data tell, a gather's,
do not count). Pairs without shared data, pairs with a library call or a scatter between them, and reductions over
different axes never show; rows of one length in parts of one buffer do, for their launches. The second stage of a
split reduction over large data is worth nothing and is information.

When it is wrong: keeping kernels apart can be right: fewer registers, more parallelism for few long rows, less memory
held at once. Inductor does not benchmark by default.

What to do: what the message names: torch._inductor.config.triton.cooperative_reductions for split reductions,
combo_kernels for rows of the same length, another axis or layout for outer reductions; measure both.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from fusionaudit.config import Config
from fusionaudit.figures import counted, times
from fusionaudit.findings import Finding, Location
from fusionaudit.inductor.model import CompiledGraph, FusionDecision
from fusionaudit.program.chip import chip_of
from fusionaudit.program.costs import sum_known
from fusionaudit.program.kept import kept
from fusionaudit.program.model import Kernel, Pass, Program
from fusionaudit.rules.graph_groups import CallGroup, Why, groups
from fusionaudit.rules.judging import human_bytes, human_time, kernel_ns, merged_ns, short, worth

CODE = "FA111"
TITLE = "Inductor kept fusible kernels apart"

_REMEDIES: dict[Why, str] = {
    "split": "try torch._inductor.config.triton.cooperative_reductions = True: the stages are then one kernel",
    "rows": "try torch._inductor.config.combo_kernels = True: rows of one length then share a launch",
    "size": "write the padded or joined form first and take a view of it for the other readers",
    "fill": "keep a padded buffer whose padding is filled once",
    "small": "compute it with one call over the whole tensor, or leave it: the cost is one launch",
    "same": "often another order of dimensions or one common layout lets them fuse",
    "prologue": "use a kernel that unpacks inside the matmul, or max-autotune's prologue fusion",
}
_GRID_SYNC_NS = 1000
"""What the stages of a reduction in one kernel still pay: a barrier over all SMs."""
_ON_PURPOSE = {"size-limit", "slower", "peak-memory", "user-setting"}
"""Causes with which Inductor weighs a cost of fusing against its gain: information."""
_GUESSES: dict[Why, str] = {
    "split": "the reduction is split in stages to use all SMs",
    "rows": "the kernels have rows of the same length but different row counts, and Inductor fuses equal sizes only",
    "size": "pad or cat changes the number of elements, and Inductor fuses equal sizes only",
    "fill": "the padding of the buffer is filled by a kernel of its own",
    "small": "small reductions are unrolled, so the two kernels index what they share differently",
    "same": "Inductor's log names no reason for this pair",
    "prologue": "Inductor calls the library for this matmul and writes its operand out first",
}


def check(program: Program, config: Config) -> Iterator[Finding]:
    """One finding for each group; groups of the same ops and line (layers, graphs compiled again) together."""
    for p in program.passes:
        if p.name != "compiled" and not p.name.startswith("imported"):
            continue
        alike: dict[tuple[object, ...], list[Apart]] = defaultdict(list)
        for graph, group in kept_apart(p):
            if not is_dynamic(graph, group):
                where = _location(graph, group, decision_for(p, graph, group))
                key = (graph.kind, _ops(graph, group), main_cause(group), where and (where.file, where.line))
                alike[key].append((graph, group))
        for found in alike.values():
            yield group_finding(program, p, config, found)


Apart = tuple[CompiledGraph, CallGroup]


@kept
def kept_apart(p: Pass) -> list[Apart]:
    """The groups of all graphs that ran in a pass."""
    ran = {k.graph for k in p.kernels if k.graph is not None}
    return [(graph, group) for graph in p.log.graphs if graph.id in ran for group in groups(graph, chip_of(p.device))]


def main_cause(group: CallGroup) -> Why:
    """Why most pairs of the group fit."""
    return "prologue" if "prologue" in group.why else max(sorted(set(group.why)), key=group.why.count)


def _ops(graph: CompiledGraph, group: CallGroup) -> tuple[str, ...]:
    return tuple(op for i in group.calls for op in graph.calls[i].aten)


def is_dynamic(graph: CompiledGraph, group: CallGroup) -> bool:
    """The sizes are equal only when symbols get their values: a graph of fixed sizes would fuse it (FA117)."""
    made = {k.name: k for k in graph.kernels}
    kernels = [made[graph.calls[i].target] for i in group.calls if graph.calls[i].target in made]
    symbolic = all(None in k.numels.values() for k in kernels) and bool(kernels)
    return symbolic and bool(graph.symbols) and set(group.why) == {"same"}


def decision_for(p: Pass, graph: CompiledGraph, group: CallGroup) -> FusionDecision | None:
    """Inductor's word on a pair of this group: the one that names most of the pair's nodes."""
    nodes = [set(graph.calls[i].nodes) for i in group.calls]
    best: tuple[int, FusionDecision] | None = None
    for decision in p.log.decisions:
        if decision.graph != graph.id:
            continue
        first, second = set(decision.first_nodes), set(decision.second_nodes)
        for i, a in enumerate(nodes):
            for j, b in enumerate(nodes):
                if i == j or not first & a or not second & b:
                    continue
                # The stages of a split reduction come from one node, so both sides may name it.
                score = len(first & a) + len(second & b) - len(first & b - a) - len(second & a - b)
                if best is None or score >= best[0]:
                    best = (score, decision)
    return None if best is None else best[1]


def _kernels(p: Pass, graph: CompiledGraph, group: CallGroup) -> list[Kernel]:
    indices = {graph.calls[i].index for i in group.calls}
    return [k for k in p.kernels if k.graph == graph.id and k.call in indices]


def group_finding(program: Program, p: Pass, config: Config, found: Sequence[Apart]) -> Finding:
    """What keeping such groups apart costs in a step, with the reason that the log has for the first."""
    graph, group = found[0]
    kernels, avoidable, saving, runs = [], [], [], 0
    for made, apart in found:
        launches = _kernels(p, made, apart)
        ran = max(1, round(len(launches) / len(apart.calls)))
        kernels += launches
        avoidable.append(None if apart.avoidable_bytes is None else apart.avoidable_bytes * ran)
        saving.append(_saving(program, p, launches, apart, ran))
        runs += ran
    moved, saved = sum_known(avoidable), sum_known(saving)
    judged = worth(program, p, config, saving_ns=saved, avoidable_bytes=moved)
    decision = decision_for(p, graph, group)
    why = main_cause(group)
    reason = _GUESSES[why]
    if decision is not None and "no shared data" not in decision.reason:
        reason = f"{_GUESSES[why]}; Inductor: {decision.reason}" if why != "same" else f"Inductor: {decision.reason}"
    elif decision is not None and why == "same":
        reason = "Inductor sees no shared data because the two index it differently"
    severity = judged.severity
    if decision is not None and decision.cause in _ON_PURPOSE:
        severity = "info"
    return Finding(
        rule=CODE,
        pass_name=p.name,
        severity=severity,
        message=_message(graph, group, runs, moved, saved),
        ops=_ops(graph, group),
        kernel_ids=tuple(k.id for k in kernels),
        location=_location(graph, group, decision),
        avoidable_bytes=moved,
        saving_ns=saved,
        basis=judged.basis,
        reason=reason,
        remedy=_REMEDIES[why] if saved != 0 else "nothing to do at this size",
        confidence="high" if decision is not None or why == "split" else "medium",
        evidence={
            "cause": decision.cause if decision is not None else why,
            "kernels": len(group.calls),
            "runs": runs,
            "share_of_step": judged.share,
        },
        graph=graph.id,
        key=f"{graph.kind} {why}",
    )


def _message(graph: CompiledGraph, group: CallGroup, runs: int, moved: int | None, saved: int | None) -> str:
    often = f" ({times(runs)} a step)" if runs > 1 else ""
    ops = _ops(graph, group)
    if set(group.why) == {"split"}:
        names = short(dict.fromkeys(ops))
        text = f"a reduction that runs in stages ({names}) is {counted(len(group.calls), 'kernel')}{often}, "
        text += f"which hand on {human_bytes(moved)} a step"
    else:
        text = f"{counted(len(group.calls), 'kernel')} ({short(ops)}){often} could be one"
        text += f" and share {human_bytes(moved)} a step" if moved != 0 else ""
    if saved:
        return f"{text}; one kernel would save about {human_time(saved)} a step"
    return f"{text}; one kernel would save no time" if saved == 0 else text


def _location(graph: CompiledGraph, group: CallGroup, decision: FusionDecision | None) -> Location | None:
    if decision is not None and decision.location is not None:
        return decision.location
    return next((graph.calls[i].location for i in group.calls if graph.calls[i].location is not None), None)


def _saving(program: Program, p: Pass, kernels: list[Kernel], group: CallGroup, runs: int) -> int | None:
    now = sum_known(kernel_ns(k, program.device) for k in kernels)
    moved = sum_known(k.global_bytes for k in kernels)
    if now is None or moved is None or group.avoidable_bytes is None or not kernels:
        return None
    if "prologue" in group.why:
        return None if program.device is None else program.device.transfer_ns(group.avoidable_bytes * runs)
    after = merged_ns(p, program.device, kernels, max(0, moved // runs - group.avoidable_bytes))
    barrier = _GRID_SYNC_NS * runs if "split" in group.why else 0
    return None if after is None else max(0, now - after * runs - barrier)
