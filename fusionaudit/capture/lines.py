"""A file of JSON lines that survives crashes, forks and full disks."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path
from typing import Any

_FLUSH_BYTES = 1 << 18
_FLUSH_S = 1.0
_ENCODE = json.JSONEncoder(separators=(",", ":"), default=str).encode


class LineWriter:
    """Appends JSON lines from any thread; a child made by fork writes nothing.

    A failed write (full disk) is kept in ``error`` and stops the writing; it never reaches the user's program.
    """

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        self._pid = os.getpid()
        self._lock = threading.RLock()
        self._buffer: list[bytes] = []
        self._size = 0
        self._flushed = time.monotonic()
        self.error: OSError | None = None
        self.count = 0

    def write(self, record: dict[str, Any]) -> None:
        """Add one line; at the latest a second later the next line brings it to the file."""
        if self._pid != os.getpid():  # before the lock: a fork may have copied it while held
            return
        line = _ENCODE(record).encode() + b"\n"
        with self._lock:
            self._buffer.append(line)
            self._size += len(line)
            self.count += 1
            if self._size >= _FLUSH_BYTES or time.monotonic() - self._flushed > _FLUSH_S:
                self.flush()

    def flush(self) -> None:
        """Bring everything to the file."""
        if self._pid != os.getpid():
            return
        with self._lock:
            data, self._buffer, self._size = b"".join(self._buffer), [], 0
            self._flushed = time.monotonic()
            view = memoryview(data)
            while view and self.error is None:
                try:
                    view = view[os.write(self._descriptor, view) :]
                except OSError as error:
                    self.error = error

    def close(self) -> None:
        """Flush and close; further lines are dropped."""
        if self._pid != os.getpid():
            return
        with self._lock:
            self.flush()
            self._pid = -1
            os.close(self._descriptor)
