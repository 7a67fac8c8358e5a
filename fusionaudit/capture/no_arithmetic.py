"""Ops without their values: results of the right shape, dtype and layout, in memory that is never touched."""

from __future__ import annotations

import mmap
import os
import sys
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree

_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)
"""Linux value; Python names it from 3.13 on."""
_NEEDS_VALUES = frozenset({"aten::_local_scalar_dense", "aten::equal", "aten::is_nonzero", "aten::item"})
"""Ops whose Python result is the data itself."""


def unbacked(shape: Any, strides: Any, dtype: torch.dtype) -> torch.Tensor:
    """A CPU tensor over address space that takes no memory until it is written (reads give zeros)."""
    span = 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True) if size > 0)
    nbytes = 0 if 0 in shape else span * dtype.itemsize
    if nbytes < 1 << 20:
        return torch.zeros(max(nbytes // dtype.itemsize, 0), dtype=dtype).as_strided(shape, strides)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE
    region = mmap.mmap(-1, nbytes, flags=flags)
    flat = torch.frombuffer(region, dtype=torch.uint8)
    return flat.view(dtype).as_strided(shape, strides)


def _fake_outputs(func: Any, args: Any, kwargs: Any) -> tuple[Any, dict[int, torch.Tensor]]:
    """The op under a fake mode; and which fake storage stands for which real argument."""
    from torch._subclasses import FakeTensorMode

    mode = FakeTensorMode(allow_non_fake_inputs=False)
    originals: dict[int, torch.Tensor] = {}

    def fake(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        with torch.utils._python_dispatch._disable_current_modes(), mode:
            # All on one device: what stands for the GPU and what does not must not meet here.
            made = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="cpu")
        originals[id(made)] = value
        keep.append(made)
        return made

    keep: list[Any] = []
    args, kwargs = pytree.tree_map(fake, args), pytree.tree_map(fake, kwargs)
    with torch.utils._python_dispatch._disable_current_modes(), mode:
        result = func(*args, **kwargs)
    return (result, keep), originals


def run_without_kernel(func: Any, args: Any, kwargs: Any) -> Any:
    """An op that has no CPU kernel: zeros of the right shape where its fake implementation gives one.

    NotImplementedError (the original one, for the script) where it has none.
    """
    (result, _keep), originals = _fake_outputs(func, args, kwargs)
    aliases = any(r.alias_info is not None for r in func._schema.returns) if hasattr(func, "_schema") else True

    def real(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        # A fake `_to_copy` may give its own argument back; only what the schema calls an alias is one.
        same = originals.get(id(value)) if aliases else None
        return same if same is not None else unbacked(tuple(value.shape), tuple(value.stride()), value.dtype)

    return pytree.tree_map(real, result)


def run_without_values(func: Any, args: Any, kwargs: Any) -> Any:
    """An op of a ``--shapes-only`` audit. NeedsValue where the script needs a value, with the line that asks."""
    name = func._schema.name if hasattr(func, "_schema") else str(func)
    if name in _NEEDS_VALUES:
        raise needs_value(name)
    if getattr(func, "is_view", False) or name in ("aten::detach", "aten::alias", "aten::set_", "aten::lift_fresh"):
        return func(*args, **kwargs)
    try:
        return run_without_kernel(func, args, kwargs)
    except Exception as error:
        from torch._subclasses.fake_tensor import (
            DataDependentOutputException,
            DynamicOutputShapeException,
            UnsupportedOperatorException,
        )

        if isinstance(error, (DataDependentOutputException, DynamicOutputShapeException)):
            raise needs_value(name) from None
        if isinstance(error, UnsupportedOperatorException):
            return func(*args, **kwargs)
        raise


def needs_value(name: str) -> NeedsValue:
    """What ends the script where it needs a value that does not exist, with the user's line."""
    from fusionaudit.capture.locations import Locator

    asked = name.replace("aten::", "").replace("_local_scalar_dense", ".item() or a condition")
    return NeedsValue(asked, Locator().find())


class NeedsValue(BaseException):
    """The script needs a value (``asked``) at ``location`` and an audit without arithmetic has none: it ends there.

    No Exception: what the script does about its own errors must not go on without the value.
    """

    def __init__(self, asked: str, location: dict[str, Any] | None) -> None:
        super().__init__(f"--shapes-only has no values, and one is needed here ({asked})")
        self.asked = asked
        self.location = location


_PATIENCE = 20
"""Ops that the script may try while it ends (``finally``, ``except BaseException``) before its process is ended."""


class WithoutValues:
    """Runs ops without values until the script needs one, then ends it.

    ``on_stop`` is told once. A script that does not let itself be ended, or that needs the value on another thread
    than the main one (whose end nobody might notice), is ended with its process: ``os._exit``.
    """

    def __init__(self, on_stop: Callable[[NeedsValue], None]) -> None:
        self._on_stop = on_stop
        self._first: NeedsValue | None = None
        self._tries = 0

    def run(self, func: Any, args: Any, kwargs: Any) -> Any:
        """The op's result without its values; NeedsValue where the script needs one or has needed one before."""
        try:
            if self._first is not None:
                raise NeedsValue(self._first.asked, self._first.location)
            return run_without_values(func, args, kwargs)
        except NeedsValue as stop:
            self._stop(stop)
            raise

    def _stop(self, stop: NeedsValue) -> None:
        if self._first is None:
            self._first = stop
            self._on_stop(stop)
        self._tries += 1
        if self._tries > _PATIENCE or threading.current_thread() is not threading.main_thread():
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
            os._exit(0)
