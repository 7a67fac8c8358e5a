"""Writing a file whole or not at all, with an error that names it."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from fusionaudit.errors import AuditError


def write_whole(path: Path, text: str) -> None:
    """Write the text as UTF-8; what was there stays until all is written, and nothing half-written stays behind.

    AuditError (the file is named) where it cannot be written. Pipes and devices are written to as they are.
    """
    try:
        if path.exists() and not path.is_file():
            path.write_text(text, encoding="utf-8")
            return
        path = Path(os.path.realpath(path))
        temporary = path.with_name(path.name + ".part")
        try:
            temporary.write_text(text, encoding="utf-8")
            temporary.replace(path)
        except OSError:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise AuditError(
            f"{path}: cannot be written: {error.strerror or error}", remedy="free space, or write to another place"
        ) from None
