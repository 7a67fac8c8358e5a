"""``fusionaudit.step()`` and ``fusionaudit.region(name)``: marks that a user may put into a program.

Outside a capture they do nothing but look at one global; neither imports torch.
"""

from __future__ import annotations

from types import TracebackType
from typing import Protocol


class Marker(Protocol):
    """What a running capture does with the marks."""

    def step(self) -> None:
        """A new step starts."""

    def enter_region(self, name: str) -> None:
        """A region starts on this thread."""

    def exit_region(self) -> None:
        """The innermost region of this thread ends."""

    def is_compiling(self) -> bool:
        """True while torch.compile traces the caller: marks in traced code would break the graph."""


_active: Marker | None = None
NESTED = " > "
"""Between the names of regions that are open inside each other."""


def activate(marker: Marker | None) -> None:
    """Send the marks of this process to ``marker``; ``None`` makes them no-ops again."""
    global _active
    _active = marker


def step() -> None:
    """Say that a new step (training iteration, batch, request) starts here.

    Put it first in the loop's body. Without it the audit finds the repeating step by itself.
    """
    if _active is not None and not _active.is_compiling():
        _active.step()


class region:  # noqa: N801  (used as a function)
    """Name a part of the program: ``with fusionaudit.region("attention"): ...``.

    Launches and ops inside carry the name, with those of the regions around it (``block > attention``). Regions are
    kept per thread; backward ops belong to the region that is open while backward runs.
    """

    __slots__ = ("_entered", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self._entered: Marker | None = None

    def __enter__(self) -> region:
        if _active is not None and not _active.is_compiling():
            self._entered = _active
            _active.enter_region(self.name)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._entered is not None:
            entered, self._entered = self._entered, None
            entered.exit_region()
