"""Everything that one pass's Inductor logs say, from the text of TORCH_LOGS and a TORCH_TRACE folder."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from fusionaudit.errors import AuditError
from fusionaudit.figures import counted
from fusionaudit.findings import Location, Note
from fusionaudit.inductor import events, extern_ops
from fusionaudit.inductor.fusion_log import FusionRecord, decisions, parse_fusion
from fusionaudit.inductor.graph_text import is_user_file, parse_graph
from fusionaudit.inductor.kernel_body import MOST_LINES
from fusionaudit.inductor.log_lines import LogLine, parse_lines, read_text, records
from fusionaudit.inductor.model import CompiledGraph, FusionDecision, GeneratedCall, InductorLog, Node
from fusionaudit.inductor.output_code import parse_output_code
from fusionaudit.inductor.structured_log import StructuredLog, read_structured, warm_cache

_HIT = re.compile(
    r"fx graph cache hit for key (\S+)|AOTAutograd cache hit for key (\S+)|FX cache hit with key: (\S+)", re.I
)
_WRITTEN = re.compile(r"Output code written to: (\S+)")


def read_inductor(log: Path | None, structured: Path | None = None) -> InductorLog:
    """Reads the text log (may be ``.gz``) and the structured trace (a folder or one file); either may be ``None``.

    Where both are there, the text decides and the trace fills what the text lacks. A log that was cut off gives what is
    whole and a note. Raises AuditError where a file is missing or is no log.
    """
    text_log = InductorLog()
    if log is not None:
        text, cut = read_text(log)
        text_log = parse_log(text, name=log.name, cut=cut)
    if structured is None:
        return text_log
    traced = read_structured(structured)
    return _merge(text_log, traced)


def parse_log(text: str, *, name: str = "log", cut: bool = False) -> InductorLog:
    """The text of TORCH_LOGS as an InductorLog."""
    lines = list(parse_lines(text))
    notes: list[Note] = []
    if not lines:
        if text.strip():
            notes.append(
                Note(
                    kind="no-log",
                    text=f"{name}: no line of it has the prefix that TORCH_LOGS writes",
                    remedy="record with TORCH_LOGS=output_code,fusion,post_grad_graphs,graph_breaks,recompiles",
                )
            )
        return InductorLog(notes=tuple(notes))
    graphs, broken, hits = _graphs(lines)
    printed = _printed_graphs(lines)
    fusions = parse_fusion(lines)
    graphs, kept = _complete(graphs, printed, fusions)
    if cut or broken or (not text.endswith("\n") and _looks_cut(lines)):
        what = f"{counted(len(broken), 'graph')} could not be read whole" if broken else "its end is missing"
        notes.append(
            Note(
                kind="cut-off",
                text=f"{name} is cut off or damaged: {what} ({', '.join(broken) or 'nothing else lost'})",
                remedy="record the log again; what is whole was kept",
                blocks=bool(broken),
            )
        )
    if any(g.kernels or g.calls for g in graphs):
        if hits:  # some graphs from the cache are enough, whatever is logged of others
            notes.append(warm_cache(name))
        elif not fusions and sum(len(g.calls) for g in graphs) > 1:
            notes.append(
                Note(kind="no-fusion-log", text=f"{name} has no fusion decisions", remedy="add fusion to TORCH_LOGS")
            )
    notes.extend(_unknown_bytes(graphs, name))
    return InductorLog(
        graphs=tuple(graphs),
        decisions=tuple(kept),
        breaks=tuple(events.graph_breaks(lines)),
        recompiles=tuple(events.recompiles(lines)),
        cudagraph_skips=tuple(events.cudagraph_skips(lines, text)),
        cache_hits=hits,
        notes=tuple(notes),
    )


def _looks_cut(lines: Sequence[LogLine]) -> bool:
    """The last record of output code has no end marker."""
    last = next((line for line in reversed(lines) if line.artifact == "output_code"), None)
    return last is not None and lines[-1] is last and not _WRITTEN.search(last.text)


def unique_ids(graphs: Sequence[CompiledGraph]) -> list[CompiledGraph]:
    """``#2``, ``#3`` appended to ids that come again."""
    count: dict[str, int] = defaultdict(int)
    out = []
    for graph in graphs:
        count[graph.id] += 1
        number = count[graph.id]
        out.append(graph if number == 1 else replace(graph, id=f"{graph.id}#{number}"))
    return out


