"""Reads graph breaks, recompilations and CUDA-graph skips from the text log."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from fusionaudit.findings import Location
from fusionaudit.inductor.graph_text import innermost_user_frame, is_user_file
from fusionaudit.inductor.log_lines import LogLine, plain_warnings, records
from fusionaudit.inductor.model import CudagraphSkip, GraphBreak, Recompile

_BREAK = re.compile(r"Graph break(?: \(.*?\))?(?: in user code at| from| at)? ?(?P<file>\S*?):(?P<line>\d+)\s*$")
_REASON = re.compile(r"(?:Graph Break )?Reason: (?P<reason>.*)$", re.IGNORECASE)
_LIMIT = re.compile(r"torch\._dynamo hit config\.(?:accumulated_)?(?:recompile|cache_size)_limit \((\d+)\)")
_RECOMPILE = re.compile(r"Recompiling function (?P<function>\S+) in (?P<file>.+):(?P<line>\d+)\s*$")
_GUARD = re.compile(r"^\s*- (?P<id>!?\d+/\d+\S*): (?P<guard>.*)$")
_SKIP = re.compile(r"skipping cudagraphs due to (?P<reason>.*)$", re.IGNORECASE)
_DISTINCT = re.compile(r"CUDAGraph supports dynamic shapes by recording a new graph for each distinct input size")
_PENDING = re.compile(r"pending, uninvoked backwards")
_RERECORD = re.compile(r"(?:re-?recording|Re-?record)[^.]*", re.IGNORECASE)
_OP_REASON = re.compile(r"^\s+op\d+: reason=(?P<reason>.*?), ir=(?P<ir>\w+)(?:, fx=(?P<fx>.*))?$")
_CALL_ID = re.compile(r"^\[(\S+)\] ")


def _paragraph(lines: Sequence[str]) -> str:
    """The one line that says what broke: the first line of Dynamo's explanation."""
    for number, line in enumerate(lines):
        found = _REASON.search(line)
        if not found:
            continue
        reason = found["reason"].strip()
        # Of a function that is given up whole, the break itself follows too: "Failed to ... Graph break encountered:".
        if not re.match("encountered graph break|.*graph break encountered:$", reason, re.IGNORECASE):
            return reason
        rest = [text.strip() for text in lines[number + 1 :]]
        title = next((text for text in rest if text), reason)
        explained = next((t.removeprefix("Explanation:").strip() for t in rest if t.startswith("Explanation:")), "")
        # "Call to `graph_break()`" explains itself; "Failed to trace builtin operator" needs to say which.
        what = f"{title}: {explained}" if explained and "`" not in title else title
        skipped = "falling back to eager" in reason
        return f"{what.rstrip('.')} (so the whole function runs eagerly)" if skipped else what
    body = [text.strip() for text in lines[1:] if text.strip()]
    return body[0] if body else "no reason given"


def graph_breaks(lines: Sequence[LogLine]) -> list[GraphBreak]:
    """Each break once, with the user's line.

    Where the break itself is inside a library (``torch/optim/optimizer.py``) the innermost frame of the user's code in
    the traceback is its place; a repeat whose stack is suppressed takes the place of the first with the same line.
    """
    out: dict[tuple[object, ...], GraphBreak] = {}
    resolved: dict[tuple[str, int], Location] = {}
    for record in records(lines, "graph_breaks"):
        for part in _parts(record, _BREAK):
            found = _BREAK.search(part[0])
            texts = list(part)
            if found is None:
                continue
            at = Location(file=found["file"], line=int(found["line"]))
            place = innermost_user_frame("\n".join(texts))
            key = (at.file, at.line)
            if place is None or not is_user_file(place.file):
                place = resolved.get(key) or (place or at)
            else:
                resolved.setdefault(key, place)
            made = GraphBreak(location=place, reason=_paragraph(texts), compile_id=record[0].compile_id)
            out.setdefault((place, made.reason), made)
    return list(out.values())


def _parts(record: Sequence[LogLine], header: re.Pattern[str]) -> list[list[str]]:
    """A record cut at each header line (two log calls within a microsecond come as one record)."""
    parts: list[list[str]] = []
    for line in record:
        if header.search(line.text) or not parts:
            parts.append([])
        parts[-1].append(line.text)
    return parts


def _limits(lines: Sequence[LogLine]) -> dict[str, int]:
    """{frame: limit} of the functions that Dynamo gave up compiling again."""
    found = ((line.compile_id, _LIMIT.search(line.text)) for line in lines if "hit config." in line.text)
    return {where.split("/")[0]: int(limit.group(1)) for where, limit in found if where and limit}


