"""Makes a capture: chooses the engine, runs the script once for each pass in a child, writes the manifest."""

from __future__ import annotations

import contextlib
import datetime
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import fusionaudit
from fusionaudit.capture.child import BOOTSTRAP
from fusionaudit.capture.engines import check_target, choose_engine, device_for, no_gpu_hint
from fusionaudit.capture.environment import Facts, disk_full
from fusionaudit.capture.manifest import CapturedPass, Manifest, write_manifest
from fusionaudit.capture.nsys import Nsys, cupti_environment, export_report, message, profile_command
from fusionaudit.capture.process import TERM_WITH_PARENT, Ended, describe_code, real_descriptor, run_child, umask
from fusionaudit.capture.progress import SHAPES_ONLY_HINT, progress_of
from fusionaudit.capture.spec import TARGETS, PassOutcome, PassSpec
from fusionaudit.errors import AuditError

Engine = Literal["auto", "nsys", "kineto", "deviceless"]
PASSES = ("eager", "compiled", "clean", "clean_eager")
DEVICELESS_PASSES = ("eager", "compiled")


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """What to run and how.

    ``passes`` empty: all that the engine makes; ``clean`` stands for itself and ``clean_eager``. ``steps`` and
    ``warmup`` go to the manifest for the analysis. ``target`` names the GPU of the deviceless engine. With
    ``machine_output`` the script's stdout goes to stderr. ``variant`` is what a sweep changes. ``progress`` gets one
    line at a time. ``goes_on`` is asked after the eager pass whether more are worth their time.
    """

    script: str | None = None
    module: str | None = None
    arguments: tuple[str, ...] = ()
    out: Path | None = None
    engine: Engine = "auto"
    passes: tuple[str, ...] = ()
    steps: int | None = None
    warmup: int | None = None
    nsys: str | None = None
    timeout_s: float | None = None
    target: str | None = None
    quiet: bool = False
    shapes_only: bool = False
    python: str = sys.executable
    machine_output: bool = False
    variant: dict[str, Any] | None = None
    progress: Callable[[str], None] | None = None
    goes_on: Callable[[Path], bool] = lambda _: True


@dataclass
class _Session:
    options: RunOptions
    folder: Path
    engine: str
    facts: Facts
    nsys: Nsys | None
    device: dict[str, Any] | None
    passes: list[CapturedPass] = field(default_factory=list)
    notes: list[dict[str, Any]] = field(default_factory=list)
    compiled_for_user: str = ""
    records: int = 0

    def say(self, text: str) -> None:
        if self.options.progress is not None and not self.options.quiet:
            self.options.progress(text)

    def note(
        self, kind: str, text: str, remedy: str = "", *, blocks: bool = False, pass_name: str | None = None
    ) -> None:
        self.notes.append({"kind": kind, "text": text, "remedy": remedy, "blocks": blocks, "pass_name": pass_name})

    def write(self) -> None:
        options = self.options
        environment = {**self.facts.environment(), "cwd": os.getcwd()}
        program = ["-m", options.module] if options.module else [options.script]
        write_manifest(
            self.folder,
            Manifest(
                engine=self.engine, command=tuple(str(p) for p in (*program, *options.arguments)),
                passes=tuple(self.passes), device=self.device, environment=environment,
                options={
                    "steps": options.steps, "warmup": options.warmup, "shapes_only": options.shapes_only,
                    "variant": options.variant,
                    "compiled_for_user": self.compiled_for_user, "notes": self.notes,
                },
                created=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            ),
        )  # fmt: skip


