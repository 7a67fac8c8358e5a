"""Sizes that the data decides (``nonzero``, masks): another batch has others, so they are no part of a lock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

DECIDED_BY_DATA = frozenset(
    "aten." + name
    for name in (
        "nonzero", "nonzero_static", "masked_select", "_unique", "_unique2", "unique_dim", "unique_consecutive",
        "unique_dim_consecutive", "repeat_interleave", "bincount",
    )
)  # fmt: skip
"""Ops whose results have as many rows as the values of their arguments say; so has an index with a mask."""

Sizes = dict[str, int]
"""Storage to the one size in it that the data decided."""


def _base(name: str) -> str:
    return ".".join(name.split(".")[:2])


def _decides(kernel: Mapping[str, Any]) -> bool:
    ops = {_base(op) for op in kernel["ops"]}
    masked = "aten.index" in ops and any(t["dtype"] in ("bool", "uint8") for t in kernel["reads"][1:])
    return masked or bool(ops & DECIDED_BY_DATA)


def data_sizes(kernels: Sequence[Mapping[str, Any]]) -> Sizes:
    """The storages of a step's kernels (in order) that have such a size: results of those ops, and what is made of
    them. What a compiled graph with such an op in it gives back has not been seen in any kernel before."""
    found: Sizes = {}
    seen: set[str] = set()
    unread: set[int] | None = None
    for kernel in kernels:
        if unread is not None and kernel.get("graph") is None:
            for tensor in kernel["reads"]:
                storage, rows = tensor["storage"], (tensor["shape"] or [None])[0]
                if not (storage is None or storage in seen or tensor.get("is_parameter") or rows in {None, *unread}):
                    found[storage] = rows
        sizes = {found[t["storage"]] for t in kernel["reads"] if t["storage"] in found}
        decides = _decides(kernel)
        for tensor in kernel["writes"]:
            if tensor["storage"] is None:
                continue
            own = {tensor["shape"][0]} if decides and tensor["shape"] else sizes & set(tensor["shape"])
            if own:
                found[tensor["storage"]] = min(own)
        if decides and kernel.get("graph") is not None:
            unread = (unread or set()) | {n for t in kernel["reads"] for n in t["shape"]}
        seen.update(t["storage"] for t in (*kernel["reads"], *kernel["writes"]) if t["storage"] is not None)
    return found
