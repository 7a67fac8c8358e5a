"""``python -m fusionaudit.capture.child --spec FILE``: sets up one pass, then runs the user's program in it."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from fusionaudit.capture.process import die_with
from fusionaudit.capture.spec import TARGETS, PassOutcome, PassSpec
from fusionaudit.errors import AuditError

BOOTSTRAP = (
    "import sys\n"
    "if sys.path and sys.path[0] == '': del sys.path[0]\n"
    "try: from fusionaudit.capture.child import main\n"
    "except ImportError:\n"
    "    sys.path.append(sys.argv[2]); from fusionaudit.capture.child import main\n"
    "main(sys.argv[1])\n"
)
"""Run with ``python -c``: the working directory must not shadow what the set-up imports, as ``-m`` would let it."""


_AFTER_STOP_S = 10.0
"""Time that a script which the audit ended has for its own end (threads, atexit)."""


class _Finish:
    """Things to do at the end of the pass, once, in reverse order; also when the script calls ``os._exit``."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._steps: list[Callable[[], Any]] = []
        self.problem: str | None = None

    def add(self, step: Callable[[], Any]) -> None:
        """Run ``step`` at the end, before the earlier ones."""
        self._steps.append(step)

    def run(self) -> None:
        """Run them all; the first failure is kept in ``problem``."""
        if os.getpid() != self._pid:
            return
        while self._steps:
            step = self._steps.pop()
            try:
                step()
            except OSError as error:
                self.problem = self.problem or f"{error.strerror or error}: {error.filename or 'capture'}"
            except Exception as error:
                self.problem = self.problem or f"{type(error).__name__}: {error}"


def _recorded(spec: PassSpec) -> bool:
    from fusionaudit.capture.recorder import can_ignore_compile

    return spec.name == "eager" or (spec.name == "compiled" and can_ignore_compile())


@contextlib.contextmanager
def _setup(spec: PassSpec, finish: _Finish, facts: dict[str, Any]) -> Iterator[bool]:
    """Everything that a pass needs around the script; gives whether the script is to be instrumented."""
    import torch

    from fusionaudit.capture import marks
    from fusionaudit.capture.marker import CaptureMarker
    from fusionaudit.capture.ranges import make_ranges
    from fusionaudit.capture.recorder import Recorder, device_type
    from fusionaudit.capture.targets import Applier, Finder, Targets
    from fusionaudit.capture.variant import apply as apply_variant

    folder = Path(spec.folder)
    deviceless = spec.engine == "deviceless"
    ranges = make_ranges(spec.engine)
    target_path = Path(spec.targets)
    instrument = False
    if spec.variant:
        apply_variant(spec.variant)
    with contextlib.ExitStack() as stack:
        if spec.engine == "kineto":
            from fusionaudit.capture.kineto import Profiled

            profiled = Profiled(folder / "trace.json.gz")
            profiled.start()
            finish.add(profiled.stop)
        if spec.name in ("eager", "clean_eager") and not deviceless:
            torch.compiler.set_stance("force_eager")
        if spec.name == "compiled" and not deviceless:
            from fusionaudit.capture.loaded_kernels import write_loaded_kernels
            from fusionaudit.capture.logs import ArtifactLog

            log = ArtifactLog(folder / "torch_logs.txt")
            finish.add(lambda: write_loaded_kernels(folder / "resources.json"))
            finish.add(log.close)
            finish.add(lambda: _raise(log.error))
        finder = Finder() if spec.name == "eager" else None
        recorder: Recorder | None = None
        if _recorded(spec):
            recorder = Recorder(
                folder / "ops.jsonl", ranges=ranges, observer=finder,
                device_of=(lambda tensor: "cuda") if deviceless else device_type,
            )  # fmt: skip
            kept = recorder
            finish.add(lambda: _raise(kept.lines.error))
            finish.add(lambda: _keep_sources(kept.locator.files, folder.parent / "sources"))
            finish.add(lambda: facts.update(records=kept.lines.count))
            finish.add(kept.close)
        if spec.name in ("compiled", "clean") and not deviceless:
            from fusionaudit.capture.compiling import mark_compilation, name_graph_calls

            inside = contextlib.nullcontext if recorder is None else recorder.unrecorded
            mark_compilation(ranges, inside=inside)
            name_graph_calls(ranges, by_torch=spec.engine == "kineto", inside=inside)
        marker = CaptureMarker(ranges, recorder)
        marks.activate(marker)
        finish.add(marker.close)
        finish.add(lambda: marks.activate(None))
        if deviceless:
            from fusionaudit.capture.deviceless import DevicelessSession
            from fusionaudit.device import Device

            session = DevicelessSession(
                device=Device.from_json(spec.device or {}), folder=folder, pass_name=spec.name,
                shapes_only=spec.shapes_only, recorder=recorder,
                on_stop=lambda stop: facts.update(stopped={"asked": stop.asked, "location": stop.location}),
            )  # fmt: skip
            stack.enter_context(session)
            finish.add(session.write_resources)  # for a script that leaves by os._exit
        elif recorder is not None:
            stack.enter_context(_sync_marks(recorder))
        if recorder is not None:
            stack.enter_context(recorder.recording())
        if finder is not None and recorder is not None:
            found = finder
            finish.add(lambda: found.targets().write(target_path))
            stack.enter_context(finder.watching(recorder))
            instrument = True
        elif spec.name in ("compiled", "clean"):
            targets = Targets.read(target_path)
            facts["compiled_for_user"] = targets.describe()
            if not targets.uses_compile and (targets.functions or targets.modules):
                import torch._dynamo.config

                # The script did not ask for a compiler: where one of our targets does not compile, it runs eagerly.
                torch._dynamo.config.suppress_errors = True
                # Without a GPU (deviceless, or nsys forced on a machine that has none) the CPU stands for it.
                device_types = ("cpu", "cuda") if deviceless or spec.device is None else ("cuda",)
                stack.enter_context(Applier(targets, device_types=device_types).applying())
                instrument = bool(targets.functions)
        yield instrument


