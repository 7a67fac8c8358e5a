"""Which CPU tensors stand for GPU tensors while a script runs without a GPU."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

CUDA = torch.device("cuda", 0)

_base_device: Any = torch._C.TensorBase.device  # type: ignore[attr-defined]
_SWEEP = 4096
"""Dead entries are dropped each time the table has doubled, at least this large."""


def real_device(tensor: torch.Tensor) -> torch.device:
    """Where the tensor's data really is, whatever ``tensor.device`` has been made to answer."""
    device: torch.device = _base_device.__get__(tensor)
    return device


def storage_key(tensor: torch.Tensor) -> int | None:
    """The address of the tensor's C++ storage; ``None`` where it has none (sparse, fake, wrapper subclasses)."""
    try:
        return tensor.untyped_storage()._cdata
    except (RuntimeError, NotImplementedError, AttributeError, TypeError):
        return None


class GpuTensors:
    """The storages that the script put on the GPU.

    Until the script first names a GPU (``tracking`` is false) every tensor counts as on it: a script that never says
    ``cuda`` is audited as if it had. From then on only what was placed there, and results of it, do.
    A weak reference is held for each storage, so that its address cannot be given to another.
    """

    def __init__(self) -> None:
        self.tracking = False
        self.on_first: Callable[[], None] | None = None
        self._storages: dict[int, Any] = {}
        self._host: dict[int, Any] = {}
        self._lock = threading.Lock()
        self._sweep_at = _SWEEP

    def place(self, tensor: torch.Tensor, *, on_gpu: bool = True) -> None:
        """Say that the tensor's storage is on the GPU, or (``on_gpu=False``) on the host."""
        key = storage_key(tensor)
        if key is None:
            return
        wanted, other = (self._storages, self._host) if on_gpu else (self._host, self._storages)
        with self._lock:
            other.pop(key, None)
            if key not in wanted:
                wanted[key] = StorageWeakRef(tensor.untyped_storage())
                if len(self._storages) + len(self._host) > self._sweep_at:
                    self._sweep()

    def _sweep(self) -> None:
        for table in (self._storages, self._host):
            for key in [k for k, reference in table.items() if reference.expired()]:
                del table[key]
        self._sweep_at = max(_SWEEP, 2 * (len(self._storages) + len(self._host)))

    def first_placed(self) -> None:
        """The script has put something on the GPU itself: from now on what it did not put there is the host's.
        ``on_first`` is told of it once."""
        if self.tracking:
            return
        self.tracking = True
        if self.on_first is not None:
            self.on_first()

    def holds(self, tensor: torch.Tensor) -> bool:
        """True where the tensor counts as a GPU tensor."""
        if real_device(tensor).type != "cpu":
            return real_device(tensor).type == "cuda"
        key = storage_key(tensor)
        if key is None:
            return not self.tracking
        if self.tracking:
            return key in self._storages
        return key not in self._host

    def device_of(self, tensor: torch.Tensor) -> str:
        """``cuda`` or ``cpu``: the device that the recorder writes for the tensor."""
        return "cuda" if self.holds(tensor) else "cpu"
