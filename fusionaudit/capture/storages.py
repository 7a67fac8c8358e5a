"""Names for tensor storages that are never reused within a pass, though addresses are."""

from __future__ import annotations

from typing import Any

import torch
from torch.multiprocessing import reductions

_weak_reference: Any = reductions.StorageWeakRef


class StorageIds:
    """Gives each storage a name for as long as it lives.

    A weak reference to the C++ storage is held for each: while it is held, no other storage can get that address, so
    the address is a safe key. References to dead storages are dropped from time to time.
    """

    def __init__(self) -> None:
        self._ids: dict[int, tuple[str, Any]] = {}
        self._count = 0
        self._sweep_at = 4096

    def of(self, tensor: torch.Tensor) -> str | None:
        """The storage's name; ``None`` for a tensor that has no storage (sparse, some wrapper subclasses)."""
        try:
            storage = tensor.untyped_storage()
            key = storage._cdata
        except (RuntimeError, NotImplementedError, AttributeError, TypeError):
            return None
        known = self._ids.get(key)
        if known is not None:
            return known[0]
        if len(self._ids) >= self._sweep_at:
            self._ids = {k: v for k, v in self._ids.items() if not v[1].expired()}
            self._sweep_at = max(4096, 2 * len(self._ids))
        name = f"s{self._count}"
        self._count += 1
        self._ids[key] = (name, _weak_reference(storage))
        return name
