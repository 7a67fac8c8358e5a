"""The step as a Chrome trace (JSON), for ui.perfetto.dev and chrome://tracing.

One process a pass; its tracks are kernels (one a stream), ops, groups (compiled graphs, phases, regions) and findings.
Tensors that go from kernel to kernel through global memory are flows.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from fusionaudit.report import wording as w
from fusionaudit.report.private import public_environment, scrub_document, scrub_text
from fusionaudit.report.rows import Timeline, columns, timeline

Document = dict[str, Any]
Event = dict[str, Any]

_OPS, _GROUPS, _FINDINGS = 1000, 2000, 3000
_MOST_FLOWS = 5000
_LONGEST_NAME = 200


def render_perfetto(document: Document) -> str:
    """The document as a trace; times in microseconds from the start of the step."""
    document = scrub_document(document)
    events: list[Event] = []
    for pid, column in enumerate(columns(document), start=1):
        p = column.p
        if not p["kernels"]:
            continue
        line = timeline(column)
        name = p["name"] if line.recorded else f"{p['name']} ({'put end to end' if line.timed else 'times not known'})"
        events += [_meta("process_name", pid, 0, name=name), _meta("process_sort_index", pid, 0, sort_index=pid)]
        events += _kernel_track(p, line, pid)
        events += _run_tracks(p, line, pid)
        events += _finding_tracks(document, p, line, pid)
        events += _flows(p, line, pid)
    other = {
        "tool": f"fusionaudit {document['tool'].get('version', '')}",
        "engine": document["engine"],
        "target": document["target"].get("name"),
        "verdict": w.verdict(document)[1],
        **{k: v for k, v in public_environment(document["environment"]).items() if isinstance(v, (str, int, float))},
    }
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ns", "otherData": other}, separators=(",", ":"))


def _meta(what: str, pid: int, tid: int, **args: Any) -> Event:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": args}


def _track(pid: int, tid: int, name: str) -> list[Event]:
    return [_meta("thread_name", pid, tid, name=name), _meta("thread_sort_index", pid, tid, sort_index=tid)]


def _slice(name: str, category: str, pid: int, tid: int, start: int, end: int, args: dict[str, Any]) -> Event:
    return {
        "ph": "X", "name": w.shorten(w.plain(scrub_text(name)), _LONGEST_NAME), "cat": category, "pid": pid, "tid": tid,
        "ts": start / 1000, "dur": max(end - start, 1) / 1000, "args": args,
    }  # fmt: skip


def _stream_track(kernel: dict[str, Any]) -> int:
    return int(kernel["stream"] or 0) % 900 + 1


def _kernel_track(p: dict[str, Any], line: Timeline, pid: int) -> list[Event]:
    out = [
        event
        for tid in sorted({_stream_track(k) for k in p["kernels"]})
        for event in _track(pid, tid, f"kernels, stream {tid - 1}")
    ]
    keys = (
        "category", "global_bytes", "registers", "local_memory_bytes", "spill_bytes", "shared_memory_bytes",
        "occupancy", "grid", "block", "graph", "phase", "time_basis",
    )  # fmt: skip
    ends: dict[int, int] = {}
    for kernel, (start, duration) in zip(p["kernels"], line.spans, strict=True):
        args = {key: kernel[key] for key in keys if kernel.get(key) is not None}
        args["id"] = kernel["id"]
        args["ops"] = ", ".join(kernel["ops"])
        args["reads"] = w.tensors_text(kernel["reads"], 8)
        args["writes"] = w.tensors_text(kernel["writes"], 8)
        if kernel["location"]:
            args["source"] = f"{w.plain(scrub_text(kernel['location']['file']))}:{kernel['location']['line']}"
        if kernel["global_bytes"] and kernel["duration_ns"] and kernel["time_basis"] == "measured":
            args["bandwidth"] = w.format_rate(kernel["global_bytes"] / kernel["duration_ns"] * 1e9)
        tid = _stream_track(kernel)
        # A fill may start before the kernel ahead of it ends; slices of a track that cross are drawn wrong.
        begin = max(start, ends.get(tid, 0))
        ends[tid] = max(start + duration, begin + 1)
        if begin > start:
            args |= {"start_ns": start, "duration_ns": duration}
        out.append(_slice(kernel["name"], "kernel", pid, tid, begin, ends[tid], args))
    return out


def _run_tracks(p: dict[str, Any], line: Timeline, pid: int) -> list[Event]:
    """Neighbouring kernels with the same ops, graph, phase or region as one slice each."""
    tracks: tuple[tuple[str, int, Callable[[dict[str, Any]], str | None]], ...] = (
        ("ops", _OPS, lambda k: w.op_list(k["ops"], 20) or None),
        ("groups: graphs", _GROUPS, lambda k: k["graph"]),
        ("groups: phases", _GROUPS + 1, lambda k: k["phase"]),
        ("groups: regions", _GROUPS + 2, lambda k: k["region"]),
    )
    out: list[Event] = []
    for title, tid, label in tracks:
        slices: list[tuple[str, tuple[Any, ...], int, int, int]] = []
        for kernel, (start, duration) in zip(p["kernels"], line.spans, strict=True):
            name = label(kernel)
            if name is None:
                continue
            # Two launches of one op are one slice; the same op called again is another.
            key = (name, tuple(kernel["op_ids"]) or kernel["id"]) if tid == _OPS else (name,)
            if slices and slices[-1][1] == key:
                _, _, first, last, count = slices[-1]
                slices[-1] = (name, key, first, max(last, start + duration), count + 1)
            else:
                slices.append((name, key, start, start + duration, 1))
        if slices:
            out += _track(pid, tid, title)
        last_end = 0
        for name, _, start, end, count in slices:
            begin = max(start, last_end)
            last_end = max(end, begin + 1)
            out.append(_slice(name, title.split(":")[0], pid, tid, begin, last_end, {"kernels": count}))
    return out


def _finding_tracks(document: Document, p: dict[str, Any], line: Timeline, pid: int) -> list[Event]:
    """Findings over the kernels they name; those that overlap go on tracks of their own."""
    spans = dict(zip((k["id"] for k in p["kernels"]), line.spans, strict=True))
    slices = []
    for finding in document["findings"]:
        own = [spans[k] for k in finding["kernels"] if k in spans]
        if finding["pass"] == p["name"] and own:
            slices.append((min(s for s, _ in own), max(s + d for s, d in own), finding))
    slices.sort(key=lambda item: (item[0], -item[1]))
    ends: list[int] = []
    out: list[Event] = []
    for start, end, finding in slices:
        lane = next((i for i, e in enumerate(ends) if e <= start), len(ends))
        if lane == len(ends):
            ends.append(0)
            out += _track(pid, _FINDINGS + lane, "findings" if lane == 0 else f"findings {lane + 1}")
        ends[lane] = end
        keys = ("severity", "message", "reason", "remedy", "avoidable_bytes", "saving_ns", "basis", "fingerprint")
        args = {k: finding[k] for k in keys if finding.get(k) not in (None, "")}
        if finding["location"]:
            args["source"] = w.place(finding["location"])
        if finding["verification"]:
            args["verification"] = w.verification_text(finding["verification"])
        name = f"{finding['rule']} {w.op_list(finding['ops'])}".strip()
        out.append(_slice(name, "finding", pid, _FINDINGS + lane, start, end, args))
    return out


def _flows(p: dict[str, Any], line: Timeline, pid: int) -> list[Event]:
    at = {k["id"]: (_stream_track(k), span) for k, span in zip(p["kernels"], line.spans, strict=True)}
    out: list[Event] = []
    for number, edge in enumerate(p["edges"][:_MOST_FLOWS]):
        if edge["from"] not in at or edge["to"] not in at:
            continue
        (from_track, (from_start, _)), (to_track, (to_start, _)) = at[edge["from"]], at[edge["to"]]
        name = w.tensor_text(edge["shape"], edge["dtype"])
        common = {"name": name, "cat": "global memory", "id": pid * 1_000_000 + number, "pid": pid}
        out.append({**common, "ph": "s", "tid": from_track, "ts": from_start / 1000})
        out.append({**common, "ph": "f", "bp": "e", "tid": to_track, "ts": to_start / 1000})
    return out