def run_capture(options: RunOptions) -> Path:
    """Run the script in its passes and give the capture folder.

    A pass that fails ends the capture: its exit code and last words are in the manifest, what was captured stays.
    AuditError (with the folder named) where nothing at all could be captured, and on Ctrl-C (exit code 130).
    """
    _check_program(options)
    names = _pass_names(options)
    check_folder(options)
    check_target(options.engine, options.target)
    choice = choose_engine(options.engine, nsys_option=options.nsys, python=options.python)
    device = device_for(choice, options.target)
    if choice.engine == "deviceless":
        names = tuple(n for n in names if n in DEVICELESS_PASSES) or DEVICELESS_PASSES
    folder = make_folder(options)
    session = _Session(
        options=options, folder=folder, engine=choice.engine, facts=choice.facts, nsys=choice.nsys, device=device
    )
    session.say(f"engine {choice.engine}: {choice.why}")
    if choice.engine == "nsys" and choice.facts.gpu is None:
        text = f"no GPU: {choice.facts.reason or 'torch sees none'}; nsys saw no kernels"
        session.note("no-gpu", text, "--engine deviceless needs none")
    try:
        session.write()
        whole = True
        for name in names:
            # The eager form was seen to run: its times are worth having where the compiled one fails.
            if whole or name == "clean_eager":
                whole = _run_pass(session, name, first=not session.passes) and whole
            if name == "eager" and not (whole and options.goes_on(folder)):
                break
        session.write()
    except OSError as error:
        where = error.filename or folder
        raise AuditError(
            f"{where}: {error.strerror or error}", remedy=f"what was captured is kept in {folder}"
        ) from None
    finally:
        shutil.rmtree(folder / "cache", ignore_errors=True)
        shutil.rmtree(folder / "cupti", ignore_errors=True)
    if session.compiled_for_user:
        session.say(session.compiled_for_user)
    _raise_if_empty(session)
    session.say(f"capture: {folder}")
    return folder


def _check_program(options: RunOptions) -> None:
    if (options.script is None) == (options.module is None):
        raise AuditError("give a script or a module", remedy="fusionaudit run SCRIPT.py [ARGS], or -m MODULE [ARGS]")
    if options.script is not None:
        path = Path(options.script)
        if not path.exists():
            raise AuditError(f"{path}: no such file", remedy="give the path of a Python script")
        if path.is_dir():
            raise AuditError(f"{path}: is a folder", remedy="give a Python script, or -m MODULE")
        if not os.access(path, os.R_OK):
            raise AuditError(f"{path}: cannot be read", remedy="check its permissions")


def _pass_names(options: RunOptions) -> tuple[str, ...]:
    unknown = sorted(set(options.passes) - set(PASSES))
    if unknown:
        raise AuditError(f"unknown pass {unknown[0]!r}", remedy="known: eager, compiled, clean")
    wanted = set(options.passes or PASSES)
    if "clean" in wanted:
        wanted.add("clean_eager")
    wanted.add("eager")  # first, always: it finds what to compile in the others
    return tuple(name for name in PASSES if name in wanted)


def rank_suffix() -> str:
    """``.rank3`` where a launcher like torchrun started this process (RANK in the environment), else nothing."""
    rank = os.environ.get("RANK", "")
    return f".rank{rank}" if rank.isdigit() and os.environ.get("WORLD_SIZE", "1") not in ("", "1") else ""


def check_folder(options: RunOptions) -> None:
    """AuditError where ``--out`` has files in it already."""
    if options.out is not None:
        folder = Path(f"{options.out}{rank_suffix()}").absolute()
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise AuditError(f"{folder}: exists and is not empty", remedy="give --out a new folder")


def make_folder(options: RunOptions) -> Path:
    """The new capture folder: ``--out``, or ``fusionaudit-<script>-<time>`` here; never one that has files.

    Under a launcher of several ranks each has its own: ``.rank0`` and so on are added to the name.
    """
    check_folder(options)
    if options.out is not None:
        folder = Path(f"{options.out}{rank_suffix()}").absolute()
    else:
        name = Path(options.script).stem if options.script else (options.module or "module")
        stamp = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
        folder = Path.cwd() / f"fusionaudit-{name}-{stamp}{rank_suffix()}"
        for number in range(2, 100):
            if not folder.exists():
                break
            folder = Path.cwd() / f"fusionaudit-{name}-{stamp}-{number}{rank_suffix()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe_file = folder / ".writable"
        probe_file.touch()
        probe_file.unlink()
    except OSError as error:
        raise AuditError(f"{folder}: {error.strerror}", remedy="give --out a folder that can be written") from None
    return folder


