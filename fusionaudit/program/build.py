"""From a capture folder (or a bare export) to the Program: reads every file once, never runs anything."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

from fusionaudit.capture.manifest import CapturedPass, Manifest, read_manifest
from fusionaudit.device import Device
from fusionaudit.errors import DAMAGE, AuditError, damaged
from fusionaudit.findings import Note
from fusionaudit.inductor.model import InductorLog
from fusionaudit.inductor.read import read_inductor
from fusionaudit.program.judgeable import log_notes
from fusionaudit.program.local_memory import with_local_memory
from fusionaudit.program.loops import Loop, loop_of, other_loop, other_steps
from fusionaudit.program.measured import measured_pass
from fusionaudit.program.model import Pass, PassName, Program
from fusionaudit.program.predicted import predicted_pass
from fusionaudit.program.records import Place, places_of
from fusionaudit.trace.load import load_trace
from fusionaudit.trace.oplog import read_oplog
from fusionaudit.trace.schema import OpLog


def _inside(folder: Path, relative: str | None) -> Path | None:
    """The file of a pass; a manifest cannot point outside its own folder."""
    if relative is None:
        return None
    path = (folder / relative).resolve()
    if not path.is_relative_to(folder.resolve()):
        raise AuditError(f"{folder}: the manifest names a file outside the capture: {relative}")
    return path if path.exists() else None


def _resources(path: Path | None) -> tuple[dict[str, Any], list[Note]]:
    if path is None:
        return {}, []
    try:
        data = json.loads(path.read_text())
    except (OSError, ValueError):
        text = f"{path.name}: cannot be read; registers and spills are not known"
        return {}, [Note(kind="broken-file", text=text, remedy="run the audit again")]
    if not isinstance(data, dict) or not all(isinstance(data.get(k, {}), dict) for k in ("graphs", "kernels")):
        return {}, []
    return data, [Note(kind=n["kind"], text=n["text"]) for n in data.get("notes", [])]


def _failed(p: CapturedPass, engine: str) -> Note:
    why = p.error or f"exit code {p.returncode}"
    late = "(--timeout)" in why
    ours = late or why.startswith("the capture failed")
    first = "" if ours else "make the script run under plain python first"
    first = "give it more time or less work" if late else first
    if engine == "deviceless" and not ours:
        first += "; CPU tensors stand for the GPU's here: what needs a real one (a CUDA extension, a raw pointer) fails"
    return Note(
        kind="failed-pass",
        text=f"{p.name}: {why}" if ours else f"{p.name}: the script failed in this pass: {why}",
        remedy=f"{first}; the finished passes are kept".removeprefix("; "),
        blocks=True,
        pass_name=p.name,
    )


_RECORDED = {"clean": "compiled", "clean_eager": "eager"}
"""The pass with a recorder whose step a clean pass repeats."""


def _build_pass(
    folder: Path, manifest: Manifest, p: CapturedPass, device: Device | None, before: Sequence[Pass],
    outside: frozenset[Place] | None, loop: Loop | None,
) -> tuple[Pass | None, Device | None, OpLog | None]:  # fmt: skip
    log_path, structured = _inside(folder, p.log), _inside(folder, p.structured)
    log = read_inductor(log_path, structured) if log_path or structured else InductorLog()
    ops_path, trace_path = _inside(folder, p.ops), _inside(folder, p.trace)
    oplog = read_oplog(ops_path) if ops_path else None
    options: dict[str, int | None] = {
        "warmup": manifest.options.get("warmup"),
        "steps": manifest.options.get("steps"),
    }
    if p.name not in get_args(PassName):
        raise AuditError(f"unknown pass {p.name!r} in the manifest")
    name: PassName = p.name  # type: ignore[assignment]
    outside = outside if name == "eager" else None
    loop = loop if name == "compiled" else None
    if manifest.engine == "deviceless":
        if oplog is None:
            return None, device, None
        resources, notes = _resources(_inside(folder, p.resources))
        built = predicted_pass(name, oplog, log, device, resources=resources, outside=outside, loop=loop, **options)
        return replace(built, notes=(*built.notes, *log.notes, *notes)), device, oplog
    if trace_path is None:
        return None, device, None
    trace = load_trace(trace_path)
    known = next((b for b in before if b.name == _RECORDED.get(name) and b.steps), None)
    names = [k.name for k in known.kernels] if known is not None else []
    built = measured_pass(
        name, manifest.engine, trace, oplog, log, step_names=names, outside=outside, loop=loop, **options
    )
    resources, notes = _resources(_inside(folder, p.resources))
    built = with_local_memory(built, resources)
    notes = [*log.notes, *notes, *_lost(p, built, oplog, log)]
    return replace(built, notes=(*built.notes, *notes)), trace.device or device, oplog


def _lost(p: CapturedPass, built: Pass, oplog: OpLog | None, log: InductorLog) -> list[Note]:
    """Blocking notes on what the recorder or Inductor wrote for these launches and is no longer there."""
    gone = []
    if p.ops and built.kernels and (oplog is None or (built.name == "eager" and not oplog.records)):
        gone.append((p.ops, "which op reads what another wrote is not known"))
    if p.log and not log.graphs and any(k.name.startswith("triton_") for k in built.kernels):
        gone.append((p.log, "what torch.compile's kernels hold is not known"))
    remedy = "run the audit again"
    return [
        Note(
            kind="missing-file",
            text=f"{file} is missing or empty: {what}",
            remedy=remedy,
            blocks=True,
            pass_name=p.name,
        )
        for file, what in gone
    ]


def _outside_graphs(folder: Path, manifest: Manifest) -> frozenset[Place] | None:
    """What the compiled pass ran outside graphs; ``None`` where there is no whole one."""
    for p in manifest.passes:
        if p.name == "compiled" and p.returncode == 0 and p.error is None:
            with contextlib.suppress(*DAMAGE):
                path = _inside(folder, p.ops)
                return places_of(read_oplog(path)) if path else None
    return None


def build_program(folder: Path) -> Program:
    """The Program of a capture folder. AuditError where nothing in it can be read."""
    manifest = read_manifest(folder)
    device = Device.from_json(manifest.device) if manifest.device else None
    passes: list[Pass] = []
    try:
        notes = [Note(**n) for n in manifest.options.get("notes", [])]
    except DAMAGE as problem:
        raise damaged(f"{folder}: manifest", problem) from None
    errors: list[AuditError] = []
    outside = _outside_graphs(folder, manifest)
    loop: Loop | None = None
    for p in manifest.passes:
        if p.returncode != 0 or p.error:
            notes.append(_failed(p, manifest.engine))
        try:
            built, measured_on, oplog = _build_pass(folder, manifest, p, device, passes, outside, loop)
        except DAMAGE as problem:
            error = damaged(f"{folder}/{p.name}", problem)
            errors.append(error)
            notes.append(Note(kind="unreadable-pass", text=f"{p.name}: {error}", blocks=True, pass_name=p.name))
            continue
        if built is None:
            text = f"{p.name}: nothing was captured in this pass"
            notes.append(
                Note(kind="missing-pass", text=text, remedy="see its log in the capture", blocks=True, pass_name=p.name)
            )
            continue
        if built.name == "eager" and oplog is not None:
            loop = loop_of(built, oplog)
        elif built.name == "compiled" and (eager := next((b for b in passes if b.name == "eager"), None)):
            note = other_loop(eager, built, loop) or other_steps(eager, built)
            notes += [] if note is None else [note]
        passes.append(built)
        device = device or measured_on
    if not passes and errors:
        raise errors[0]
    notes += _missing(manifest, passes)
    return Program(
        engine=manifest.engine,
        device=device,
        passes=tuple(replace(p, device=device) for p in passes),
        environment=manifest.environment,
        notes=tuple(notes),
    )


def _missing(manifest: Manifest, passes: Sequence[Pass]) -> list[Note]:
    """Notes on the passes that a comparison would need and that were not asked for."""
    ended = any(p.name == "eager" and (p.returncode or p.error) for p in manifest.passes)
    if ended or any(n.blocks and n.kind == "stopped" for p in passes for n in p.notes):  # that ended the capture
        return []
    have, tried = {p.name for p in passes}, {p.name for p in manifest.passes}
    return [
        Note(kind="missing-pass", text=f"no {name} pass: {what}", remedy=f"add {name} to --passes", pass_name=name)
        for name, what in (("eager", "chains cannot be judged"), ("compiled", "what Inductor makes is not known"))
        if name not in have and name not in tried
    ]


_IMPORTED: tuple[PassName, ...] = ("imported", "imported2", "imported3", "imported4")


def import_program(
    exports: Sequence[Path], *, inductor_log: Path | None = None, warmup: int | None = None, steps: int | None = None
) -> Program:
    """The Program of bare exports that somebody else made: each file one pass (``imported``, ``imported2`` ...)."""
    if len(exports) > len(_IMPORTED):
        raise AuditError(f"at most {len(_IMPORTED)} exports at once")
    structured = inductor_log if inductor_log is not None and inductor_log.is_dir() else None
    try:
        log = read_inductor(None if structured else inductor_log, structured) if inductor_log else InductorLog()
    except DAMAGE as problem:
        raise damaged(str(inductor_log), problem) from None
    passes: list[Pass] = []
    device = None
    for number, path in enumerate(exports):
        try:
            trace = load_trace(path)
            built = measured_pass("imported", "import", trace, None, log, warmup=warmup, steps=steps)
            built = with_local_memory(built, {})
        except DAMAGE as problem:
            raise damaged(str(path), problem) from None
        fit = log_notes(built, log, path.name, trace.device)
        notes = [*built.notes, *log.notes, *(replace(n, pass_name=_IMPORTED[number]) for n in fit)]
        passes.append(replace(built, name=_IMPORTED[number], notes=tuple(notes)))
        device = device or trace.device
    notes = []
    told = any(n.kind == "log-mismatch" for p in passes for n in p.notes)
    if log.graphs and not told and not any(k.graph for p in passes for k in p.kernels):
        text = f"{inductor_log}: none of the log's graphs ran in what was recorded"
        remedy = "give the log of the same run, or leave --inductor-log out"
        notes = [Note(kind="log-mismatch", text=text, remedy=remedy, blocks=True)]
    placed = tuple(replace(p, device=device) for p in passes)
    return Program(engine="import", device=device, passes=placed, notes=tuple(notes))