def _graphs(lines: Sequence[LogLine]) -> tuple[list[CompiledGraph], list[str], int]:
    """Graphs in order, names of those that could not be read, and cache hits on graphs compiled elsewhere."""
    graphs: list[CompiledGraph] = []
    broken: list[str] = []
    fresh: set[str] = set()
    cached: list[tuple[str, str]] = []
    for record in records(lines, "output_code"):
        for part in _records_at_header(record):
            text = "\n".join(line.text for line in part[1:]) + "\n"
            compile_id = part[0].compile_id or "?"
            body = "\n".join(line for line in text.split("\n") if not _WRITTEN.match(line))
            try:
                graph = parse_output_code(body, compile_id=compile_id)
            except SyntaxError:
                broken.append(compile_id)
                continue
            graphs.append(graph)
            (cached.append(("", body)) if "codecache" in part[0].source else fresh.add(body))
    keys = {next(k for k in found.groups() if k) for line in lines if (found := _HIT.search(line.text))}
    foreign = {body for _, body in cached if body not in fresh}
    own = {g.cache_key for g in graphs if g.cache_key}
    hits = max(len(foreign), len(keys - own) if not cached else 0)
    return unique_ids(graphs), broken, hits


def _records_at_header(record: Sequence[LogLine]) -> list[list[LogLine]]:
    parts: list[list[LogLine]] = []
    for line in record:
        if line.text.strip() == "Output code:":
            parts.append([line])
        elif parts:
            parts[-1].append(line)
    return parts


def _printed_graphs(lines: Sequence[LogLine]) -> list[tuple[str | None, tuple[Node, ...]]]:
    out = []
    for artifact in ("post_grad_graphs", "ir_post_fusion_graphs"):
        for record in records(lines, artifact):
            nodes = parse_graph(line.text for line in record)
            if nodes:
                out.append((record[0].compile_id, nodes))
    return out


def _overlap(a: set[str], b: set[str]) -> float:
    return len(a & b) / (len(a | b) or 1)


def _complete(
    graphs: Sequence[CompiledGraph],
    printed: Sequence[tuple[str | None, tuple[Node, ...]]],
    fusions: Sequence[FusionRecord],
) -> tuple[list[CompiledGraph], list[FusionDecision]]:
    """Graphs with nodes, lines and per-call nodes from the printed graphs and the fusion log, and the decisions.

    Forward and backward come under one compile id, each printed, then fused, then written, in this order; partial
    logs are matched by the node names that both have.
    """
    done: list[CompiledGraph] = []
    found: list[FusionDecision] = []
    free_printed, free_fusions = list(printed), list(fusions)
    for graph in graphs:
        names = {n.name for n in graph.nodes}
        mine = _take(free_printed, graph.compile_id, names, lambda p: {n.name for n in p[1]}, lambda p: p[0])
        nodes = _join_nodes(graph.nodes, mine[1] if mine is not None else ())
        record = _take(
            free_fusions,
            graph.compile_id,
            {n.name for n in nodes},
            lambda r: {o for s in r.nodes.values() for o in s.origins},
            lambda r: r.compile_id,
        )
        if record is not None:
            nodes = _place_nodes(nodes, record)
        graph = replace(graph, nodes=nodes)
        graph = replace(graph, calls=_place_calls(graph, record))
        graph = _place_kernels(graph)
        done.append(graph)
        if record is not None:
            found.extend(decisions(record, graph))
    return done, found