def _environment(session: _Session, name: str, pass_folder: Path) -> dict[str, str]:
    cache = session.folder / "cache"
    environment = dict(os.environ)
    environment["TORCHINDUCTOR_CACHE_DIR"] = str(cache / "inductor")
    environment["TRITON_CACHE_DIR"] = str(cache / "triton")
    if name == "compiled":
        # A hit in these caches skips the scheduler, and with it the log of what was fused and why not.
        environment["TORCHINDUCTOR_FX_GRAPH_CACHE"] = "0"
        environment["TORCHINDUCTOR_AUTOGRAD_CACHE"] = "0"
        if session.engine != "deviceless":
            environment["TORCH_TRACE"] = str(pass_folder / "structured")
    port = environment.get("MASTER_PORT", "")
    if rank_suffix() and port.isdigit():
        # The launcher's store remembers the ranks' addresses of the pass before: each pass meets at a store of its own.
        environment["TORCHELASTIC_USE_AGENT_STORE"] = "False"
        environment["MASTER_PORT"] = str(int(port) + 1 + PASSES.index(name))
    if session.nsys is not None:
        environment.update(cupti_environment(session.nsys, session.facts.cuda, session.folder / "cupti"))
    return environment


def _run_pass(session: _Session, name: str, *, first: bool) -> bool:
    """One pass; true where the next may run. The pass is added to the session whatever happened."""
    session.say(f"{name} pass ...")
    ended, captured = _attempt(session, name, shown=first)
    if session.nsys is not None and captured.trace is None and captured.returncode == 0:
        # The importer of nsys fails now and then on a recording; the script itself went well.
        session.say(f"{name}: {captured.error}; once more")
        shutil.rmtree(session.folder / name, ignore_errors=True)
        ended, captured = _attempt(session, name, shown=False)
    session.passes.append(captured)
    if captured.error is not None and not first:
        _show_tail(session, session.folder / name / "stderr.txt")
    session.write()
    if ended.interrupted:
        raise AuditError(f"interrupted in the {name} pass; the capture is kept: {session.folder}", exit_code=130)
    return captured.returncode == 0 and captured.error is None


def _attempt(session: _Session, name: str, *, shown: bool) -> tuple[Ended, CapturedPass]:
    """Run the child of a pass once; what the script prints is shown, or kept in the capture."""
    pass_folder = session.folder / name
    pass_folder.mkdir()
    with contextlib.ExitStack() as stack:
        if shown:
            out = real_descriptor("stderr" if session.options.machine_output else "stdout")
            err = real_descriptor("stderr")
        else:
            out = stack.enter_context((pass_folder / "stdout.txt").open("wb")).fileno()
            err = stack.enter_context((pass_folder / "stderr.txt").open("wb")).fileno()
        ended, tool_output = _execute(session, name, pass_folder, out, err)
    return ended, _collect(session, name, pass_folder, ended, tool_output)


def _execute(session: _Session, name: str, pass_folder: Path, out: int | None, err: int | None) -> tuple[Ended, str]:
    """Run the child of one pass, under nsys where that is the engine; gives what nsys printed."""
    options = session.options
    under_nsys = session.nsys is not None
    spec = PassSpec(
        name=name, engine=session.engine, folder=str(pass_folder), script=options.script, module=options.module,
        arguments=options.arguments, targets=str(session.folder / TARGETS), device=session.device,
        shapes_only=options.shapes_only, variant=options.variant, parent=None if under_nsys else os.getpid(),
    )  # fmt: skip
    with contextlib.ExitStack() as stack:
        fds: tuple[int, ...] = ()
        if under_nsys:
            # nsys prints to its stdout and stderr; the script keeps the real ones through descriptors of their own.
            copies = [os.dup(fd) if fd is not None else None for fd in (out, err)]
            for copy in copies:
                if copy is not None:
                    stack.callback(os.close, copy)
            fds = tuple(copy for copy in copies if copy is not None)
            spec = replace(spec, stdout=copies[0], stderr=copies[1], umask=umask())
        path = pass_folder / "spec.json"
        spec.write(path)
        root = str(Path(fusionaudit.__file__).parent.parent)
        command = [options.python, "-c", BOOTSTRAP, str(path), root]
        tool_path = pass_folder / "nsys.txt"
        if session.nsys is not None:
            tool = stack.enter_context(tool_path.open("wb"))
            command = profile_command(session.nsys, pass_folder / "trace", command)
            if sys.platform == "linux":
                command = [sys.executable, "-I", "-S", "-c", TERM_WITH_PARENT, *command]
            out = err = tool.fileno()
        hint = SHAPES_ONLY_HINT if name == "eager" and _computes(session) else ""
        stack.enter_context(progress_of(name, pass_folder / "ops.jsonl", session.say, hint=hint))
        ended = run_child(
            command,
            environment=_environment(session, name, pass_folder),
            stdout=out, stderr=err, pass_fds=fds, timeout_s=options.timeout_s,
        )  # fmt: skip
    return ended, tool_path.read_text(errors="replace") if under_nsys else ""


