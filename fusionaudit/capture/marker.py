"""Turns the user's marks into ranges of the trace and records of the op log."""

from __future__ import annotations

import threading
from itertools import count
from typing import Any
from urllib.parse import quote, unquote

from fusionaudit.capture.marks import NESTED
from fusionaudit.capture.ranges import Ranges
from fusionaudit.capture.recorder import Recorder

_REGION = "fusionaudit:region "
_SAFE = " !#$&'()*+,-./:;<=>?@[]^_`{|}~"
"""What stays as it is in a range's text: torch.profiler writes quotes into its JSON as they are, which ends it, and
loses other characters than ASCII's."""


class CaptureMarker:
    """Steps and regions of one pass, with or without a recorder.

    Ranges of a thread nest, steps and regions need not: to close one, all above it are closed and opened again.
    """

    def __init__(self, ranges: Ranges, recorder: Recorder | None) -> None:
        import torch

        self._ranges = ranges
        self._recorder = recorder
        self._steps = count()
        self._local = threading.local()
        self.is_compiling = torch.compiler.is_compiling
        self.regions_seen = 0

    def _stack(self) -> list[tuple[str, Any]]:
        if not hasattr(self._local, "stack"):
            self._local.stack = []
        stack: list[tuple[str, Any]] = self._local.stack
        return stack

    def _rebuild(self, position: int, texts: list[str]) -> None:
        """Close every range from ``position`` up, then open ``texts``."""
        stack = self._stack()
        while len(stack) > position:
            self._ranges.pop(stack.pop()[1])
        for text in texts:
            stack.append((text, self._ranges.push(text)))

    def step(self) -> None:
        """Close the running step's range, open the next."""
        text = f"fusionaudit:step {next(self._steps)}"
        texts = [t for t, _ in self._stack()]
        at = next((i for i, t in enumerate(texts) if t.startswith("fusionaudit:step ")), len(texts))
        self._rebuild(at, [text, *texts[at + 1 :]])
        if self._recorder is not None:
            self._recorder.step()

    def enter_region(self, name: str) -> None:
        """Open the region's range. It has the names of the regions around it too: launches see the innermost alone."""
        self.regions_seen += 1
        outer = next((t for t, _ in reversed(self._stack()) if t.startswith(_REGION)), None)
        path = name if outer is None else f"{unquote(outer[len(_REGION) :])}{NESTED}{name}"
        text = _REGION + quote(path, safe=_SAFE)
        self._stack().append((text, self._ranges.push(text)))
        if self._recorder is not None:
            self._recorder.enter_region(path)

    def exit_region(self) -> None:
        """Close the innermost region's range."""
        texts = [t for t, _ in self._stack()]
        at = next((i for i in range(len(texts) - 1, -1, -1) if texts[i].startswith(_REGION)), None)
        if at is not None:
            self._rebuild(at, texts[at + 1 :])
        if self._recorder is not None:
            self._recorder.exit_region()

    def close(self) -> None:
        """Close what is open on this thread."""
        self._rebuild(0, [])
