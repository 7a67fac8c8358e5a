"""From a capture to an audit: build the Program, apply the rules, keep the document."""

from __future__ import annotations

import contextlib
import datetime
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fusionaudit import __version__
from fusionaudit.capture.manifest import MANIFEST, read_manifest
from fusionaudit.config import Config
from fusionaudit.errors import EXIT_ERROR, EXIT_FINDINGS, EXIT_OK, AuditError
from fusionaudit.findings import SEVERITIES, Finding, Location, Severity
from fusionaudit.groups import COMPILES, MAKES_DYNAMIC, MAKES_OPTIMIZER
from fusionaudit.program.build import build_program, import_program
from fusionaudit.program.judgeable import judging_notes
from fusionaudit.program.model import Program
from fusionaudit.report.document import Document, build_document
from fusionaudit.rules import run_rules
from fusionaudit.rules.fa201 import idle_notes
from fusionaudit.rules.sums import raise_sums
from fusionaudit.store import AUDIT_DB, save
from fusionaudit.suppressions import apply_suppressions, suppressed_lines

if TYPE_CHECKING:
    from fusionaudit.capture.session import RunOptions

_CONTEXT_LINES = 3
_DECIDING = (COMPILES, MAKES_DYNAMIC, MAKES_OPTIMIZER)
"""Lines that decide how code is compiled, or how an optimizer steps, are kept too: the guard names them."""


@dataclass(frozen=True, kw_only=True)
class AuditResult:
    """One audit: the document that reports read, the Program and findings behind it, and where it is kept."""

    document: Document
    program: Program
    findings: tuple[Finding, ...]
    exit_code: int
    path: Path | None = None


def exit_code(program: Program, findings: Sequence[Finding], fail_on: Severity | None) -> int:
    """2 where the capture cannot support a verdict, else 1 where a finding reaches ``fail_on``, else 0."""
    notes = [*program.notes, *(n for p in program.passes for n in p.notes)]
    if any(n.blocks for n in notes):
        return EXIT_ERROR
    if fail_on is not None:
        least = SEVERITIES.index(fail_on)
        if any(SEVERITIES.index(f.severity) >= least for f in findings):
            return EXIT_FINDINGS
    return EXIT_OK


def source_file(file: str, capture: Path | None) -> Path | None:
    """The user's file as it was captured, else as it is on this machine; ``None`` where neither can be read."""
    if capture is not None:
        copy = capture / "sources" / file.lstrip("/")
        if copy.is_file():
            return copy
    path = Path(file)
    return path if path.is_file() else None


def source_texts(program: Program, capture: Path | None) -> dict[str, str]:
    """{file: text} of every file that an op, kernel or log entry of the program names."""
    out: dict[str, str] = {}
    for file in sorted({place.file for place in _places(program)}):
        path = source_file(file, capture)
        with contextlib.suppress(OSError):
            if path is not None:
                out[file] = path.read_text(errors="replace")
    return out


def _places(program: Program) -> list[Location]:
    places: list[Location | None] = []
    for p in program.passes:
        for items in (p.ops, p.kernels, p.syncs, p.log.breaks, p.log.recompiles, p.log.decisions):
            places += [item.location for item in items]
    return [place for place in places if place is not None]


