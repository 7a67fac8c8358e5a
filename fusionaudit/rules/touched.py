"""The elements that a generated kernel itself touches of the buffers that it is given, and what two kernels share."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable

from fusionaudit.inductor.index_space import Region
from fusionaudit.inductor.kernels import regions
from fusionaudit.inductor.model import GeneratedCall, GeneratedKernel
from fusionaudit.tensors import Tensor, overlap

View = Tensor | None
"""The part of a buffer; ``None``: cannot be told (a gather, a scatter)."""


def touched(kernel: GeneratedKernel | None, call: GeneratedCall) -> tuple[tuple[View, ...], tuple[View, ...]]:
    """The part of each of ``call.reads`` that the kernel loads, and of each of ``call.writes`` that it stores."""
    if kernel is None or not kernel.source:
        return call.reads, call.writes
    scalars = {}
    if len(call.numels) == len(kernel.numels):
        scalars = {f"{prefix}numel": n for prefix, n in zip(kernel.numels, call.numels, strict=True)}
    loads, stores = regions(kernel.name, kernel.source, scalars)
    return _parts(call.reads, loads), _parts(call.writes, stores)


def _parts(tensors: tuple[Tensor, ...], found: tuple[Region | None, ...]) -> tuple[View, ...]:
    if len(tensors) != len(found):
        return (None,) * len(tensors)
    return tuple(None if r is None else _part(t, r) for t, r in zip(tensors, found, strict=True))


def _part(tensor: Tensor, region: Region) -> View:
    if region.count >= tensor.stored_elements:
        return tensor
    if not region.exact:
        return None
    dims = ((region.count, 1),) if region.dense else tuple((n, c) for c, n in region.dims if n > 1)
    if math.prod(n for n, _ in dims) != region.count:
        return None
    return Tensor(
        shape=tuple(n for n, _ in dims),
        strides=tuple(c for _, c in dims),
        dtype=tensor.dtype,
        storage=tensor.storage,
        offset=tensor.offset + region.offset,
        device=tensor.device,
    )


def shared_bytes(a: View, b: View) -> int:
    """Bytes of the elements that both views of one buffer touch, as far as that can be told."""
    if a is None or b is None or not overlap(a, b):
        return 0
    small, large = sorted((a, b), key=lambda view: view.stored_elements)
    return (small.nbytes or 0) if small.region == large.region or _covers(large, small) else 0


def _covers(large: Tensor, small: Tensor) -> bool:
    """Every element between the first and the last of the large one is its own, and the small one lies in there."""
    if large.itemsize != small.itemsize:
        return False
    first, last = _span(large)
    begin, end = _span(small)
    return large.stored_elements == last - first + 1 and first <= begin and end <= last


def _span(view: Tensor) -> tuple[int, int]:
    steps = [(size - 1) * stride for size, stride in zip(view.shape, view.strides, strict=True)]
    return view.offset + sum(min(0, s) for s in steps), view.offset + sum(max(0, s) for s in steps)


def by_storage(views: Iterable[View], tensors: Iterable[Tensor]) -> dict[str, list[View]]:
    """The views of a call by the buffer that they are of."""
    out: dict[str, list[View]] = defaultdict(list)
    for view, tensor in zip(views, tensors, strict=True):
        if tensor.storage is not None:
            out[tensor.storage].append(view)
    return out
