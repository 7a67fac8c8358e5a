"""Reads Inductor's fusion log: who was kept apart from whom, why, and what that means in ops and lines."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from fusionaudit.findings import Location
from fusionaudit.inductor.graph_text import innermost_user_frame
from fusionaudit.inductor.log_lines import LogLine
from fusionaudit.inductor.model import CompiledGraph, FusionDecision, GeneratedCall

CAUSES: dict[str, str] = {
    "split-reduction": "one reduction was split in stages for parallelism; the stages are kernels of their own",
    "iteration-mismatch": "the two loop over different numbers of elements or rows",
    "dependency": "something else has to run between the two, or fusing would make a cycle",
    "memory-order": "they walk the memory they share in different orders, layouts or tilings",
    "index-mismatch": "they read or write the shared buffer through indices that do not line up",
    "no-shared-data": "they have no data in common: nothing would be saved",
    "low-score": "they share too little data for Inductor's threshold",
    "extern-barrier": "one of them is a library call or custom op that Inductor cannot open",
    "template": "a matmul or attention template does not take this prologue or epilogue",
    "foreach": "a foreach (combo) kernel does not take this node",
    "mutation": "one of them writes a buffer in place that the other still needs",
    "device": "they run on different devices or streams",
    "size-limit": "the fused kernel would have too many nodes, reads, writes or registers",
    "peak-memory": "fusing would hold more memory at once or join distant nodes",
    "slower": "Inductor measured the fused kernel and it was slower",
    "scan": "split scans do not fuse with reductions",
    "user-setting": "a setting or annotation of the user keeps them apart",
    "other": "a reason that this version of fusionaudit does not know",
}
"""The causes that Inductor's reasons are mapped to, in plain words."""

_PATTERNS: tuple[tuple[str, str], ...] = (
    (r"no shared data due to (indexing|index|dimension|loop)", "index-mismatch"),
    (r"no shared data", "no-shared-data"),
    (r"intermediate nodes between|must go before|will create cycle|create a cycle|cyclic", "dependency"),
    (r"register spilling|exceeds max fusion|too many reads_and_writes|too_many_reads_and_writes", "size-limit"),
    (r"increase peak memory|too far away", "peak-memory"),
    (r"score_fusion_memory_threshold|score", "low-score"),
    (r"slowdown|benchmark", "slower"),
    (r"foreach", "foreach"),
    (r"by EVT|is not a (ComputedBuffer|Pointwise)|computed buffer name|'s size: .* differs from", "template"),
    (r"[Ss]plit scan", "scan"),
    (r"prologue|epilogue|template|native matmul", "template"),
    (r"numel|rnumel|numel incompatibility|sizes? mismatch", "iteration-mismatch"),
    (r"memory deps did not match|indexing|index(es)? ", "index-mismatch"),
    (r"tiling|loop order|layout|memory order|reorder|strict sum ordering", "memory-order"),
    (r"device mismatch|stream", "device"),
    (r"extern|is nop|or nop|not SchedulerNode|not Pointwise", "extern-barrier"),
    (r"mutat|alias|in-place|inplace", "mutation"),
    (r"explicit(ly)? disabled|grouped node|turned off|user|config", "user-setting"),
)
"""(regular expression, cause) over the strings of torch/_inductor/{scheduler,choices}.py and codegen/simd.py, torch
2.9 to 2.14; the first that matches decides."""

_CANNOT = re.compile(r"^cannot fuse (?P<first>\S+) with (?P<second>\S+): (?P<reason>.*)$")
_SLOWER = re.compile(
    r"cannot fuse \(benchmark\): fusing (?P<first>.*?) with (?P<second>.*?) cause (?P<slower>\S+)x slowdown"
)
_NODE_NAME = re.compile(r"SchedulerNode\(name=\\*'(op\d+)\\*'\)")
_FOREACH = re.compile(r"^\s*(?:Foreach|Combo)\w*SchedulerNode\(nodes=(\w+)\)")
_ORIGINS = re.compile(r"origins=OrderedSet\(\[(.*?)\]\)")


def cause_of(reason: str, *, same_reduction: bool = False) -> str:
    """The cause (a key of CAUSES) of one of Inductor's reasons.

    ``same_reduction``: both nodes come from the same reduction op, so a size mismatch is a split reduction.
    """
    for pattern, cause in _PATTERNS:
        if re.search(pattern, reason):
            return "split-reduction" if same_reduction and cause == "iteration-mismatch" else cause
    return "other"


