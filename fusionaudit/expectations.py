"""``fusionaudit.expect``: say in the program which ops must share a kernel. Checked by run, check and pytest (FA116).

Outside of a capture it does nothing; it never imports torch.
"""

from __future__ import annotations

import ast
import functools
import itertools
import linecache
import operator
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, SupportsIndex, TypeVar

from fusionaudit.capture import marks
from fusionaudit.program.expectation import Expectation, region_name

F = TypeVar("F", bound=Callable[..., Any])
_entries = itertools.count(1)


@functools.lru_cache(maxsize=256)
def _block(file: str, line: int) -> tuple[int, int]:
    """First and last line of the smallest ``with`` that has ``line`` in its head; the line itself if there is none."""
    text = "".join(linecache.getlines(file))
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return line, line
    found = [
        (node.lineno, node.end_lineno or node.lineno)
        for node in ast.walk(tree)
        if isinstance(node, (ast.With, ast.AsyncWith)) and node.lineno <= line <= node.body[0].lineno
    ]
    return max(found, default=(line, line))


def _count(name: str, value: object) -> int | None:
    """A limit that the caller gave; TypeError where it is no whole number."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, SupportsIndex):
        raise TypeError(f"fusionaudit.expect: {name} is a whole number, not {value!r}")
    return operator.index(value)


def _ops(fused: object) -> tuple[str, ...]:
    """Names of ops; a string alone is one op."""
    if isinstance(fused, str):
        return (fused,)
    names = tuple(fused) if isinstance(fused, Iterable) else (fused,)
    if not all(isinstance(name, str) for name in names):
        raise TypeError(f"fusionaudit.expect: fused is a list of op names such as 'aten.gelu', not {fused!r}")
    return names


class expect:  # noqa: N801  (used as a function)
    """Declare what the block (or the decorated function) must come to, each time that it runs.

    ``max_kernels``: at most this many launches. ``max_bytes``: at most this many bytes read and written in global
    memory. ``fused``: ops (``aten.gelu``, or ``gelu``) that one kernel must do together. ``kernel``: part of the name
    of a kernel that must run. Judged in the compiled pass where there is one, else in the eager one.

    >>> with expect(max_kernels=1, fused=["aten.gelu", "aten.add"]):
    ...     pass
    """

    __slots__ = ("_region", "_what")

    def __init__(
        self,
        *,
        max_kernels: int | None = None,
        max_bytes: int | None = None,
        fused: Sequence[str] | str = (),
        kernel: str | None = None,
    ) -> None:
        if kernel is not None and not isinstance(kernel, str):
            raise TypeError(f"fusionaudit.expect: kernel is part of a kernel's name (a string), not {kernel!r}")
        self._what = Expectation(
            max_kernels=_count("max_kernels", max_kernels),
            max_bytes=_count("max_bytes", max_bytes),
            fused=_ops(fused),
            kernel=kernel,
        )
        self._region: marks.region | None = None

    def __enter__(self) -> expect:
        if marks._active is not None and not marks._active.is_compiling():
            what = self._what
            if not what.file:
                frame = sys._getframe(1)
                file = frame.f_code.co_filename
                first, last = _block(file, frame.f_lineno)
                what = replace(what, file=file, first_line=first, last_line=last)
            self._region = marks.region(region_name(what, next(_entries)))
            self._region.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._region is not None:
            region, self._region = self._region, None
            region.__exit__(kind, value, traceback)

    def __call__(self, function: F) -> F:
        """Decorator: every call of the function is one entry."""
        code = getattr(function, "__code__", None)
        what = self._what
        if code is not None:
            lines = [line for _, _, line in code.co_lines() if line is not None]
            what = replace(what, file=code.co_filename, first_line=code.co_firstlineno, last_line=max(lines))

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            entered = expect()
            entered._what = what
            with entered:
                return function(*args, **kwargs)

        return wrapper  # type: ignore[return-value]