def recompiles(lines: Sequence[LogLine]) -> list[Recompile]:
    """Each recompilation with the guard of the newest earlier version that failed."""
    out = []
    limits = _limits(lines)
    for artifact in ("recompiles", "recompiles_verbose"):
        for record in records(lines, artifact):
            for part in _parts(record, _RECOMPILE):
                found = _RECOMPILE.search(part[0])
                if found is None:
                    continue
                guards = [g["guard"].strip() for line in part[1:] if (g := _GUARD.match(line))]
                at = Location(file=found["file"], line=int(found["line"]), function=found["function"])
                place = at
                if not is_user_file(at.file):
                    frame = innermost_user_frame("\n".join(part[1:]))
                    place = frame if frame is not None and is_user_file(frame.file) else at
                out.append(
                    Recompile(
                        location=place,
                        function=found["function"],
                        guard=re.sub(r"\s{2,}", "  ", guards[0]) if guards else "not told",
                        compile_id=record[0].compile_id,
                        limit=limits.get((record[0].compile_id or "").split("/")[0]),
                    )
                )
    return out


def cudagraph_skips(lines: Sequence[LogLine], text: str) -> list[CudagraphSkip]:
    """Each reason once, from the ``cudagraphs`` and ``perf_hints`` artifacts and from warnings on stderr."""
    out: dict[tuple[str, str | None], CudagraphSkip] = {}

    def keep(reason: str, location: Location | None, compile_id: str | None) -> None:
        out.setdefault((reason, compile_id), CudagraphSkip(reason=reason, location=location, compile_id=compile_id))

    chosen = [line for line in lines if line.artifact in ("cudagraphs", "perf_hints") or "cudagraph" in line.source]
    for record in _by_key(chosen):
        whole = "\n".join(line.text for line in record)
        first = record[0].text
        owner = _CALL_ID.match(first)
        compile_id = record[0].compile_id or (owner.group(1) if owner else None)
        found = _SKIP.search(first)
        if found:
            reason = found["reason"].strip()
            frame = innermost_user_frame(whole)
            if frame is None and (quoted := re.search(r'Found from : *\n?\s*File "([^"]+)", line (\d+)', whole)):
                frame = Location(file=quoted.group(1), line=int(quoted.group(2)))
            keep(reason.split(". Found from")[0].rstrip(" ."), frame, compile_id)
        elif _DISTINCT.search(whole):
            keep("a new graph is recorded for each distinct input size", None, compile_id)
        elif _PENDING.search(whole):
            keep("slow path: a backward pass is still pending", None, compile_id)
        elif (found := _RERECORD.search(first)) and "Recording cudagraph tree" not in first:
            keep(found.group(0).strip(), None, compile_id)
    for skip in _partitions(lines):
        keep(skip.reason, skip.location, skip.compile_id)
    for warning in plain_warnings(text):
        if _DISTINCT.search(warning):
            keep("a new graph is recorded for each distinct input size", None, None)
    if _PENDING.search(text) and not any("pending" in s.reason for s in out.values()):
        keep("slow path: a backward pass is still pending", None, None)
    sizes = _symint_recordings(lines)
    if sizes > 1 and not any("distinct input size" in s.reason for s in out.values()):
        keep(f"recorded again for {sizes} different input sizes", None, None)
    return list(out.values())


def _partitions(lines: Sequence[LogLine]) -> list[CudagraphSkip]:
    """Ops that Inductor left out of CUDA graphs when it cut the graph in partitions, with its reason.

    Not those of graphs for which CUDA graphs were never asked for, nor host-side size checks, which launch nothing.
    """
    out: list[CudagraphSkip] = []
    for line in lines:
        if line.artifact != "cudagraphs":
            continue
        found = _OP_REASON.match(line.text)
        if found:
            what = (found["fx"] or found["ir"]).split("(")[0]
            asked = "cudagraphs is disabled" not in found["reason"] and found["ir"] != "AssertScalar"
            out.append(CudagraphSkip(reason=f"{found['reason']}: {what}" if asked else "", compile_id=line.compile_id))
        elif out and 'File "' in line.text:
            frame = innermost_user_frame(line.text)
            if frame is not None and is_user_file(frame.file):
                out[-1] = replace(out[-1], location=frame)
        elif "Partition" in line.text:
            out.append(CudagraphSkip(reason="", compile_id=line.compile_id))
    return [s for s in out if s.reason]


def _by_key(lines: Sequence[LogLine]) -> Iterable[list[LogLine]]:
    group: list[LogLine] = []
    for line in lines:
        if group and group[-1].key != line.key:
            yield group
            group = []
        group.append(line)
    if group:
        yield group


def _symint_recordings(lines: Sequence[LogLine]) -> int:
    """``Recording cudagraph tree for symint key 52``: how many different keys."""
    keys = {
        line.text.rsplit("symint key", 1)[1].strip()
        for line in lines
        if line.artifact == "cudagraphs" and "Recording cudagraph tree for symint key" in line.text
    }
    return len(keys)
