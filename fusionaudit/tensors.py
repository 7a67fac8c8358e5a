"""A tensor as an op or kernel sees it: shape, strides, dtype and the storage it lives in."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
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
    def order(self) -> tuple[object, ...]:
        """Names which element comes where: views that only split or join dimensions have the same order."""
        dims: list[tuple[int, int]] = []
        for size, stride in zip(self.shape, self.strides, strict=True):
            if size == 1:
                continue
            if dims and dims[-1][1] == stride * size:
                dims[-1] = (dims[-1][0] * size, stride)
            else:
                dims.append((size, stride))
        return (self.offset, tuple(dims))

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


_MOST_CANDIDATES = 4
"""Steps of one stride that are tried before two views are taken to overlap; nested layouts need two."""


def overlap(a: Tensor, b: Tensor) -> bool:
    """Two views of one storage may share an element. Exact for slices and transposes; in doubt they do."""
    if 0 in a.shape or 0 in b.shape:
        return False
    if a.itemsize != b.itemsize:
        return True  # offsets count elements of different sizes
    # How far the index along each stride can differ, from the view a to the view b.
    reach: dict[int, list[int]] = {}
    for tensor, side in ((a, 1), (b, 0)):
        for size, stride in zip(tensor.shape, tensor.strides, strict=True):
            if size > 1 and stride:
                reach.setdefault(abs(stride), [0, 0])[side] += size - 1
    return _reachable(b.offset - a.offset, sorted(reach.items(), reverse=True))


def _reachable(distance: int, reach: list[tuple[int, list[int]]]) -> bool:
    """``distance`` is a sum of strides, each at most as often as its (down, up) limits say."""
    if not reach:
        return distance == 0
    (stride, (down, up)), rest = reach[0], reach[1:]
    below = sum(s * limits[0] for s, limits in rest)
    above = sum(s * limits[1] for s, limits in rest)
    first, last = max(-down, -((above - distance) // stride)), min(up, (distance + below) // stride)
    if last - first >= _MOST_CANDIDATES:
        return True
    return any(_reachable(distance - n * stride, rest) for n in range(first, last + 1))


def indexed_elements(target: Tensor, indices: Sequence[Tensor | None]) -> int | None:
    """Elements of ``target[indices]``: the broadcast of the indices times what they leave (``None``: a dimension).

    Not known where only a mask tells; one beside other indices names as many elements as they do.
    """
    rest, dim = 1, 0
    for index in indices:
        taken = 0 if index is None else len(index.shape) if index.dtype in _MASKS else 1
        rest *= math.prod(target.shape[dim : dim + 1]) if index is None else 1
        dim += max(taken, 1)
    rest *= math.prod(target.shape[dim:])
    listed = [t.shape for t in indices if t is not None and t.dtype not in _MASKS]
    masked = any(t is not None and t.dtype in _MASKS for t in indices)
    if masked and all(math.prod(shape) == 1 for shape in listed):
        return None
    rank = max(map(len, listed), default=0)
    sizes = [(1,) * (rank - len(shape)) + shape for shape in listed]
    broadcast: int = math.prod(max(found) for found in zip(*sizes, strict=True))
    return broadcast * rest


_MASKS = ("bool", "uint8")


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