def _raise(error: OSError | None) -> None:
    if error is not None:
        raise error


@contextlib.contextmanager
def _sync_marks(recorder: Any) -> Iterator[None]:
    """Write a mark where the program waits for the device by name."""
    import functools

    import torch

    owners: list[tuple[Any, str, str]] = [
        (torch.cuda, "synchronize", "torch.cuda.synchronize"),
        (torch.cuda.Stream, "synchronize", "torch.cuda.Stream.synchronize"),
        (torch.cuda.Event, "synchronize", "torch.cuda.Event.synchronize"),
    ]
    originals = [getattr(owner, name) for owner, name, _ in owners]

    def marked(original: Any, text: str) -> Any:
        @functools.wraps(original)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if not torch.compiler.is_compiling():
                recorder.sync(text)
            return original(*args, **kwargs)

        return wrapper

    for (owner, name, text), original in zip(owners, originals, strict=True):
        setattr(owner, name, marked(original, text))
    try:
        yield
    finally:
        for (owner, name, _), original in zip(owners, originals, strict=True):
            setattr(owner, name, original)


def _keep_sources(files: set[str], folder: Path) -> None:
    """Copy the user's files that locations name (each under 2 MB), so that a report can show the lines anywhere."""
    for name in sorted(files):
        path = Path(name)
        with contextlib.suppress(OSError):
            if path.is_file() and path.stat().st_size < 2 << 20:
                target = folder / path.relative_to(path.anchor)
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(path.read_bytes())


def _restore_streams(spec: PassSpec) -> None:
    """Give the script the real stdout, stderr and umask where a tool in between (nsys) has its own."""
    if spec.umask is not None:
        os.umask(spec.umask)
    for target, source in ((1, spec.stdout), (2, spec.stderr)):
        if source is not None:
            with contextlib.suppress(OSError):
                os.dup2(source, target)
                os.close(source)


def _leave_children_alone() -> None:
    """Keep nsys out of the processes that this one starts (compilers, workers): hundreds of short ones can make its
    importer fail ("Multiple different definitions of the same VmTidToPidInfo", seen with 2023.4). It is loaded here
    already, and CUDA in a child still finds it through CUDA_INJECTION64_PATH."""
    preload = os.environ.get("LD_PRELOAD", "")
    own = ("libToolsInjection", "libLinuxKeyboard")
    kept = [p for p in preload.replace(" ", ":").split(":") if p and not any(part in p for part in own)]
    if kept:
        os.environ["LD_PRELOAD"] = ":".join(kept)
    else:
        os.environ.pop("LD_PRELOAD", None)


