"""Runs a script or module in this process as plain ``python`` would: argv, ``__main__``, path, traceback, exit."""

from __future__ import annotations

import contextlib
import importlib.machinery
import importlib.util
import os
import sys
import threading
import types
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, TracebackType
from typing import Any

from fusionaudit.capture.no_arithmetic import NeedsValue
from fusionaudit.capture.targets import compile_script
from fusionaudit.errors import AuditError

_OWN = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How the script ended: its exit code as a shell would see it, and its last word where it failed."""

    exit_code: int
    error: str | None = None
    interrupted: bool = False


def _main_module() -> types.ModuleType:
    module = types.ModuleType("__main__")
    module.__dict__["__builtins__"] = sys.modules["builtins"]
    sys.modules["__main__"] = module
    return module


def _prepare_script(script: str, arguments: list[str], instrument: bool) -> tuple[CodeType, types.ModuleType]:
    path = Path(script)
    if path.is_dir() or path.suffix in (".zip", ".pyz"):
        raise OSError(f"{script}: folders and zip files cannot be audited; use -m")
    source = path.read_bytes()
    sys.argv[:] = [script, *arguments]
    if not getattr(sys.flags, "safe_path", False):
        sys.path.insert(0, os.path.dirname(os.path.realpath(script)))
    absolute = os.path.abspath(script)
    code = compile_script(source, absolute, instrument=instrument)
    module = _main_module()
    loader = importlib.machinery.SourceFileLoader("__main__", absolute)
    module.__dict__.update(
        __file__=absolute, __cached__=None, __doc__=None, __loader__=loader, __package__=None, __spec__=None
    )
    return code, module


def _prepare_module(name: str, arguments: list[str], instrument: bool) -> tuple[CodeType, types.ModuleType]:
    if not getattr(sys.flags, "safe_path", False):
        sys.path.insert(0, os.getcwd())
    sys.argv[:] = ["-m", *arguments]
    spec = importlib.util.find_spec(name)
    if spec is not None and spec.submodule_search_locations is not None:
        name += ".__main__"
        spec = importlib.util.find_spec(name)
    if spec is None or spec.loader is None:
        raise ModuleNotFoundError(f"No module named {name}", name=name)
    loader: Any = spec.loader
    source = loader.get_source(name) if hasattr(loader, "get_source") else None
    code = (
        loader.get_code(name)
        if source is None or not instrument or spec.origin is None
        else compile_script(source, spec.origin, instrument=True)
    )
    module = _main_module()
    sys.argv[0] = spec.origin or name
    module.__dict__.update(
        __file__=spec.origin, __cached__=spec.cached, __doc__=None, __loader__=loader,
        __package__=spec.parent, __spec__=spec,
    )  # fmt: skip
    return code, module


def _trimmed(traceback: TracebackType | None) -> TracebackType | None:
    """The traceback without our frames."""
    kept = []
    while traceback is not None:
        if not os.path.abspath(traceback.tb_frame.f_code.co_filename).startswith(_OWN):
            kept.append(traceback)
        traceback = traceback.tb_next
    following = None
    for entry in reversed(kept):
        entry.tb_next = following
        following = entry
    return following


def _trim_chain(error: BaseException) -> None:
    seen: set[int] = set()
    pending: list[BaseException | None] = [error]
    while pending:
        current = pending.pop()
        if current is None or id(current) in seen:
            continue
        seen.add(id(current))
        current.__traceback__ = _trimmed(current.__traceback__)
        pending += [current.__cause__, current.__context__]


def _show(error: BaseException) -> None:
    """Show the traceback as the interpreter would: through the script's own excepthook."""
    kind, traceback = type(error), error.__traceback__
    try:
        sys.excepthook(kind, error, traceback)
    except BaseException as second:
        with contextlib.suppress(Exception):
            print("Error in sys.excepthook:", file=sys.stderr)
            sys.__excepthook__(type(second), second, second.__traceback__)
            print("\nOriginal exception was:", file=sys.stderr)
            sys.__excepthook__(kind, error, traceback)


def _exit_code(error: SystemExit) -> int:
    code = error.code
    if code is None:
        return 0
    if isinstance(code, int):
        return int(code) & 0xFF
    with contextlib.suppress(Exception):
        print(code, file=sys.stderr)
    return 1


def run_program(*, script: str | None, module: str | None, arguments: list[str], instrument: bool) -> Outcome:
    """Run it to its end, its non-daemon threads included; its exceptions are shown, not raised."""
    try:
        if script is not None:
            code, main = _prepare_script(script, arguments, instrument)
        else:
            code, main = _prepare_module(module or "", arguments, instrument)
    except ModuleNotFoundError as error:
        print(f"{sys.executable}: {error}", file=sys.stderr)
        return Outcome(exit_code=1, error=str(error))
    except OSError as error:
        print(f"{sys.executable}: can't open file {script!r}: {error}", file=sys.stderr)
        return Outcome(exit_code=2, error=str(error))
    except (SyntaxError, ValueError) as error:
        _trim_chain(error)
        _show(error)
        return Outcome(exit_code=1, error=f"{type(error).__name__}: {error}")
    try:
        exec(code, main.__dict__)
        _join_threads()
    except SystemExit as error:
        exit_code = _exit_code(error)
        return Outcome(exit_code=exit_code, error=f"sys.exit({error.code!r})" if exit_code else None)
    except KeyboardInterrupt as error:
        _trim_chain(error)
        _show(error)
        return Outcome(exit_code=130, error="KeyboardInterrupt", interrupted=True)
    except NeedsValue:  # ended by the audit, as if it had ended by itself
        return Outcome(exit_code=0)
    except AuditError:  # a limit of the engine (nested tensors), not the script's fault
        raise
    except BaseException as error:
        _trim_chain(error)
        _show(error)
        text = str(error).strip()
        return Outcome(exit_code=1, error=type(error).__name__ + (f": {text.splitlines()[0]}" if text else ""))
    return Outcome(exit_code=0)


def _join_threads() -> None:
    """Wait for the script's threads, as the interpreter does at its end, while they are still recorded."""
    current = threading.current_thread()
    while True:
        waiting = [
            t for t in threading.enumerate() if t is not current and not t.daemon and t.is_alive() and _of_script(t)
        ]
        if not waiting:
            return
        for thread in waiting:
            thread.join()


def _of_script(thread: threading.Thread) -> bool:
    """False for the workers of pools (they end when the interpreter tells them to) and for torch's own threads."""
    pools: Any = sys.modules.get("concurrent.futures.thread")
    if pools is not None and thread in getattr(pools, "_threads_queues", {}):
        return False
    target = getattr(thread, "_target", None)
    home = getattr(target, "__module__", None) or type(thread).__module__
    return not str(home).startswith(("torch.", "concurrent.", "multiprocessing."))