@dataclass
class _Scheduled:
    """One scheduler node (``op3``): the fx nodes it came from and the user's line."""

    origins: tuple[str, ...]
    location: Location | None
    reduction: bool


@dataclass
class FusionRecord:
    """The fusion lines of one lowered graph; ``foreach`` are the members of each foreach node after the last round."""

    compile_id: str | None
    nodes: dict[str, _Scheduled] = field(default_factory=dict)
    apart: dict[tuple[str, str, str], None] = field(default_factory=dict)
    fused: list[tuple[str, str]] = field(default_factory=list)
    unrelated: int = 0
    foreach: list[tuple[str, ...]] = field(default_factory=list)


def parse_fusion(lines: Iterable[LogLine]) -> list[FusionRecord]:
    """One record for each graph that was scheduled, in order.

    ``attempting fusion (1/...)`` begins a graph. Repeats of a pair and reason over rounds are dropped; pairs without
    shared data are only counted.
    """
    out: list[FusionRecord] = []
    current: FusionRecord | None = None
    for line in lines:
        if line.artifact != "fusion":
            continue
        text = line.text
        if current is None or "attempting fusion (1/" in text or current.compile_id != line.compile_id:
            current = FusionRecord(compile_id=line.compile_id)
            out.append(current)
        if "fuse_nodes_once, candidates" in text:
            current.foreach.clear()
        if "SchedulerNode(" in text:
            grouped = _FOREACH.match(text)
            if grouped:
                current.foreach.append(members(grouped.group(1)))
            _candidates(text, current)
            continue
        stripped = text.strip()
        found = _CANNOT.match(stripped)
        if found:
            reason = found["reason"].strip()
            if reason == "no shared data":
                current.unrelated += 1
            else:
                current.apart[(found["first"], found["second"], reason)] = None
            continue
        found = _SLOWER.search(stripped)
        if found:
            names = tuple("_".join(re.findall(r"\b(?:op|buf)\d+\b", found[k])) for k in ("first", "second"))
            current.apart[(names[0], names[1], f"measured {found['slower']}x slowdown (benchmark)")] = None
        elif stripped.startswith("fusing ") and " with " in stripped:
            first, second = stripped.removeprefix("fusing ").split(" with ", 1)
            current.fused.append((first, second))
    return [r for r in out if r.nodes or r.apart or r.fused]


def _candidates(text: str, record: FusionRecord) -> None:
    """``SchedulerNode(name='op1'), Reduction([...origins=..., stack_traces = {...}])``, alone or in a fused node."""
    starts = list(_NODE_NAME.finditer(text))
    for position, start in enumerate(starts):
        name = start.group(1)
        if name in record.nodes:
            continue
        end = starts[position + 1].start() if position + 1 < len(starts) else len(text)
        body = text[start.end() : end]
        origins = _ORIGINS.search(body)
        record.nodes[name] = _Scheduled(
            origins=tuple(o.strip() for o in origins.group(1).split(",") if o.strip()) if origins else (),
            location=innermost_user_frame(body),
            reduction=body.lstrip(", ").startswith("Reduction"),
        )


def members(name: str) -> tuple[str, ...]:
    """``op1_op2`` as scheduler nodes."""
    return tuple(re.findall(r"(?:op|buf)\d+", name)) or (name,)


def _last_words(record: FusionRecord) -> list[tuple[str, str, str]]:
    """The pairs that stayed apart, each pair of final kernels and cause once, in the words of the last round.

    Pairs that a later round did fuse are left out.
    """
    group: dict[str, int] = {}
    for number, (first, second) in enumerate(record.fused):
        names = {*members(first), *members(second)}
        joined = {group[n] for n in names if n in group}
        names.update(n for n, g in group.items() if g in joined)
        group.update(dict.fromkeys(names, number))
    last: dict[tuple[object, ...], tuple[str, str, str]] = {}
    for first, second, reason in record.apart:
        ends = [group.get(m := members(name)[0], m) for name in (first, second)]
        if ends[0] != ends[1]:
            key = (frozenset(ends), cause_of(reason))
            last.pop(key, None)
            last[key] = (first, second, reason)
    return list(last.values())


