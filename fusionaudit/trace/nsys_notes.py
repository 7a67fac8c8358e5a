"""What an export says, and does not say, about its own completeness."""

from __future__ import annotations

import bisect
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fusionaudit.findings import Note
from fusionaudit.trace.enclosing import OpenRange
from fusionaudit.trace.nsys_tables import Export
from fusionaudit.trace.schema import Activity

if TYPE_CHECKING:
    from fusionaudit.trace.nsys_sqlite import Call

_LOST_CUDA = re.compile(
    r"not all CUDA events might have been collected|CUPTI dropped [1-9]\d* record|CUPTI events dropped: [1-9]|"
    r"[1-9]\d* GPU events were discarded|cannot allocate CUPTI buffer",
    re.IGNORECASE,
)
"""The profiler's own words (the strings of nsys 2023.4) on lost GPU events. Lost CPU samples do not matter here."""

_LOST_NVTX = re.compile(
    r"not all NVTX events might have been collected|[1-9]\d* NVTX annotations were discarded", re.IGNORECASE
)
_LAUNCH = re.compile(r"^(cudaLaunch(Cooperative)?Kernel\w*|cuLaunch(Cooperative)?Kernel\w*)$")
_FEATURES = {
    "graphNodeId": "kernels replayed from CUDA graphs cannot be told",
    "localMemoryPerThread": "register spills are not known",
    "globalPid": "processes cannot be told apart",
    "demangledName": "kernel names are short",
}
_AGAIN = "record again; with nsys give `-t cuda,nvtx -s none --cpuctxsw=none` and enough disk space"


def old_export(export: Export) -> list[Note]:
    """One note on what this export's schema cannot tell."""
    lacking = [c for c in export.missing.get("kernel", ()) if c in _FEATURES]
    told = [_FEATURES[c] for c in lacking]
    if not export.has("runtime"):
        told.append("no CUDA API calls: launch times are not known, and launches cannot be tied to ops")
    if not export.has("nvtx"):
        told.append("no NVTX ranges: launches are not tied to ops")
    if not export.has("gpu"):
        told.append("no TARGET_INFO_GPU: the GPU and its bandwidth are not known")
    if not told:
        return []
    return [
        Note(
            kind="old-export",
            text=f"schema {export.version}: {'; '.join(told)}",
            remedy="export with a newer nsys"
            if lacking
            else "profile with `-t cuda,nvtx`, and export with a newer nsys",
        )
    ]


def diagnostics(rows: Iterable[tuple[Any, ...]], pid: int | None) -> list[Note]:
    """Notes on events that the profiler says it lost in this process. Its chatter and its words on other processes
    (compile workers that never use the GPU) are left out."""
    out, seen = [], set[str]()
    for severity, text, owner in rows:
        text = " ".join(str(text).split())
        if text in seen or (owner and pid is not None and owner != pid):
            continue
        seen.add(text)
        if _LOST_CUDA.search(text):
            out.append(Note(kind="lost-events", text=f"nsys: {text}", remedy=_AGAIN, blocks=True))
        elif _LOST_NVTX.search(text):
            out.append(Note(kind="lost-events", text=f"nsys: {text}", remedy=_AGAIN))
        elif isinstance(severity, int) and severity >= 3:
            out.append(Note(kind="profiler-error", text=f"nsys: {text}"))
    return out


def lost_launches(
    calls: Sequence[Call], recorded: set[int | None], captured: Mapping[int, Sequence[int]]
) -> list[Note]:
    """A note where launch calls have no kernel. Launches into a CUDA graph have none: they created a node."""
    times = {tid: sorted(stamps) for tid, stamps in captured.items()}
    launches = missing = 0
    for call in calls:
        if not _LAUNCH.match(call.name):
            continue
        launches += 1
        if call.correlation in recorded:
            continue
        stamps = times.get(call.tid, [])
        at = bisect.bisect_left(stamps, call.start)
        if at < len(stamps) and stamps[at] <= call.end:
            continue
        missing += 1
    if not missing:
        return []
    return [
        Note(
            kind="lost-events",
            text=f"{missing} of {launches} launch calls have no kernel in the export",
            remedy=_AGAIN,
            blocks=missing > 0.01 * launches,
        )
    ]


def stopped_early(calls: Sequence[Call], ranges: Sequence[OpenRange], activities: Sequence[Activity]) -> list[Note]:
    """A note where ops that launched before go on after the last CUDA call: the profiler stopped, the program did not.

    (Nsight Systems 2023.4 with its own CUPTI does that at the first cuBLAS call under CUDA 13, without a word.)
    """
    if not calls:
        return []
    last = max(c.end for c in calls)
    launching = {(a.op.name, a.op.shapes) for a in activities if a.op is not None and a.op.shapes}
    after = [
        r.meaning.op.name
        for r in ranges
        if r.start_ns > last and r.meaning.op is not None and (r.meaning.op.name, r.meaning.op.shapes) in launching
    ]
    if not after:
        return []
    return [
        Note(
            kind="lost-events",
            text=f"recording of CUDA stopped before the program did: {len(after)} ops after the last CUDA call "
            f"({after[0]}, ...) launched kernels earlier and none here",
            remedy="use an nsys whose CUPTI knows the installed driver (`fusionaudit doctor`), or --engine kineto",
            blocks=True,
        )
    ]
