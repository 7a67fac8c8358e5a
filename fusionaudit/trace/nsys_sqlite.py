"""Reads an Nsight Systems SQLite export (schema 2.x to 3.20 and newer) into a Trace."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from fusionaudit.device import Device
from fusionaudit.errors import AuditError
from fusionaudit.findings import Note
from fusionaudit.trace.enclosing import Context, OpenRange, Point, range_ops, resolve
from fusionaudit.trace.gpu import describe, number
from fusionaudit.trace.nsys_notes import diagnostics, lost_launches, old_export, stopped_early
from fusionaudit.trace.nsys_tables import Export, open_export
from fusionaudit.trace.range_text import understand
from fusionaudit.trace.schema import Activity, Sync, Trace

_PROCESS = ~0xFFFFFF
"""globalTid & _PROCESS is the globalPid: the low 24 bits are the thread."""

_END_OF_TIME = (1 << 63) - 1
_COPY_KINDS = {
    0: "Unknown", 1: "Host-to-Device", 2: "Device-to-Host", 3: "Host-to-Array", 4: "Array-to-Host", 5: "Array-to-Array",
    6: "Array-to-Device", 7: "Device-to-Array", 8: "Device-to-Device", 9: "Host-to-Host", 10: "Peer-to-Peer",
    11: "Unified Host-to-Device", 12: "Unified Device-to-Host", 13: "Unified Device-to-Device",
}  # fmt: skip
"""CUpti_ActivityMemcpyKind, worded as in the export's ENUM_CUDA_MEMCPY_OPER."""

_VERSION_SUFFIX = re.compile(r"_v\d+$")
_WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize", "cuStreamSynchronize",
          "cuCtxSynchronize", "cuEventSynchronize")  # fmt: skip
_SYNC_COPY = re.compile(r"^(cudaMemcpy(2D|3D)?|cuMemcpyDtoH|cudaMemcpyFromSymbol)$")


class Call(NamedTuple):
    """A CUDA API call, its name without the version suffix."""

    start: int
    end: int
    tid: int
    correlation: int | None
    name: str


class Row(NamedTuple):
    """A row of sql/activities.sql."""

    kind: str
    start: int
    end: int
    device: int
    stream: int
    correlation: int | None
    pid: int | None
    name: str | None
    grid: tuple[Any, ...]
    block: tuple[Any, ...]
    registers: int | None
    static_shared: int | None
    dynamic_shared: int | None
    local: int | None
    node: int | None
    bytes: int | None
    copy_kind: int | None


def _row(r: tuple[Any, ...]) -> Row:
    if not (isinstance(r[1], int) and isinstance(r[2], int)):
        raise ValueError(f"start {r[1]!r}")
    row = Row(r[0], r[1], r[2], r[3] or 0, r[4] or 0, r[5], r[6], r[7], r[8:11], r[11:14], *r[14:21])
    for value in (*row[3:7], *row.grid, *row.block, *row[10:]):
        if value is not None and not isinstance(value, int):
            raise ValueError(f"{value!r} where a number belongs")
    return row


def _triple(values: tuple[Any, ...]) -> tuple[int, int, int] | None:
    return None if any(v is None for v in values) else (values[0], values[1], values[2])


def _main_process(rows: list[Row], ranges: list[tuple[Any, ...]]) -> tuple[int | None, list[Note]]:
    """The process that the audit is about: the one with our ranges, else with the most NVTX ranges, else GPU time."""
    busy: Counter[int | None] = Counter()
    launches: Counter[int | None] = Counter()
    for r in rows:
        busy[r.pid] += r.end - r.start
        launches[r.pid] += 1
    if len(launches) < 2:
        return next(iter(launches)), []
    own, any_range = Counter[int](), Counter[int]()
    for _, _, tid, text in ranges:
        if tid is not None:
            own[tid & _PROCESS] += text.startswith("fusionaudit:")
            any_range[tid & _PROCESS] += 1
    ranked = sorted(launches, key=lambda p: (-own[p or 0], -any_range[p or 0], -busy[p], p or 0))
    others = ", ".join(f"process {_process_id(p)}: {launches[p]} launches" for p in ranked[1:4])
    note = Note(
        kind="several-processes",
        text=f"the export holds {len(ranked)} processes; this is process {_process_id(ranked[0])}; left out: {others}",
        remedy="profile one rank alone to see another",
    )
    return ranked[0], [note]


