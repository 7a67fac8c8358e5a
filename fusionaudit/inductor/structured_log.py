"""Reads a TORCH_TRACE folder: the structured log, JSON lines with indented payloads."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fusionaudit.errors import AuditError
from fusionaudit.figures import counted
from fusionaudit.findings import Location, Note
from fusionaudit.inductor import events
from fusionaudit.inductor.graph_text import innermost_user_frame, is_user_file, parse_graph
from fusionaudit.inductor.log_lines import LogLine, read_text
from fusionaudit.inductor.model import CompiledGraph, CudagraphSkip, GraphBreak, Node, Recompile
from fusionaudit.inductor.output_code import parse_output_code

_HEADER = re.compile(r"^(?:\[rank\d+\]:\s?)?[VDIWEC]\d{4} \S+ \d+ [^\]]+\] (\{.*\})\s*$")


@dataclass(frozen=True, kw_only=True)
class StructuredLog:
    """What a structured trace says; ``printed`` are the post-grad graphs with their compile ids."""

    graphs: tuple[CompiledGraph, ...] = ()
    printed: tuple[tuple[str | None, tuple[Node, ...]], ...] = ()
    breaks: tuple[GraphBreak, ...] = ()
    recompiles: tuple[Recompile, ...] = ()
    cudagraph_skips: tuple[CudagraphSkip, ...] = ()
    cache_hits: int = 0
    notes: tuple[Note, ...] = ()


@dataclass
class _Gathered:
    graphs: list[CompiledGraph] = field(default_factory=list)
    printed: list[tuple[str | None, tuple[Node, ...]]] = field(default_factory=list)
    breaks: list[LogLine] = field(default_factory=list)
    guards: list[tuple[str, str]] = field(default_factory=list)
    functions: dict[str, Location] = field(default_factory=dict)
    skips: list[CudagraphSkip] = field(default_factory=list)
    limits: dict[str, int] = field(default_factory=dict)
    own: set[str] = field(default_factory=set)
    hits: int = 0
    broken: int = 0


def records(text: str) -> Iterator[tuple[Mapping[str, Any], str]]:
    """(header object, payload text) pairs; lines that are neither are skipped."""
    header: Mapping[str, Any] | None = None
    payload: list[str] = []
    for line in text.split("\n"):
        if line.startswith("\t"):
            payload.append(line[1:])
            continue
        found = _HEADER.match(line)
        if found is None:
            continue
        if header is not None:
            yield header, "\n".join(payload)
        header, payload = None, []
        try:
            value = json.loads(found.group(1))
        except (ValueError, RecursionError):
            continue
        header = value if isinstance(value, dict) else None
    if header is not None:
        yield header, "\n".join(payload)


def compile_id(header: Mapping[str, Any]) -> str:
    """``0/1`` without the attempt (the graph of the last one is what runs); ``!1/0/0`` under compiled autograd."""
    frame, number = header.get("frame_id"), header.get("frame_compile_id")
    base = f"{'-' if frame is None else frame}/{'-' if number is None else number}"
    autograd = header.get("compiled_autograd_id")
    if autograd is not None:
        base = f"!{autograd}/{base}" if frame is not None else f"!{autograd}"
    return base


def read_structured(path: Path) -> StructuredLog:
    """A TORCH_TRACE folder (all its ``*.log`` files, by name) or one file of it.

    Raises AuditError where there is nothing of that kind.
    """
    if path.is_dir():
        files = sorted(p for p in path.iterdir() if p.is_file() and (".log" in p.name or "torch_trace" in p.name))
    else:
        files = [path]
    if not files:
        raise AuditError(f"{path} has no structured torch trace", remedy="give the folder that TORCH_TRACE named")
    gathered = _Gathered()
    cut = False
    for file in files:
        text, broken = read_text(file)
        cut = cut or broken
        for header, payload in records(text):
            _take(gathered, header, payload)
    notes = []
    if cut or gathered.broken:
        what = (
            f"{counted(gathered.broken, 'graph')} could not be read whole" if gathered.broken else "its end is missing"
        )
        notes.append(Note(kind="cut-off", text=f"{path.name} is cut off or damaged: {what}", remedy="record it again"))
    if gathered.hits:
        notes.append(warm_cache(path.name))
    return StructuredLog(
        graphs=tuple(gathered.graphs),
        printed=tuple(gathered.printed),
        breaks=tuple(events.graph_breaks(gathered.breaks)),
        recompiles=tuple(_recompile(gathered, where, guard) for where, guard in gathered.guards),
        cudagraph_skips=tuple(dict.fromkeys(gathered.skips)),
        cache_hits=gathered.hits,
        notes=tuple(notes),
    )


def warm_cache(name: str) -> Note:
    """The log holds graphs that were compiled by another run."""
    text = f"{name} has graphs from a warm cache: fusion decisions are not logged then"
    return Note(kind="warm-cache", text=text, remedy="record with TORCHINDUCTOR_FORCE_DISABLE_CACHES=1", blocks=True)


def _recompile(gathered: _Gathered, where: str, guard: str) -> Recompile:
    frame = where.split("/")[0]
    # What is given up has no metrics of its own: another version of the function names it.
    versions = (place for name, place in gathered.functions.items() if name.split("/")[0] == frame)
    place = gathered.functions.get(where.split("_")[0]) or next(versions, None)
    return Recompile(
        location=place,
        function=(place.function or "") if place else "",
        guard=guard,
        compile_id=where,
        limit=gathered.limits.get(frame),
    )


def _take(out: _Gathered, header: Mapping[str, Any], payload: str) -> None:
    where = compile_id(header)
    if "inductor_output_code" in header:
        try:
            out.graphs.append(parse_output_code(payload, compile_id=where))
        except SyntaxError:
            out.broken += 1
        return
    for name in ("compilation_metrics", "bwd_compilation_metrics"):
        metrics = header.get(name)
        failed = metrics.get("fail_reason") if isinstance(metrics, dict) else None
        if isinstance(failed, str) and "recompile limit exceeded" in failed:
            number = where.split("/")[1].split("_")[0]
            out.limits[where.split("/")[0]] = int(number) if number.isdigit() else 0
        if isinstance(metrics, dict) and isinstance(metrics.get("co_filename"), str):
            line = metrics.get("co_firstlineno")
            out.functions[str(metrics.get("compile_id"))] = Location(
                file=metrics["co_filename"],
                line=line if isinstance(line, int) else 1,
                function=str(metrics["co_name"]) if metrics.get("co_name") else None,
            )
    artifact = header.get("artifact")
    name = str(artifact.get("name", "")) if isinstance(artifact, dict) else ""
    if "inductor_post_grad_graph" in header or name == "inductor_post_grad_graph":
        nodes = parse_graph(payload.split("\n"))
        if nodes:
            out.printed.append((where, nodes))
    elif name == "dynamo_graph_break_reason":
        key: tuple[str | None, ...] = (None, str(len(out.breaks)), None, where)
        out.breaks.extend(
            LogLine(text=text, source="", artifact="graph_breaks", compile_id=where, key=key)
            for text in payload.split("\n")
        )
    elif name == "recompile_reasons":
        reasons = _json(payload)
        texts = [str(r) for r in reasons] if isinstance(reasons, list) else payload.split("\n")
        named = [t.strip() for t in texts if t.strip()]
        if named:  # the newest version's guard comes first, as in the text
            out.guards.append((where, re.sub(r"^!?\d+/\d+\S*: ", "", named[0])))
    elif "cudagraph" in name or "skipping cudagraphs due to" in payload:
        found = re.search(r"skipping cudagraphs due to (.*)", payload)
        if found:
            frame = innermost_user_frame(payload)
            place = frame if frame is not None and is_user_file(frame.file) else None
            reason = found.group(1).split(". Found from")[0].strip().rstrip(" .")
            out.skips.append(CudagraphSkip(reason=reason, location=place, compile_id=where))
    elif name.startswith(("fx_graph_cache_", "aotautograd_cache_")):
        state = name.rsplit("_", 1)[-1]
        details = _json(payload)
        key_text = details.get("key") if isinstance(details, dict) else None
        if name.startswith("fx_graph"):  # a graph that this process compiled before is no hit
            out.hits += state == "hit" and key_text not in out.own
            out.own |= {key_text} if isinstance(key_text, str) and state != "hit" else set()
        if name.startswith("fx_graph") and isinstance(key_text, str):
            _give_key(out, where, key_text)


def _give_key(out: _Gathered, where: str, key: str) -> None:
    """The cache's word comes after the output code of the same graph."""
    for position in range(len(out.graphs) - 1, -1, -1):
        graph = out.graphs[position]
        if graph.compile_id == where:
            if graph.cache_key is None:
                out.graphs[position] = replace(graph, cache_key=key)
            return


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
