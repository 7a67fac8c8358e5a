"""Says how a long pass advances, from the file that its recorder writes: the script may print nothing for minutes."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from fusionaudit.figures import counted

FIRST_S = 10.0
"""A pass that takes longer says how far it is, first after that time, then each time half as long again has passed (at
most a minute): ten lines in the first six minutes."""
MOST_S = 60.0
HINT_S = 30.0
"""A pass that takes longer gets the hint, once."""

SHAPES_ONLY_HINT = "--shapes-only skips the arithmetic, which a CPU does slowly (bfloat16 matmuls above all)"


class _Recorded:
    """What the file holds by now; each line is read once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0
        self._ops = 0
        self._steps = 0
        self._last = b""

    def text(self) -> str:
        """``1,204 ops, 3 steps, last aten.mm.default at model.py:31``."""
        with contextlib.suppress(OSError), self._path.open("rb") as file:
            file.seek(self._read)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self._read += len(line)
                if line.startswith((b'{"kind":"op"', b'{"kind":"graph"')):
                    self._ops += 1
                    self._last = line
                self._steps += line.startswith(b'{"kind":"step"')
        if not self._ops:
            return "nothing recorded yet"
        steps = f", {counted(self._steps, 'step')}" if self._steps else ""
        return f"{counted(self._ops, 'op')}{steps}, last {self._name()}"

    def _name(self) -> str:
        with contextlib.suppress(ValueError, KeyError, TypeError):
            record = json.loads(self._last)
            name = record["name"] if record["kind"] == "op" else f"graph {record['graph']}"
            place = record.get("location")
            return f"{name} at {Path(place['file']).name}:{place['line']}" if place else str(name)
        return "one that cannot be read"


@contextlib.contextmanager
def progress_of(name: str, ops: Path, say: Callable[[str], None], *, hint: str = "") -> Iterator[None]:
    """Until the end of the block say how far the pass is, and the hint once. ``ops``: its ``ops.jsonl``."""
    over = threading.Event()
    watcher = threading.Thread(target=_watch, args=(over, name, _Recorded(ops), say, hint), daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


def _watch(over: threading.Event, name: str, recorded: _Recorded, say: Callable[[str], None], hint: str) -> None:
    started, wait = time.monotonic(), FIRST_S
    while not over.wait(wait):
        passed = time.monotonic() - started
        say(f"{name}: {passed:.0f} s, {recorded.text()}")
        if hint and passed >= HINT_S:
            say(f"{name}: {hint}")
            hint = ""
        wait = min(max(passed / 2, FIRST_S), MOST_S)