_Item = TypeVar("_Item")


def _take(
    items: list[_Item],
    compile_id: str,
    names: set[str],
    names_of: Callable[[_Item], set[str]],
    id_of: Callable[[_Item], str | None],
) -> _Item | None:
    """Removes and returns the first item of that compile id whose node names fit best."""
    same = [i for i in items if id_of(i) == compile_id]
    if not same:
        return None
    best = max(same, key=lambda i: _overlap(names_of(i), names)) if names else same[0]
    if names and names_of(best) and not _overlap(names_of(best), names):
        return None
    items.remove(best)
    return best


def _join_nodes(fragments: Sequence[Node], printed: Sequence[Node]) -> tuple[Node, ...]:
    """The printed graph's nodes (they have lines and real edges), then those that only fragments have."""
    names = {n.name for n in printed}
    return (*printed, *(n for n in fragments if n.name not in names))


def _place_nodes(nodes: Sequence[Node], record: FusionRecord) -> tuple[Node, ...]:
    """Lines from the fusion log's stack traces for nodes that have none; nodes that only it names are added."""
    places: dict[str, Location] = {}
    for scheduled in record.nodes.values():
        # One trace stands for all origins of a node: it is that of the op it ends with.
        for origin in scheduled.origins:
            if scheduled.location is not None and is_user_file(scheduled.location.file):
                places.setdefault(origin, scheduled.location)
    return tuple(replace(n, location=places.get(n.name)) if n.location is None else n for n in nodes)


def _place_calls(graph: CompiledGraph, record: FusionRecord | None) -> tuple[GeneratedCall, ...]:
    """Calls with their nodes (also of kernels launched again and of library calls) and source lines."""
    by_name = {n.name: n for n in graph.nodes}
    # A kernel that adds a bias names the product as its origin, too; only a template computes one.
    products = {n.name for n in graph.nodes if extern_ops.category(n.op) in ("matmul", "convolution")}
    taken = {n for c in graph.calls for n in c.nodes if c.category == "template" or n not in products}
    loose: dict[str, list[Node]] = defaultdict(list)
    for node in graph.nodes:
        if node.name not in taken:
            loose[".".join(node.op.split(".")[:2])].append(node)
    out = []
    # Foreach kernels have no comment and mostly write their arguments: they are tied by their order.
    foreach = [c.index for c in graph.calls if c.category == "foreach" and not c.nodes]
    groups = record.foreach if record is not None and len(record.foreach) == len(foreach) else []
    grouped = dict(zip(foreach, groups, strict=False))
    for call in graph.calls:
        nodes = call.nodes
        if record is not None and call.index in grouped:
            scheduled = [record.nodes[m] for m in grouped[call.index] if m in record.nodes]
            nodes = tuple(dict.fromkeys(o for s in scheduled for o in s.origins))
            ops = [by_name[n].op if n in by_name else f"aten.{re.sub(r'_[0-9]+$', '', n)}" for n in sorted(nodes)]
            call = replace(call, aten=call.aten or tuple(dict.fromkeys(".".join(o.split(".")[:2]) for o in ops)))
        if not nodes and record is not None and call.kind in ("triton", "user_triton"):
            # Launched again. The scheduler's name of what it computes is that of the buffer at this use of its storage.
            numbers = [name.removeprefix("buf") for name in call.written if name.startswith("buf")]
            found = [o for n in numbers if (s := record.nodes.get(f"op{n}")) is not None for o in s.origins]
            nodes = tuple(dict.fromkeys(found))
        if not nodes and call.kind in ("extern", "custom", "copy", "fill"):
            fitting = [n for n in loose.get(call.aten[0], []) if _fits(n, call, by_name)] if call.aten else []
            if fitting:
                shapes = {t.shape for t in call.writes}
                best = next((n for n in fitting if n.tensor is not None and n.tensor.shape in shapes), fitting[0])
                loose[call.aten[0]].remove(best)
                nodes = (best.name,)
        # In graph order: origins of the fusion log are sets.
        places = tuple(dict.fromkeys(p for n in nodes if n in by_name and (p := by_name[n].location) is not None))
        own = [p for p in places if is_user_file(p.file)]
        location = own[-1] if own else places[-1] if places else None
        out.append(replace(call, nodes=nodes, location=location, locations=places))
    return tuple(out)


