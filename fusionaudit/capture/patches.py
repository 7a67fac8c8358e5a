"""Replaces names of other modules for a while, undoes it whatever happens, and says which name has moved."""

from __future__ import annotations

from contextlib import ExitStack
from types import TracebackType
from typing import Any

import torch

from fusionaudit.errors import AuditError

_ABSENT = object()


def moved(what: str) -> AuditError:
    """The one error for a private name of torch or Triton that is not where it was."""
    return AuditError(
        f"deviceless: {what} is not there in torch {torch.__version__}",
        remedy="deviceless works with torch 2.10 to 2.14",
    )


class Patches:
    """A stack of replaced attributes; :meth:`undo` puts all of them back, last first."""

    def __init__(self) -> None:
        self._stack = ExitStack()

    def set(self, owner: Any, name: str, value: Any, *, optional: bool = False) -> None:
        """Replace ``owner.name``. A missing name is an AuditError, or nothing is done with ``optional``.

        The raw entry of ``owner.__dict__`` is what is put back, so static and class methods stay what they were.
        """
        if not hasattr(owner, name):
            if optional:
                return
            raise moved(f"{getattr(owner, '__name__', owner)}.{name}")
        self.put(owner, name, value)

    def put(self, owner: Any, name: str, value: Any) -> None:
        """Set ``owner.name``, whether or not it is there; a name that was only inherited is removed again."""
        before = vars(owner).get(name, _ABSENT) if hasattr(owner, "__dict__") else getattr(owner, name)
        setattr(owner, name, value)

        def back() -> None:
            if before is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, before)

        self._stack.callback(back)

    def on_undo(self, action: Any) -> None:
        """Call that, too, when undoing."""
        self._stack.callback(action)

    def enter(self, context: Any) -> Any:
        """Enter a context manager that is left when undoing."""
        return self._stack.enter_context(context)

    def undo(self) -> None:
        """Put everything back."""
        self._stack.close()

    def __enter__(self) -> Patches:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.undo()
