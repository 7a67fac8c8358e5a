"""One way in for every trace format: decided by the file's first bytes, never by its name."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

from fusionaudit.errors import AuditError
from fusionaudit.trace.kineto_json import read_kineto
from fusionaudit.trace.nsys_sqlite import read_nsys
from fusionaudit.trace.schema import Trace

_SQLITE = b"SQLite format 3\x00"
_GZIP = b"\x1f\x8b"
_FORMATS = "an nsys SQLite export (`nsys export --type sqlite`) or a torch.profiler trace (.json, .json.gz)"


def load_trace(path: Path) -> Trace:
    """The Trace in a file: an Nsight Systems SQLite export, or a torch.profiler Chrome trace, plain or gzipped.

    AuditError, one line, where the file is missing, unreadable, empty, cut off, of another kind, or without kernels.
    """
    head = _head(path)
    if head.startswith(_SQLITE):
        return read_nsys(path)
    inner = _inflated_head(path) if head.startswith(_GZIP) else head
    if inner.startswith(_SQLITE):
        raise AuditError(f"{path}: a gzipped database", remedy=f"gunzip it first: gunzip -k {path}")
    if inner.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] in (b"{", b"["):
        return read_kineto(path)
    if path.suffix == ".nsys-rep" or path.suffix == ".qdrep":
        raise AuditError(f"{path}: an nsys report, not its export", remedy=f"nsys export --type sqlite {path}")
    raise AuditError(f"{path}: not a database and not a JSON trace", remedy=f"give {_FORMATS}")


def _head(path: Path) -> bytes:
    try:
        if path.is_dir():
            raise AuditError(f"{path}: a folder, not a trace", remedy=f"give {_FORMATS}")
        with path.open("rb") as file:
            head = file.read(4096)
    except FileNotFoundError:
        raise AuditError(f"{path}: no such file") from None
    except PermissionError:
        raise AuditError(f"{path}: no permission to read it", remedy=f"chmod u+r {path}") from None
    except OSError as error:
        raise AuditError(f"{path}: cannot be read: {error.strerror or error}") from None
    if not head:
        raise AuditError(f"{path}: the file is empty", remedy="record or export it again")
    return head


def _inflated_head(path: Path) -> bytes:
    try:
        with gzip.open(path, "rb") as file:
            return file.read(4096)
    except (OSError, EOFError, zlib.error) as error:
        raise AuditError(f"{path}: the gzip file is damaged: {error}", remedy="copy or record it again") from None