def _no_word_of_numpy() -> None:
    """torch warns while it is imported where NumPy is not installed; nothing that was asked for needs it."""
    try:
        missing = importlib.util.find_spec("numpy") is None
    except (ImportError, ValueError):
        missing = True
    if missing:
        warnings.filterwarnings("ignore", message="Failed to initialize NumPy", category=UserWarning)


def run_pass(spec: PassSpec) -> PassOutcome:
    """Set up, run the script, finish; the outcome is also written for the parent."""
    _no_word_of_numpy()
    from fusionaudit.capture.launch import Outcome, run_program

    folder = Path(spec.folder)
    finish = _Finish()
    facts: dict[str, Any] = {}
    started = time.monotonic()
    plain_exit = os._exit
    parent = os.getpid()

    def conclude(outcome: Outcome) -> PassOutcome:
        if "stopped" in facts and not outcome.interrupted:
            outcome = Outcome(exit_code=0)  # whatever its clean-up came to: it was ended by the audit
        facts["wall_s"] = round(time.monotonic() - started, 6)
        finish.run()
        told = PassOutcome(
            exit_code=outcome.exit_code, error=outcome.error, problem=finish.problem,
            compiled_for_user=facts.pop("compiled_for_user", ""), facts=facts,
        )  # fmt: skip
        try:
            told.write(folder)
        except OSError as error:
            print(f"fusionaudit: {folder}: {error.strerror}", file=sys.__stderr__)
        return told

    def exit_now(status: int) -> None:
        if os.getpid() == parent:
            conclude(Outcome(exit_code=int(status) & 0xFF, error=f"os._exit({status})" if status else None))
        plain_exit(status)

    os._exit = exit_now  # type: ignore[assignment]
    try:
        with _setup(spec, finish, facts) as instrument:
            started = time.monotonic()
            outcome = run_program(
                script=spec.script, module=spec.module, arguments=list(spec.arguments), instrument=instrument
            )
    except KeyboardInterrupt:  # the script's own never comes here: it was still being set up
        outcome = Outcome(exit_code=130, error="KeyboardInterrupt", interrupted=True)
    except AuditError as error:
        finish.problem = str(error)
        outcome = Outcome(exit_code=0)
    except UnicodeDecodeError as error:  # the script's own errors never come here
        finish.problem = (
            f"torch reads its own files in the locale's encoding, which is {error.encoding} here (set LC_ALL=C.UTF-8, "
            "or PYTHONUTF8=1)"
        )
        outcome = Outcome(exit_code=0)
    except Exception as error:  # nor here: this is ours
        traceback.print_exc()
        finish.problem = f"{type(error).__name__}: {error} (a fault of fusionaudit or of this torch version)"
        outcome = Outcome(exit_code=0)
    finally:
        os._exit = plain_exit
    if os.getpid() != parent:  # a fork of the script ran to the end of it
        return PassOutcome(exit_code=outcome.exit_code)
    told = conclude(outcome)
    if outcome.interrupted:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(parent, signal.SIGINT)
    return told


def main(path: str | None = None) -> None:
    """Entry point: ``path`` is the spec's file, or ``--spec FILE`` on the command line."""
    if path is None:
        if len(sys.argv) != 3 or sys.argv[1] != "--spec":
            raise SystemExit("usage: python -m fusionaudit.capture.child --spec FILE")
        path = sys.argv[2]
        if sys.path and sys.path[0] in ("", os.getcwd()):
            del sys.path[0]
    spec = PassSpec.read(Path(path))
    if spec.parent is not None:
        die_with(spec.parent)
    _restore_streams(spec)
    if spec.engine == "nsys":
        _leave_children_alone()
    told = run_pass(spec)
    if "stopped" in told.facts:
        # The recording is done: what the script does at its end, and its threads, get a while and no more.
        watchdog = threading.Timer(_AFTER_STOP_S, os._exit, (0,))
        watchdog.daemon = True
        watchdog.start()
    sys.exit(told.exit_code if told.problem is None else told.exit_code or 2)


if __name__ == "__main__":
    main()

__all__ = ["BOOTSTRAP", "TARGETS", "main", "run_pass"]