def _fits(node: Node, call: GeneratedCall, by_name: Mapping[str, Node]) -> bool:
    """The call writes what the node makes and reads what the node reads, by their sizes, as far as they are known."""
    sizes = {t.numel for t in call.writes}
    if node.tensor is not None and sizes and node.tensor.numel not in sizes:
        return False
    inputs = [by_name[n].tensor if n in by_name else None for n in node.inputs]
    known = Counter(t.numel for t in inputs if t is not None)
    # A node names an operand once, however often it takes it (x @ x).
    operands = {(t.storage, t.numel) for t in call.reads if t.numel > 1}
    strange = Counter(numel for _, numel in operands) - known
    return strange.total() <= inputs.count(None)


def _place_kernels(graph: CompiledGraph) -> CompiledGraph:
    first = {c.target: c.location for c in reversed(graph.calls) if c.location is not None}
    return replace(graph, kernels=tuple(replace(k, location=first.get(k.name)) for k in graph.kernels))


def _unknown_bytes(graphs: Sequence[CompiledGraph], name: str) -> list[Note]:
    """One note that lists the calls whose bytes are not known, with why."""
    unknown: dict[str, str] = {}
    for graph in graphs:
        long = {k.name for k in graph.kernels if k.source.count("\n") > MOST_LINES}
        for call in graph.calls:
            if call.read_bytes is None or call.write_bytes is None:
                if call.kind == "custom":
                    why = "a custom op: what it reads is not in the log"
                elif call.category == "sort":
                    why = "passes over the data and workspace depend on the algorithm"
                elif call.kind == "extern":
                    why = "the shape or dtype of an operand is not in the log"
                elif call.target in long:
                    why = f"its code is longer than {MOST_LINES:,} lines"
                else:
                    why = "its sizes depend on data, or its code could not be read"
                unknown.setdefault(call.target, why)
    if not unknown:
        return []
    listed = "; ".join(f"{t}: {w}" for t, w in list(unknown.items())[:6])
    more = f"; and {len(unknown) - 6} more" if len(unknown) > 6 else ""
    return [
        Note(
            kind="unknown-bytes",
            text=f"{name}: bytes of {counted(len(unknown), 'call target')} are not known ({listed}{more})",
        )
    ]


def _merge(text: InductorLog, traced: StructuredLog) -> InductorLog:
    """The text's log with what only the structured trace has."""
    keys = {(g.compile_id, g.kind): g for g in traced.graphs}
    graphs = []
    for graph in text.graphs:
        other = keys.get((graph.compile_id, graph.kind))
        key = graph.cache_key or (other.cache_key if other is not None else None)
        graphs.append(replace(graph, cache_key=key))
    if not graphs and traced.graphs:
        completed, _ = _complete(traced.graphs, traced.printed, ())
        graphs = unique_ids(completed)
    elif graphs and not any(n.location for g in graphs for n in g.nodes) and traced.printed:
        graphs, _ = _complete(graphs, traced.printed, ())
    told = {n.kind for n in text.notes}
    return replace(
        text,
        graphs=tuple(graphs),
        breaks=text.breaks or traced.breaks,
        recompiles=text.recompiles or traced.recompiles,
        cudagraph_skips=text.cudagraph_skips or traced.cudagraph_skips,
        cache_hits=max(text.cache_hits, traced.cache_hits),
        notes=(*text.notes, *(n for n in traced.notes if n.kind != "warm-cache" or n.kind not in told)),
    )


__all__ = ["AuditError", "parse_log", "read_inductor"]