def _process_id(pid: int | None) -> int:
    return 0 if pid is None else pid >> 24 & 0xFFFFFF


def _ranges(rows: list[tuple[Any, ...]], pid: int | None) -> list[OpenRange]:
    out = []
    for serial, (start, end, tid, text) in enumerate(rows):
        if tid is None or (pid is not None and tid & _PROCESS != pid):
            continue
        meaning = understand(text, serial)
        if meaning is not None:
            last = _END_OF_TIME if end is None else int(end)
            out.append(OpenRange(start_ns=int(start), end_ns=last, thread=tid, meaning=meaning))
    return out


def _calls(export: Export, pid: int | None) -> list[Call]:
    out = []
    for start, end, tid, correlation, name in export.rows("calls"):
        if tid is None or (pid is not None and tid & _PROCESS != pid):
            continue
        last = int(start if end is None else end)
        out.append(Call(int(start), last, tid, correlation, _VERSION_SUFFIX.sub("", name or "")))
    return out


def _creations(export: Export) -> dict[int, tuple[int, int]]:
    """(time, globalTid) of the captured node behind each graph node; clones are followed back to it."""
    times: dict[int, tuple[int, int]] = {}
    origins: dict[int, int] = {}
    for start, tid, node, original in export.rows("graph_nodes"):
        times.setdefault(node, (start, tid))
        if original is not None and original != node:
            origins.setdefault(node, original)
    out = {}
    for node in times:
        root, seen = node, {node}
        while root in origins and origins[root] not in seen:
            root = origins[root]
            seen.add(root)
        if root in times:
            out[node] = times[root]
    return out


def _device(export: Export, rows: Iterable[Row]) -> tuple[Device | None, tuple[Note, ...]]:
    used = Counter[int]()
    for r in rows:
        used[r.device] += r.end - r.start
    wanted = used.most_common(1)[0][0]
    found = export.rows("gpus")
    if not found:
        return None, ()
    g = next((g for g in found if g[15] == wanted), None) or next((g for g in found if g[0] == wanted), found[0])
    warp, warps = number(g[11]) or 32, number(g[10])
    return describe(
        g[1], f"nsys export {export.version}, TARGET_INFO_GPU",
        peak_bandwidth_bytes_per_s=g[2], sm_count=g[3], l2_bytes=g[4], memory_bytes=g[5], registers_per_sm=g[6],
        shared_bytes_per_sm=g[7], shared_bytes_per_block=g[8], shared_bytes_per_block_optin=g[9],
        threads_per_sm=g[10] if warps is None else warps * warp, warp_size=g[11], blocks_per_sm=g[12],
        compute_capability=(g[13], g[14]),
    )  # fmt: skip


def _activity(r: Row, call: Call | None, context: Context, leads: bool) -> Activity:
    copy = None if r.kind != "memcpy" else _COPY_KINDS.get(r.copy_kind or 0, "Unknown")
    name = r.name if r.kind == "kernel" else f"[CUDA memcpy {copy}]" if r.kind == "memcpy" else "[CUDA memset]"
    is_kernel = r.kind == "kernel"
    return Activity(
        kind=r.kind, name=name or "?", start_ns=r.start, end_ns=r.end, device=r.device, stream=r.stream,  # type: ignore[arg-type]
        correlation=r.correlation,
        launch_start_ns=call.start if call is not None and leads else None,
        launch_end_ns=call.end if call is not None and leads else None,
        thread=None if call is None else call.tid & ~_PROCESS,
        bytes=r.bytes, copy_kind=copy, grid=_triple(r.grid) if is_kernel else None,
        block=_triple(r.block) if is_kernel else None, registers=r.registers, static_shared_bytes=r.static_shared,
        dynamic_shared_bytes=r.dynamic_shared,
        local_bytes_per_thread=r.local or None,  # CUPTI writes 0 for kernels that spill, too
        graph_node=r.node, op=context.op,
        graph_call=context.graph_call, graph_call_id=context.graph_call_id, region=context.region, step=context.step,
        compiling=context.compiling,
    )  # fmt: skip