def source_lines(program: Program, texts: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """{file: {line: text}} for every line that an op, kernel or log entry of the program names, with some context."""
    wanted: dict[str, set[int]] = {file: set() for file in texts}
    for place in _places(program):
        if place.file in wanted:
            wanted[place.file].update(range(place.line - _CONTEXT_LINES, place.line + _CONTEXT_LINES + 1))
    out: dict[str, dict[str, str]] = {}
    for file, text in texts.items():
        lines = text.splitlines()
        numbers = wanted[file] | {n for n, line in enumerate(lines, start=1) if any(d.search(line) for d in _DECIDING)}
        out[file] = {str(n): lines[n - 1][:400] for n in sorted(numbers) if 1 <= n <= len(lines)}
    return out


def audit_program(
    program: Program,
    *,
    config: Config | None = None,
    fail_on: Severity | None = None,
    capture: Path | None = None,
    out: Path | None = None,
) -> AuditResult:
    """Rules over a Program, and the document of it; kept as ``out/audit.db`` where ``out`` is given."""
    config = config or Config()
    program = replace(program, notes=(*program.notes, *judging_notes(program), *idle_notes(program, config)))
    texts = source_texts(program, capture)
    comments = {file: suppressed_lines(text) for file, text in texts.items()}
    findings, notes = apply_suppressions(run_rules(program, config), program, comments, config)
    findings = raise_sums(program, config, findings)
    code = exit_code(program, findings, fail_on)
    document = build_document(
        program,
        findings,
        exit_code=code,
        sources=source_lines(program, texts),
        version=__version__,
        created=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        notes=notes,
    )
    path = None
    if out is not None:
        try:
            out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise AuditError(f"{out}: cannot make the folder: {error.strerror}", remedy="choose --out") from None
        path = out / AUDIT_DB
        save(document, path)
    return AuditResult(document=document, program=program, findings=tuple(findings), exit_code=code, path=path)


def audit(
    capture: Path, *, out: Path | None = None, config: Config | None = None, fail_on: Severity | None = None
) -> AuditResult:
    """Audit one capture folder. Needs no GPU, no nsys and not the user's script. ``out`` defaults to the capture."""
    read_manifest(capture)
    return audit_program(build_program(capture), config=config, fail_on=fail_on, capture=capture, out=out or capture)


def capture_script(options: RunOptions) -> Path:
    """Run the script in its passes; no further pass where the first one shows that nothing can be judged."""
    from fusionaudit.capture.session import run_capture

    return run_capture(replace(options, goes_on=_can_be_judged) if options.shapes_only else options)


def _can_be_judged(capture: Path) -> bool:
    program = build_program(capture)
    return not any(n.kind == "stopped" and n.blocks for p in program.passes for n in p.notes)


def run(
    script: str | None = None,
    arguments: Sequence[str] = (),
    *,
    config: Config | None = None,
    fail_on: Severity | None = None,
    **options: Any,
) -> AuditResult:
    """Capture a script and audit it. ``options`` are the fields of :class:`~fusionaudit.capture.session.RunOptions`.

    >>> fusionaudit.run("train.py", engine="deviceless", target="h100")  # doctest: +SKIP
    """
    from fusionaudit.capture.session import RunOptions

    capture = capture_script(RunOptions(script=script, arguments=tuple(arguments), **options))
    return audit(capture, config=config, fail_on=fail_on)


def analyze(
    paths: Sequence[Path],
    *,
    inductor_log: Path | None = None,
    out: Path | None = None,
    config: Config | None = None,
    fail_on: Severity | None = None,
    warmup: int | None = None,
    steps: int | None = None,
    nsys: str | None = None,
) -> AuditResult:
    """Audit a capture folder, or bare exports (``.sqlite``, ``.nsys-rep``, Kineto ``.json``/``.json.gz``).

    Several exports become one audit with a pass each. A bare export's audit is kept only where ``out`` says.
    """
    if not paths:
        raise AuditError("nothing to analyze", remedy="give a capture folder or an export")
    for path in paths:
        if not path.exists():
            raise AuditError(f"{path}: no such file or folder")
    if len(paths) == 1 and paths[0].is_dir():
        if not (paths[0] / MANIFEST).exists():
            raise AuditError(
                f"{paths[0]}: a folder without {MANIFEST}", remedy="give a folder made by `fusionaudit run`"
            )
        if inductor_log is not None or steps is not None or warmup is not None:
            text = f"{paths[0]}: a capture folder has its own log and steps"
            raise AuditError(text, remedy="leave out --inductor-log, --steps and --warmup")
        return audit(paths[0], out=out, config=config, fail_on=fail_on)
    exports = []
    for path in paths:
        if path.suffix == ".nsys-rep":
            from fusionaudit.capture.nsys import export_report

            path = export_report(path, out or path.parent, nsys=nsys)
        exports.append(path)
    try:
        program = import_program(exports, inductor_log=inductor_log, warmup=warmup, steps=steps)
    except sqlite3.Error as error:
        raise AuditError(f"{exports[0]}: the database is damaged: {error}", remedy="export it again") from None
    return audit_program(program, config=config, fail_on=fail_on, out=out)
