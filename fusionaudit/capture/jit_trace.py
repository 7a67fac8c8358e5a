"""``torch.jit.trace`` without dispatch modes: under one, its tracer sees each op twice and makes a broken graph."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes


@contextmanager
def tracing_without_modes() -> Iterator[None]:
    """Until the end of the block what a trace runs is not recorded; calls of the traced function are."""
    jit: Any = torch.jit
    before = {name: getattr(jit, name) for name in ("trace", "trace_module")}
    for name, function in before.items():
        setattr(jit, name, _unseen(function))
    try:
        yield
    finally:
        for name, function in before.items():
            setattr(jit, name, function)


def _unseen(function: Any) -> Any:
    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        with _disable_current_modes():
            return function(*args, **kwargs)

    return run