def _computes(session: _Session) -> bool:
    return session.engine == "deviceless" and not session.options.shapes_only


def _collect(session: _Session, name: str, pass_folder: Path, ended: Ended, tool_output: str) -> CapturedPass:
    """What the pass left behind, and what went wrong in one line."""
    outcome = PassOutcome.read(pass_folder)
    returncode, error = _verdict(session, ended, outcome)
    trace: Path | None = None
    if session.nsys is not None:
        trace, problem = _export(session, pass_folder, tool_output)
        # No report and no word from the child: it was nsys that failed, and its exit code is not the script's.
        error = problem if trace is None and outcome is None and not ended.timed_out else error or problem
    elif (pass_folder / "trace.json.gz").exists():
        trace = pass_folder / "trace.json.gz"
    if outcome is not None:
        session.records += int(outcome.facts.get("records") or 0)
        if outcome.compiled_for_user:
            session.compiled_for_user = outcome.compiled_for_user
            if name == "compiled":
                session.note("compiled-for-you", outcome.compiled_for_user, pass_name=name)
    (pass_folder / "spec.json").unlink(missing_ok=True)

    def existing(relative: str) -> str | None:
        path = pass_folder / relative
        if not path.exists() or (path.is_dir() and not any(path.iterdir())):
            return None
        return f"{name}/{relative}"

    return CapturedPass(
        name=name,
        trace=None if trace is None else f"{name}/{trace.name}",
        ops=existing("ops.jsonl"),
        log=existing("torch_logs.txt"),
        structured=existing("structured"),
        resources=existing("resources.json"),
        returncode=returncode,
        error=error,
        wall_s=round(ended.wall_s, 3) if outcome is None else outcome.facts.get("wall_s"),
    )


def _verdict(session: _Session, ended: Ended, outcome: PassOutcome | None) -> tuple[int, str | None]:
    """(exit code of the script, one line on what went wrong or None)."""
    if ended.interrupted:
        return 130, "interrupted (Ctrl-C)"
    if ended.timed_out:
        hint = f"; {SHAPES_ONLY_HINT}" if _computes(session) else ""
        return 124, f"stopped after {session.options.timeout_s:g} s (--timeout){hint}"
    if outcome is None:
        code = ended.returncode
        if code == 0:
            return 0, "the script left its process in a way that was not seen; the end of the recording is missing"
        return code, disk_full(session.folder) or f"the script ended with {describe_code(code)}"
    if outcome.problem is not None:
        return outcome.exit_code, f"the capture failed: {outcome.problem}"
    if outcome.exit_code:
        said = f" ({outcome.error}{no_gpu_hint(session.engine, session.facts, outcome.error)})" if outcome.error else ""
        return outcome.exit_code, f"the script ended with {describe_code(outcome.exit_code)}{said}"
    return 0, None


def _export(session: _Session, pass_folder: Path, tool_output: str) -> tuple[Path | None, str | None]:
    """The SQLite export of the pass's report, or why there is none. The report has the environment in it: it goes."""
    report = pass_folder / "trace.nsys-rep"
    if not report.exists():
        return None, f"nsys made no report: {message(tool_output)}"
    session.say(f"{pass_folder.name}: exporting")
    try:
        exported = export_report(report, pass_folder, nsys=session.nsys.path if session.nsys else None)
    except AuditError as error:
        return None, error.message
    report.unlink()
    return exported, None


def _show_tail(session: _Session, path: Path) -> None:
    """The end of what a later pass printed: its traceback would else be hidden in the capture."""
    with contextlib.suppress(OSError):
        for line in path.read_text(errors="replace").splitlines()[-15:]:
            session.say(f"| {line}")


def _raise_if_empty(session: _Session) -> None:
    failed = [p for p in session.passes if p.returncode or p.error]
    if not failed:
        return
    last = failed[-1]
    where = f"{last.name} pass: {last.error}"
    finished = [p for p in session.passes if not p.returncode and not p.error]
    if not finished and not session.records:
        raise AuditError(f"{where}; nothing was captured", remedy=f"the files are in {session.folder}")
    session.say(f"{where}; finished passes are kept")
