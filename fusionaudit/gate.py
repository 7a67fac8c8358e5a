"""What the guard's commands do: make a lock, check a script against it, load either side of a comparison."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from fusionaudit.baseline import read_lock, write_lock
from fusionaudit.capture.manifest import MANIFEST
from fusionaudit.check import CheckResult, check
from fusionaudit.errors import EXIT_OK, AuditError
from fusionaudit.figures import counted
from fusionaudit.files import write_whole
from fusionaudit.grouping import lock_of
from fusionaudit.groups import Lock
from fusionaudit.limits import Limits
from fusionaudit.pipeline import analyze, audit, capture_script
from fusionaudit.report.document import Document
from fusionaudit.store import AUDIT_DB, load

if TYPE_CHECKING:
    from fusionaudit.capture.session import RunOptions
    from fusionaudit.config import Config

DEFAULT_LOCK = "fusion.lock"


@contextlib.contextmanager
def _folder(out: Path | None) -> Iterator[Path]:
    """``out``, or a folder that goes away again: a gate leaves nothing behind that was not asked for."""
    if out is not None:
        yield out
        return
    with tempfile.TemporaryDirectory(prefix="fusionaudit-") as place:
        yield Path(place) / "capture"


def audited(options: RunOptions, config: Config | None = None) -> Document:
    """The audit of a script for the gate, kept only where ``out`` says.

    Where ``options.script`` is an audit or a capture folder, that is taken instead and nothing is run.
    """
    given = Path(options.script) if options.script else None
    if given is not None and (given.is_dir() or given.name == AUDIT_DB):
        return document_from(given, config)
    with _folder(options.out) as folder:
        captured = capture_script(replace(options, out=folder))
        return audit(captured, config=config).document


def document_from(path: Path, config: Config | None = None) -> Document:
    """The document of an audit (folder or audit.db), a capture folder or an export."""
    if not path.exists():
        raise AuditError(f"{path}: no such file or folder")
    if path.name == AUDIT_DB or (path.is_dir() and (path / AUDIT_DB).exists()):
        return load(path)
    if path.is_dir() and (path / MANIFEST).exists():
        return audit(path, config=config).document
    return analyze([path], config=config).document


def lock_from(path: Path, config: Config | None = None) -> Lock:
    """One side of ``fusionaudit diff``: a lock, an audit, a capture folder or an export."""
    if path.suffix == ".lock" and not path.is_dir():
        return load_lock(path)
    if path.is_file() and path.name != AUDIT_DB:
        with path.open("rb") as file:
            head = file.read(64)
        if head.removeprefix(b"\xef\xbb\xbf").startswith(b"# fusionaudit lock"):
            return load_lock(path)
    return lock_of(document_from(path, config))


_MOST_LOCK_BYTES = 16 << 20
"""A kernel of a lock is a line of some 300 characters: this is more than a program's 50,000 kernels."""


def load_lock(path: Path) -> Lock:
    """The lock in a file; AuditError (exit 2) where it is missing or cannot be used."""
    again = "make it again with `fusionaudit baseline`"
    try:
        with path.open("rb") as file:
            content = file.read(_MOST_LOCK_BYTES + 1)
    except FileNotFoundError:
        raise AuditError(f"{path}: no such lock", remedy="make it with `fusionaudit baseline SCRIPT.py`") from None
    except OSError as error:
        raise AuditError(f"{path}: cannot be read: {error.strerror or error}", remedy="give a lock file") from None
    if len(content) > _MOST_LOCK_BYTES:
        raise AuditError(f"{path}: larger than any lock ({_MOST_LOCK_BYTES >> 20} MiB)", remedy=again)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise AuditError(f"{path}: not a text file", remedy=again) from None
    if "\0" in text:
        raise AuditError(f"{path}: not a text file (it holds NUL bytes)", remedy=again)
    return read_lock(text.replace("\r\n", "\n").replace("\r", "\n"), name=str(path))


def save_lock(document: Document, path: Path) -> str:
    """Write the lock of an audit, whole or not at all; gives a line on what it holds."""
    text = write_lock(document)
    write_whole(path, text)
    lock = read_lock(text)
    counts = ", ".join(f"{sum(g.section.pass_name == n for g in lock.groups)} {n}" for n in lock.passes)
    held = f"{counted(len(lock.groups), 'group')} ({counts})"
    return f"wrote {path}: {held}, target {lock.key.target}, torch {lock.key.torch}"


def check_document(document: Document, path: Path, limits: Limits, *, update: bool = False) -> CheckResult:
    """Check an audit against the lock file. With ``update`` the lock is written afterwards and the result is 0.

    With ``update`` a lock that is missing, broken or for another key is no error: it is replaced.
    """
    if not update:
        return check(document, load_lock(path), limits)
    try:
        result = check(document, load_lock(path), limits)
    except AuditError as error:
        result = CheckResult(verdict="cannot judge", exit_code=EXIT_OK, lines=(f"before: {error.message}",))
    told = save_lock(document, path)
    return replace(result, exit_code=EXIT_OK, lines=(*result.lines, told))
