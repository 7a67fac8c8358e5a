"""Runs one child to its end: its own process group, a time limit, Ctrl-C passed on, output to the user or to files."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import IO, Any

GRACE_S = 10.0
"""Time a child has to write its capture after SIGINT, before it is killed."""


_PR_SET_PDEATHSIG = 1
"""prctl(2): the signal that a process gets when its parent ends; kept over exec, not over fork."""

TERM_WITH_PARENT = (
    "import ctypes, os, sys\n"
    f"ctypes.CDLL(None).prctl({_PR_SET_PDEATHSIG}, {int(signal.SIGTERM)})\n"
    "os.execvp(sys.argv[1], sys.argv[1:])\n"
)
"""Run with ``python -c`` before a tool's command: the tool ends, and what it started, when this process is killed."""


def die_with(parent: int) -> None:
    """Have this process killed when its parent of that number is (SIGKILL leaves it no time to do it); Linux only.

    The signal comes with the end of the parent's thread that started this process: :func:`run_child` stays in it.
    """
    if sys.platform != "linux":
        return
    if os.getppid() == parent:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
    try:
        os.kill(parent, 0)
    except ProcessLookupError:  # before that
        os._exit(128 + int(signal.SIGKILL))
    except PermissionError:
        pass


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a child ended. ``returncode`` is negative for a signal, as subprocess has it."""

    returncode: int
    timed_out: bool = False
    interrupted: bool = False
    wall_s: float = 0.0


def _signal_group(process: subprocess.Popen[Any], number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


def _stop(process: subprocess.Popen[Any], grace_s: float) -> None:
    """Ask the group to stop, then make it: SIGINT, SIGTERM, SIGKILL."""
    for number, wait_s in ((signal.SIGINT, grace_s), (signal.SIGTERM, 2.0), (signal.SIGKILL, 5.0)):
        _signal_group(process, number)
        try:
            process.wait(wait_s)
            break
        except subprocess.TimeoutExpired:
            continue
    _signal_group(process, signal.SIGKILL)


@functools.cache
def _stdin_start() -> int | None:
    """Where this process's stdin started; ``None`` where it is no file (a terminal, a pipe: read once only)."""
    with contextlib.suppress(OSError):
        return os.lseek(0, 0, os.SEEK_CUR)
    return None


def _rewind_stdin() -> None:
    """Each pass reads the file that the user gave from its start: a child's reading moves the shared position."""
    start = _stdin_start()
    if start is not None:
        os.lseek(0, start, os.SEEK_SET)


def run_child(
    command: list[str],
    *,
    environment: dict[str, str],
    stdout: int | IO[Any] | None,
    stderr: int | IO[Any] | None,
    pass_fds: tuple[int, ...] = (),
    timeout_s: float | None = None,
    grace_s: float = GRACE_S,
) -> Ended:
    """Run it and wait. Past ``timeout_s`` or on Ctrl-C the whole group is stopped; what is left of the group after the
    child's end is killed, so that no worker outlives the pass."""
    started = time.monotonic()
    _rewind_stdin()
    process = subprocess.Popen(
        command, env=environment, stdout=stdout, stderr=stderr, pass_fds=pass_fds, start_new_session=True
    )
    timed_out = interrupted = False
    try:
        process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        timed_out = True
        _stop(process, grace_s)
    except KeyboardInterrupt:
        interrupted = True
        _stop(process, grace_s)
    finally:
        _signal_group(process, signal.SIGKILL)
    return Ended(
        returncode=process.returncode if process.returncode is not None else -int(signal.SIGKILL),
        timed_out=timed_out,
        interrupted=interrupted,
        wall_s=time.monotonic() - started,
    )


def describe_code(code: int) -> str:
    """``exit code 3`` or ``killed by SIGSEGV``; codes above 128 are a shell's way of saying the latter."""
    number = -code if code < 0 else code - 128 if code > 128 else 0
    if number:
        with contextlib.suppress(ValueError):
            return f"killed by {signal.Signals(number).name}"
    return f"exit code {code}"


def umask() -> int:
    """This process's umask."""
    current = os.umask(0o077)
    os.umask(current)
    return current


def real_descriptor(name: str) -> int | None:
    """The process's own stdout or stderr as a descriptor; ``None`` where it is closed."""
    number = {"stdout": 1, "stderr": 2}[name]
    stream = getattr(sys, name)
    with contextlib.suppress(Exception):
        stream.flush()
    try:
        os.fstat(number)
    except OSError:
        return None
    return number
