"""Ops without their values: results of the right shape, dtype and layout, in memory that is never touched."""

from __future__ import annotations

import mmap
import os
import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import _pytree as pytree

from fusionaudit.capture.calls import tensors_of
from fusionaudit.capture.gpu_tensors import storage_key

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


def run_without_values(func: Any, args: Any, kwargs: Any) -> tuple[Any, bool]:
    """An op of a ``--shapes-only`` audit, and whether it was really run (a view; an op that has no fake form).

    NeedsValue where the script needs a value, with the line that asks.
    """
    name = func._schema.name if hasattr(func, "_schema") else str(func)
    if name in _NEEDS_VALUES:
        if _asks_for_overflow():
            return 0.0, True
        raise needs_value(name)
    if getattr(func, "is_view", False) or name in ("aten::detach", "aten::alias", "aten::set_", "aten::lift_fresh"):
        return func(*args, **kwargs), True
    try:
        return run_without_kernel(func, args, kwargs), False
    except Exception as error:
        from torch._subclasses.fake_tensor import (
            DataDependentOutputException,
            DynamicOutputShapeException,
            UnsupportedOperatorException,
        )

        if isinstance(error, (DataDependentOutputException, DynamicOutputShapeException)):
            raise needs_value(name) from None
        if isinstance(error, UnsupportedOperatorException):
            return func(*args, **kwargs), True
        raise


def _asks_for_overflow() -> bool:
    """True where ``GradScaler.step`` asks whether a gradient overflowed: no, as in nearly every step of a training."""
    frame = sys._getframe(1)
    for _ in range(12):
        if frame.f_code.co_name == "_maybe_opt_step" and frame.f_code.co_filename.endswith("grad_scaler.py"):
            return True
        if frame.f_back is None:
            break
        frame = frame.f_back
    return False


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


_SMALL = 1 << 16
"""Elements up to which a tensor is computed where all that it comes from is known: drop-path rates, loss scales,
tables of positions. 256 KiB of float32, below what any audit without arithmetic is made for."""
_SWEEP = 4096
"""Dead entries are dropped each time the table has doubled, at least this large."""


class WithoutValues:
    """Runs ops without values, but for small ones of known values, until the script needs one; then ends the script.

    Host work is computed where its inputs have values. ``on_stop`` is told once. A script that does not let itself be
    ended, or that needs the value on another thread than the main one (whose end nobody might notice), is ended with
    its process: ``os._exit``.
    """

    def __init__(self, on_stop: Callable[[NeedsValue], None]) -> None:
        self._on_stop = on_stop
        self._first: NeedsValue | None = None
        self._tries = 0
        self._lacking: dict[int, Any] = {}
        self._sweep_at = _SWEEP

    def lacking(self, tensor: torch.Tensor) -> bool:
        """True where what the tensor holds was not computed."""
        key = storage_key(tensor)
        return key is None or key in self._lacking

    def run(self, compute: Compute, func: Any, args: Any, kwargs: Any, *, on_host: bool) -> Any:
        """The op's result, by ``compute`` where its values are to be had; NeedsValue where the script needs one that is
        not there, or has needed one before."""
        inputs = tensors_of((args, kwargs))
        known = not any(self.lacking(t) for t in inputs)
        if known and on_host:
            return compute(func, args, kwargs)
        if self._first is not None:
            self._end(NeedsValue(self._first.asked, self._first.location))
        known = known and _small(inputs)
        try:
            result, ran = run_without_values(func, args, kwargs)
        except NeedsValue as stop:
            if known:
                return compute(func, args, kwargs)
            self._end(stop)
        if known and not ran and _small(tensors_of(result)):
            return compute(func, args, kwargs)
        if not known or not ran:
            self._mark((*tensors_of(result), *_written(func, args, kwargs)))
        return result

    def refuse(self, asked: str) -> NoReturn:
        """The script needs a value in another way than by an op."""
        self._end(needs_value(asked))

    def _mark(self, tensors: Iterable[torch.Tensor]) -> None:
        for tensor in tensors:
            key = storage_key(tensor)
            if key is not None and key not in self._lacking:
                self._lacking[key] = StorageWeakRef(tensor.untyped_storage())
        if len(self._lacking) > self._sweep_at:
            self._lacking = {k: r for k, r in self._lacking.copy().items() if not r.expired()}
            self._sweep_at = max(_SWEEP, 2 * len(self._lacking))

    def _end(self, stop: NeedsValue) -> NoReturn:
        if self._first is None:
            self._first = stop
            self._on_stop(stop)
        self._tries += 1
        if self._tries > _PATIENCE or threading.current_thread() is not threading.main_thread():
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
            os._exit(0)
        raise stop


Compute = Callable[[Any, Any, Any], Any]
"""Runs an op with its arguments and keyword arguments."""


def _small(tensors: Iterable[torch.Tensor]) -> bool:
    return all(t.numel() <= _SMALL for t in tensors)


def _written(func: Any, args: Any, kwargs: Any) -> list[torch.Tensor]:
    """The arguments that the op writes into."""
    schema = getattr(func, "_schema", None)
    if schema is None:
        return []
    named = dict(zip((a.name for a in schema.arguments), args, strict=False)) | kwargs
    written = [named.get(a.name) for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write]
    return tensors_of(written)
