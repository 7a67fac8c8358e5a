"""A tensor as an op or kernel sees it: shape, strides, dtype and the storage it lives in."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

DTYPE_BYTES: dict[str, int] = {
    "bool": 1, "uint8": 1, "int8": 1, "int16": 2, "uint16": 2, "int32": 4, "uint32": 4, "int64": 8, "uint64": 8,
    "float8_e4m3fn": 1, "float8_e4m3fnuz": 1, "float8_e5m2": 1, "float8_e5m2fnuz": 1, "float8_e8m0fnu": 1,
    "float4_e2m1fn_x2": 1, "float16": 2, "bfloat16": 2, "float32": 4, "float64": 8,
    "complex32": 4, "complex64": 8, "complex128": 16,
}  # fmt: skip
"""Bytes of one element by torch dtype name (without ``torch.``)."""


@dataclass(frozen=True, kw_only=True)
class Tensor:
    """A strided view of a storage.

    ``shape`` and ``strides`` count elements; ``offset`` is the element offset in the storage. ``storage`` names the
    buffer: two tensors of one pass with the same ``storage`` share memory (ids are never reused within a pass);
    ``None`` is "not known".
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    storage: str | None = None
    offset: int = 0
    device: str = "cuda"
    is_parameter: bool = False

    @property
    def numel(self) -> int:
        """Elements of the logical tensor; a broadcast one counts every repetition."""
        return math.prod(self.shape)

    @property
    def itemsize(self) -> int | None:
        """Bytes of one element, ``None`` for a dtype that is not known."""
        return DTYPE_BYTES.get(self.dtype)

    @property
    def stored_elements(self) -> int:
        """Distinct elements that the view touches.

        Exact for broadcast (stride 0), slices, transposes and non-overlapping layouts. For overlapping strides
        (``unfold``) it is the size of the span where that is smaller than the product.
        """
        if 0 in self.shape:
            return 0
        pairs = [
            (size, abs(stride))
            for size, stride in zip(self.shape, self.strides, strict=True)
            if size > 1 and stride != 0
        ]
        product = math.prod(size for size, _ in pairs)
        span = 1 + sum((size - 1) * stride for size, stride in pairs)
        return min(product, span)

    @property
    def nbytes(self) -> int | None:
        """Bytes of the distinct elements touched; ``None`` for a dtype that is not known."""
        return None if self.itemsize is None else self.stored_elements * self.itemsize

    @property
    def region(self) -> tuple[object, ...]:
        """Names the elements touched: views that only order them differently (a transpose) have the same region."""
        touched = sorted((abs(b), a) for a, b in zip(self.shape, self.strides, strict=True) if a > 1 and b != 0)
        return (self.storage, self.offset, tuple(touched), self.dtype)

    @property
    def is_contiguous(self) -> bool:
        """Row-major without gaps (dimensions of size 1 do not count)."""
        expected = 1
        for size, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if size == 1:
                continue
            if stride != expected:
                return False
            expected *= size
        return True

    def to_json(self) -> dict[str, Any]:
        """A small JSON object; defaults are left out."""
        out: dict[str, Any] = {"shape": list(self.shape), "strides": list(self.strides), "dtype": self.dtype}
        if self.storage is not None:
            out["storage"] = self.storage
        if self.offset:
            out["offset"] = self.offset
        if self.device != "cuda":
            out["device"] = self.device
        if self.is_parameter:
            out["is_parameter"] = True
        return out

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Tensor:
        """The inverse of :meth:`to_json`."""
        return cls(
            shape=tuple(data["shape"]),
            strides=tuple(data["strides"]),
            dtype=data["dtype"],
            storage=data.get("storage"),
            offset=data.get("offset", 0),
            device=data.get("device", "cuda"),
            is_parameter=data.get("is_parameter", False),
        )

    @classmethod
    def contiguous(cls, shape: Iterable[int], dtype: str, storage: str | None = None, device: str = "cuda") -> Tensor:
        """A row-major tensor of that shape."""
        sizes = tuple(shape)
        strides, step = [], 1
        for size in reversed(sizes):
            strides.append(step)
            step *= max(size, 1)
        return cls(shape=sizes, strides=tuple(reversed(strides)), dtype=dtype, storage=storage, device=device)


def total_bytes(tensors: Iterable[Tensor]) -> int | None:
    """Bytes of the distinct elements of all tensors together, each region counted once; ``None`` if one is unknown.

    Two views of one storage count twice only where their regions differ; identical regions count once.
    """
    seen: set[tuple[object, ...]] = set()
    total = 0
    for tensor in tensors:
        if tensor.storage is not None and tensor.region in seen:
            continue
        seen.add(tensor.region)
        size = tensor.nbytes
        if size is None:
            return None
        total += size
    return total
