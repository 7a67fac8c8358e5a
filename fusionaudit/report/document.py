"""The audit as one JSON object: the contract of ``--format json`` and the only thing that reports read.

Required keys (schema version 1): ``schema_version``, ``tool``, ``engine``, ``target``, ``passes``, ``findings``,
``notes``, ``exit_code``. Further keys: ``environment``, ``sources`` ({file: {line: text}} around what findings name),
``created``. A pass also has ``ops``, ``edges`` (tensors that go from kernel to kernel through global memory),
``graphs``, ``breaks``, ``recompiles``, ``decisions``, ``cudagraph_skips``, ``syncs``. Sizes are bytes, times ns, per
step; unknown is null.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from fusionaudit.device import Device
from fusionaudit.figures import counted
from fusionaudit.findings import Finding, Location, Note, rank
from fusionaudit.program.expectation import named
from fusionaudit.program.model import Kernel, Pass, Program, uncounted
from fusionaudit.trace.schema import Op

SCHEMA_VERSION = 1

Document = dict[str, Any]


def build_document(
    program: Program,
    findings: Sequence[Finding],
    *,
    exit_code: int,
    sources: dict[str, dict[str, str]] | None = None,
    version: str = "",
    created: str = "",
    notes: Sequence[Note] = (),
) -> Document:
    """The document of one audit. Pure; findings come out ranked. ``notes`` come on top of those of the Program."""
    passes = [_pass(p, program.device) for p in program.passes]
    notes = [*program.notes, *(note for p in program.passes for note in p.notes), *notes, *_unlike_bytes(passes)]
    return {
        "schema_version": SCHEMA_VERSION,
        "tool": {"name": "fusionaudit", "version": version},
        "created": created,
        "engine": program.engine,
        "target": _target(program.device),
        "environment": program.environment,
        "passes": passes,
        "findings": [finding_json(f) for f in rank(list(findings))],
        "notes": [_note(n) for n in notes],
        "sources": sources or {},
        "exit_code": exit_code,
    }


def error_document(text: str, *, remedy: str = "", exit_code: int, version: str = "") -> Document:
    """The document of an audit that came to nothing: the required keys, no pass, and the error as a blocking note."""
    return {
        "schema_version": SCHEMA_VERSION,
        "tool": {"name": "fusionaudit", "version": version},
        "engine": None,
        "target": _target(None),
        "environment": {},
        "passes": [],
        "findings": [],
        "notes": [_note(Note(kind="error", text=text, remedy=remedy, blocks=True))],
        "exit_code": exit_code,
    }


def _target(device: Device | None) -> dict[str, Any]:
    if device is None:
        return {"name": None, "sm_count": None, "peak_bandwidth_bytes_per_s": None}
    return device.to_json()


def location_json(location: Location | None) -> dict[str, Any] | None:
    """``{"file", "line", "function"}``, with ``library`` where that is known, or null."""
    if location is None:
        return None
    known = {"file": location.file, "line": location.line, "function": location.function}
    return known if location.library is None else {**known, "library": location.library}


def finding_json(finding: Finding) -> dict[str, Any]:
    """One entry of ``findings``."""
    return {
        "rule": finding.rule,
        "pass": finding.pass_name,
        "severity": finding.severity,
        "confidence": finding.confidence,
        "message": finding.message,
        "ops": list(finding.ops),
        "op_ids": list(finding.op_ids),
        "kernels": list(finding.kernel_ids),
        "location": location_json(finding.location),
        "avoidable_bytes": finding.avoidable_bytes,
        "saving_ns": finding.saving_ns,
        "basis": finding.basis,
        "reason": finding.reason,
        "remedy": finding.remedy,
        "evidence": finding.evidence,
        "graph": finding.graph,
        "fingerprint": finding.fingerprint,
        "verification": None if finding.verification is None else asdict(finding.verification),
    }


def _note(note: Note) -> dict[str, Any]:
    return {"kind": note.kind, "text": note.text, "remedy": note.remedy, "blocks": note.blocks, "pass": note.pass_name}


def kernel_json(kernel: Kernel) -> dict[str, Any]:
    """One entry of ``passes[].kernels``; ``shapes`` and ``dtypes`` are those of reads, then writes."""
    tensors = [*kernel.reads, *kernel.writes]
    return {
        "id": kernel.id,
        "name": kernel.name,
        "category": kernel.category,
        "ops": list(kernel.op_names),
        "op_ids": list(kernel.ops),
        "nodes": list(kernel.nodes),
        "shapes": [list(t.shape) for t in tensors],
        "dtypes": [t.dtype for t in tensors],
        "reads": [t.to_json() for t in kernel.reads],
        "writes": [t.to_json() for t in kernel.writes],
        "duration_ns": kernel.duration_ns,
        "time_basis": kernel.time_basis,
        "global_bytes": kernel.global_bytes,
        "read_bytes": kernel.read_bytes,
        "write_bytes": kernel.write_bytes,
        "reread_bytes": kernel.reread_bytes,
        "basis": None if kernel.global_bytes is None else kernel.bytes_basis,
        "registers": kernel.registers,
        "spill_bytes": kernel.spill_bytes,
        "local_memory_bytes": kernel.local_memory_bytes,
        "shared_memory_bytes": kernel.shared_memory_bytes,
        "occupancy": kernel.occupancy,
        "grid": kernel.grid and list(kernel.grid),
        "block": kernel.block and list(kernel.block),
        "start_ns": kernel.start_ns,
        "gap_ns": kernel.gap_ns,
        "launch_ns": kernel.launch_ns,
        "stream": kernel.stream,
        "graph": kernel.graph,
        "call": kernel.call,
        "replayed": kernel.replayed,
        "phase": kernel.phase,
        "region": named(kernel.region),
        "location": location_json(kernel.location),
    }


def _op(op: Op) -> dict[str, Any]:
    return {
        "id": op.id,
        "name": op.name,
        "inputs": [t.to_json() for t in op.inputs],
        "outputs": [t.to_json() for t in op.outputs],
        "mutated": list(op.mutated),
        "arguments": list(op.arguments),
        "phase": op.phase,
        "region": named(op.region),
        "location": location_json(op.location),
    }


def edges(kernels: Iterable[Kernel]) -> list[dict[str, Any]]:
    """Tensors that one kernel writes and a later one reads: ``{from, to, storage, shape, dtype, bytes}``."""
    writer: dict[str, int] = {}
    out = []
    for kernel in kernels:
        for tensor in kernel.reads:
            if tensor.storage is not None and tensor.storage in writer and writer[tensor.storage] != kernel.id:
                out.append(
                    {
                        "from": writer[tensor.storage],
                        "to": kernel.id,
                        "storage": tensor.storage,
                        "shape": list(tensor.shape),
                        "dtype": tensor.dtype,
                        "bytes": tensor.nbytes,
                    }
                )
        for tensor in kernel.writes:
            if tensor.storage is not None:
                writer[tensor.storage] = kernel.id
    return out


def _unlike_bytes(passes: Sequence[dict[str, Any]]) -> list[Note]:
    """A note where the sums of bytes of the eager and the compiled pass leave out other kernels."""
    missing = {p["name"]: p["per_step"]["uncounted_kernels"] for p in passes if p["name"] in ("eager", "compiled")}
    if len(set(missing.values())) < 2:
        return []
    counts = ", ".join(f"{counted(n, 'kernel')} of {name}" for name, n in missing.items() if n)
    text = f"the sums of bytes are without {counts}, whose bytes are not known: they are not the same work's"
    return [Note(kind="unlike-bytes", text=text, remedy="compare kernel by kernel")]


def per_step(p: Pass, device: Device | None) -> dict[str, Any]:
    """The summary row of a pass: what one step launches, moves and takes."""
    launches = [k for k in p.kernels if k.category not in ("memcpy", "memset")]
    gpu_time, moved = p.gpu_time_ns, p.global_bytes
    known = [k for k in p.kernels if k.global_bytes is not None and k.duration_ns]
    busy = sum(k.duration_ns or 0 for k in known)
    bandwidth = sum(k.global_bytes or 0 for k in known) / busy * 1e9 if busy else None
    peak = device.peak_bandwidth_bytes_per_s if device else None
    links = edges(p.kernels)
    intermediates = {link["storage"]: link["bytes"] for link in links}
    # A recording that somebody else made need not say which kernel reads what another wrote.
    none = 0 if p.kernels and not p.name.startswith("imported") else None
    launch_times = [k.launch_ns for k in p.kernels if k.launch_ns is not None]
    return {
        "launches": len(launches),
        "copies_and_fills": len(p.kernels) - len(launches),
        "distinct_kernels": len({k.name for k in launches}),
        "gpu_time_ns": gpu_time,
        "time_basis": next((k.time_basis for k in p.kernels if k.time_basis), None),
        "global_bytes": moved,
        "basis": None if moved is None else "modelled",
        "kernels_without_bytes": sum(k.global_bytes is None for k in p.kernels),
        "uncounted_kernels": uncounted(p.kernels),
        "bandwidth_bytes_per_s": None if bandwidth is None else round(bandwidth),
        "bandwidth_share": None if bandwidth is None or not peak else round(bandwidth / peak, 4),
        "intermediate_bytes": sum(b or 0 for b in intermediates.values()) if links else none,
        "step_ns": p.step_ns,
        "idle_ns": p.idle_ns,
        "host_ns": p.host_ns,
        "launch_ns_median": round(statistics.median(launch_times)) if launch_times else None,
    }


def _pass(p: Pass, device: Device | None) -> dict[str, Any]:
    return {
        "name": p.name,
        "engine": p.engine,
        "steps": p.steps,
        "per_step": per_step(p, device),
        "unmatched_kernels": p.unmatched_kernels,
        "kernels": [kernel_json(k) for k in p.kernels],
        "ops": [_op(o) for o in p.ops],
        "edges": edges(p.kernels),
        "syncs": [
            {"name": s.name, "location": location_json(s.location), "duration_ns": s.duration_ns, "bytes": s.bytes}
            for s in p.syncs
        ],
        "graphs": [
            {
                "id": g.id,
                "compile_id": g.compile_id,
                "kind": g.kind,
                "source": g.source,
                "inputs": [t.to_json() for t in g.inputs],
                "symbols": dict(g.symbols),
                "cuda_graph": g.asks_for_cuda_graph,
                "calls": [
                    {
                        "index": c.index,
                        "kind": c.kind,
                        "target": c.target,
                        "category": c.category,
                        "aten": list(c.aten),
                        "nodes": list(c.nodes),
                        "read_bytes": c.read_bytes,
                        "write_bytes": c.write_bytes,
                        "location": location_json(c.location),
                        "locations": [location_json(x) for x in c.locations],
                    }
                    for c in g.calls
                ],
            }
            for g in p.log.graphs
        ],
        "decisions": [asdict(d) for d in p.log.decisions],
        "breaks": [asdict(b) for b in p.log.breaks],
        "recompiles": [{**asdict(r), "kind": r.kind} for r in p.log.recompiles],
        "cudagraph_skips": [asdict(s) for s in p.log.cudagraph_skips],
    }