def decisions(record: FusionRecord, graph: CompiledGraph) -> list[FusionDecision]:
    """The record's decisions with fx nodes, ops, lines and shared bytes of the graph put in.

    Pairs that share no bytes are left out: nothing is at stake.
    """
    by_name = {n.name: n for n in graph.nodes}
    out = []
    for first, second, reason in _last_words(record):
        sides = [members(first), members(second)]
        origins = [
            tuple(dict.fromkeys(o for m in side for o in (record.nodes[m].origins if m in record.nodes else ())))
            for side in sides
        ]
        scheduled = [[record.nodes[m] for m in side if m in record.nodes] for side in sides]
        reductions = [{o for n in side if n.reduction for o in n.origins} for side in scheduled]
        own = [_own_origins(side, record) for side in sides]
        cause = cause_of(reason, same_reduction=bool(reductions[0] & reductions[1]) and bool(own[0] & own[1]))
        places = [record.nodes[m].location for side in sides for m in side if m in record.nodes]
        ops = [tuple(by_name[o].op for o in side if o in by_name) for side in origins]
        shared = shared_bytes(graph, origins[0], origins[1], sides)
        if shared == 0:
            continue
        location = next((p for p in places if p is not None), None)
        if location is None:
            location = next((by_name[o].location for side in origins for o in side if o in by_name), None)
        out.append(
            FusionDecision(
                graph=graph.id,
                first=first,
                second=second,
                reason=_readable(reason),
                cause=cause,
                first_nodes=origins[0],
                second_nodes=origins[1],
                first_ops=ops[0],
                second_ops=ops[1],
                location=location,
                shared_bytes=shared,
            )
        )
    return out


def _own_origins(side: Sequence[str], record: FusionRecord) -> set[str]:
    """The node that each scheduler node is named for: the last computed, first in ``origins``."""
    return {record.nodes[m].origins[0] for m in side if m in record.nodes and record.nodes[m].origins}


def _readable(reason: str) -> str:
    return reason.replace("node1", "the first").replace("node2", "the second")


def shared_bytes(
    graph: CompiledGraph, first: Sequence[str], second: Sequence[str], names: Sequence[Sequence[str]] = ()
) -> int | None:
    """Bytes of the values that both sides touch: what one makes and the other takes, and inputs that both take.

    From the kernels' buffers where both sides are separate calls of the output code (``names`` are scheduler names:
    ``op3`` writes ``buf3``), else from the graph's nodes and their tensor types. 0: they share nothing; ``None``: sizes
    or nodes are not known.
    """
    a, b = set(first), set(second)
    if not a or not b:
        return None
    calls = [_writers(graph, side) for side in names] if names else [[], []]
    if not calls[0] or not calls[1]:
        calls = [[c for c in graph.calls if c.nodes and set(c.nodes) & side] for side in (a, b)]
    if calls[0] and calls[1] and not {c.index for c in calls[0]} & {c.index for c in calls[1]}:
        touched = [{t.storage: t for c in side for t in (*c.reads, *c.writes)} for side in calls]
        both = set(touched[0]) & set(touched[1])
        sizes = [min(touched[0][s].nbytes or 0, touched[1][s].nbytes or 0) for s in both]
        return sum(sizes) if all(sizes) or not both else None
    nodes = {n.name: n for n in graph.nodes}
    inputs = {t.storage: t for t in graph.inputs}
    taken = [{i for n in side if n in nodes for i in nodes[n].inputs} for side in (a, b)]
    common = (taken[0] & taken[1]) | (taken[0] & b) | (taken[1] & a) | (a & b)
    if not any(n in nodes for n in a) or not any(n in nodes for n in b):
        return None
    total = 0
    for name in common:
        tensor = nodes[name].tensor if name in nodes else inputs.get(name)
        if tensor is None or tensor.nbytes is None:
            return None
        total += tensor.nbytes
    return total


def _writers(graph: CompiledGraph, side: Sequence[str]) -> list[GeneratedCall]:
    """The calls that write the buffers of these scheduler nodes."""
    buffers = {name.replace("op", "buf") for name in side}
    return [c for c in graph.calls if any(t.storage in buffers for t in c.writes)]