def _activities(
    rows: list[Row], calls: dict[int | None, Call], ranges: list[OpenRange], creations: dict[int, tuple[int, int]]
) -> tuple[list[Activity], list[Note]]:
    """Activities with their contexts. A replayed kernel takes its op from the creation of its node.

    Only the first kernel of a replay carries the launch's times: the graph was launched once.
    """
    points, created_at = [], {}
    for i, r in enumerate(rows):
        call = calls.get(r.correlation)
        points.append(
            Point(time_ns=call.start if call else r.start, thread=call.tid if call else None, kernel=r.name or "")
        )
        if r.node is not None and r.node in creations:
            created_at[i] = creations[r.node]
    contexts = resolve(ranges, points)
    order = list(created_at)
    creation = resolve(
        ranges, [Point(time_ns=created_at[i][0], thread=created_at[i][1], kernel=rows[i].name or "") for i in order]
    )
    for i, made in zip(order, creation, strict=True):
        here = contexts[i]
        contexts[i] = replace(
            here,
            op=made.op,
            graph_call=here.graph_call or made.graph_call,
            graph_call_id=here.graph_call_id if here.graph_call is not None else made.graph_call_id,
        )
    out, launched, opaque, replayed = [], set[int | None](), 0, 0
    for r, context in zip(rows, contexts, strict=True):
        leads = r.node is None or r.correlation not in launched
        if r.node is not None:
            launched.add(r.correlation)
            replayed += 1
            opaque += context.op is None
        out.append(_activity(r, calls.get(r.correlation), context, leads))
    if not opaque:
        return out, []
    return out, [
        Note(
            kind="opaque-graph",
            text=f"{opaque} of {replayed} launches replayed from CUDA graphs have no op: "
            "no range was open when the graph was captured",
            remedy="start recording before the graph is captured; with an Inductor log they are tied to its calls",
        )
    ]


def _syncs(calls: list[Call], rows: list[Row], ranges: list[OpenRange]) -> tuple[Sync, ...]:
    to_host = {r.correlation for r in rows if r.kind == "memcpy" and r.copy_kind == 2}
    waits = [c for c in calls if c.name in _WAITS or (c.correlation in to_host and _SYNC_COPY.match(c.name))]
    contexts = resolve(ranges, [Point(time_ns=c.start, thread=c.tid) for c in waits])
    return tuple(
        Sync(name=c.name, start_ns=c.start, end_ns=c.end, op=context.op, step=context.step)
        for c, context in zip(waits, contexts, strict=True)
        if not context.compiling
    )


def read_ranges(path: Path) -> list[OpenRange]:
    """The understood NVTX ranges of all processes, in order of start; also of an export without any kernel."""
    with open_export(path) as export:
        return _ranges(export.rows("ranges"), None)


def read_nsys(path: Path) -> Trace:
    """The Trace of an export. Where it holds several processes, of the one with the ranges (or the most GPU time).

    AuditError: not an export, damaged, or nothing ran on a GPU while it was recorded.
    """
    with open_export(path) as export:
        if not any(export.has(view) for view in ("kernel", "memcpy", "memset")):
            raise AuditError(
                f"{path}: no kernel table: no CUDA work was recorded in this export",
                remedy="record with `nsys profile -t cuda,nvtx` on a machine with a GPU",
            )
        every = [_row(r) for r in export.rows("activities")]
        if not any(r.kind == "kernel" for r in every):
            raise AuditError(
                f"{path}: zero kernels: the kernel table is empty or missing",
                remedy="record with `nsys profile -t cuda,nvtx`, and check that the program reached the GPU",
            )
        texts = export.rows("ranges")
        pid, notes = _main_process(every, texts)
        rows = [r for r in every if r.pid == pid]
        ranges = _ranges(texts, pid)
        calls = _calls(export, pid)
        by_correlation: dict[int | None, Call] = {}
        for call in calls:
            if call.correlation is not None:
                by_correlation.setdefault(call.correlation, call)
        creations = _creations(export)
        activities, graph_notes = _activities(rows, by_correlation, ranges, creations)
        words = export.rows("diagnostics" if export.has("diagnostic") else "diagnostic_strings")
        notes += old_export(export) + diagnostics(words, pid) + graph_notes
        captured: dict[int, list[int]] = defaultdict(list)
        for time, tid in creations.values():
            captured[tid].append(time)
        notes += lost_launches(calls, {r.correlation for r in rows}, captured)
        notes += stopped_early(calls, ranges, activities)
        device, device_notes = _device(export, rows)
        return Trace(
            format=f"nsys {export.version}",
            activities=tuple(activities),
            device=device,
            syncs=_syncs(calls, rows, ranges),
            range_ops=range_ops(ranges),
            notes=(*notes, *device_notes),
        )
