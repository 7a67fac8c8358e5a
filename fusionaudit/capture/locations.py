"""Which line of the user's program is running: frames of the stack sorted into the user's, libraries' and ours."""

from __future__ import annotations

import os
import sys
import sysconfig
from types import CodeType, FrameType
from typing import Any

_OWN = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_STDLIB = tuple({os.path.abspath(sysconfig.get_paths()[k]) + os.sep for k in ("stdlib", "platstdlib")})
_GENERATED = os.environ.get("TORCHINDUCTOR_CACHE_DIR", "")
"""Where Inductor writes its Python code in a capture; never the user's."""

_LIBRARY_PARTS = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
_TORCH_PART = f"{os.sep}torch{os.sep}"

USER, LIBRARY, HIDDEN, ENGINE, CALLED = 0, 1, 2, 3, 4
"""Kinds of code: the user's, an installed library's, never shown (torch, stdlib, ours), the autograd engine's call,
and torch's functions on lists of parameters, which a line calls as a whole (named, but never shown)."""

_OPTIM = f"{os.sep}torch{os.sep}optim{os.sep}"
_CLIP = f"{os.sep}torch{os.sep}nn{os.sep}utils{os.sep}clip_grad.py"
_WRAPPERS = {"wrapper", "profile_hook_step", "_use_grad", "_no_grad_wrapper"}


def called(code: CodeType) -> str | None:
    """``torch.nn.utils.clip_grad_norm_`` or ``torch.optim.adam.step``; ``None`` for wrappers and other code."""
    if code.co_name in _WRAPPERS:
        return None
    if code.co_filename.endswith(_CLIP):
        return f"torch.nn.utils.{code.co_name}"
    if _OPTIM in code.co_filename:
        return f"torch.optim.{os.path.basename(code.co_filename).removesuffix('.py')}.{code.co_name}"
    return None


def classify(code: CodeType) -> int:
    """One of USER, LIBRARY, HIDDEN, ENGINE for a code object."""
    name = code.co_filename
    if name.endswith(f"{_TORCH_PART}autograd{os.sep}graph.py") and code.co_name == "_engine_run_backward":
        return ENGINE
    if name.startswith(("<", _OWN)):
        return HIDDEN
    path = os.path.abspath(name)
    if _GENERATED and path.startswith(_GENERATED):
        return HIDDEN
    if any(part in path for part in _LIBRARY_PARTS):
        if not any(part.rstrip(os.sep) + _TORCH_PART in path for part in _LIBRARY_PARTS):
            return LIBRARY
        return HIDDEN if called(code) is None else CALLED
    if path.startswith(_OWN) or any(path.startswith(prefix) for prefix in _STDLIB):
        return HIDDEN
    return USER


class Locator:
    """Finds locations and keeps them: one JSON object per (code, line), the same object each time.

    Where the line calls one of torch's functions on lists of parameters, ``library`` names it.
    ``files`` are the user's files seen so far.
    """

    def __init__(self) -> None:
        self._kinds: dict[CodeType, int] = {}
        self._known: dict[tuple[CodeType, int, CodeType | None], dict[str, Any]] = {}
        self.files: set[str] = set()

    def _location(self, code: CodeType, line: int, inside: CodeType | None) -> dict[str, Any]:
        found = self._known.get((code, line, inside))
        if found is None:
            file = os.path.abspath(code.co_filename)
            self.files.add(file)
            found = {"file": file, "line": line, "function": code.co_name}
            if inside is not None:
                found["library"] = called(inside)
            self._known[code, line, inside] = found
        return found

    def find(self, *, in_backward: bool = False) -> dict[str, Any] | None:
        """The innermost user frame of the calling thread; where all are libraries', the outermost of those.

        With ``in_backward`` only frames inside the autograd engine's call count (a custom ``backward``); the line that
        called ``backward()`` is not where the op comes from.
        """
        frame: FrameType | None = sys._getframe(1)
        library: tuple[CodeType, int, CodeType | None] | None = None
        inside: CodeType | None = None
        kinds = self._kinds
        while frame is not None:
            code = frame.f_code
            kind = kinds.get(code)
            if kind is None:
                kind = kinds[code] = classify(code)
            if kind == USER:
                return self._location(code, frame.f_lineno, inside)
            if kind == LIBRARY:
                library = (code, frame.f_lineno, inside)
            elif kind == CALLED:
                inside = code
            elif kind == ENGINE and in_backward:
                break
            frame = frame.f_back
        return None if library is None or in_backward else self._location(*library)
