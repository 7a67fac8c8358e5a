"""Work on a pass that several rules ask for, done once."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TypeVar

from fusionaudit.program.model import Pass

_T = TypeVar("_T")
_PASSES = 8
"""More than a program has: eager, compiled, two clean ones, two imports."""


def kept(work: Callable[[Pass], _T]) -> Callable[[Pass], _T]:
    """The function with its results for the last passes (the objects, not their values) kept."""
    memo: list[tuple[Pass, _T]] = []

    @functools.wraps(work)
    def ask(p: Pass) -> _T:
        for known, found in memo:
            if known is p:
                return found
        result = work(p)
        memo.append((p, result))
        del memo[:-_PASSES]
        return result

    return ask
