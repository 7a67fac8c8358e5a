"""Patterns through cuda.compute (extra ``compute``): iterators and operators in Python, kernels by CUB."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from fusionaudit.errors import AuditError

REMEDY = "pip install 'fusionaudit[compute]'"


def _load() -> Any:
    try:
        import cuda.compute as module
    except ImportError:
        raise AuditError("cuda.compute is not installed", remedy=REMEDY) from None
    if not hasattr(module, "reduce_into"):
        raise AuditError("cuda.compute finds no CUDA bindings", remedy=REMEDY)
    return module


def sum_abs(x: torch.Tensor) -> Callable[[], torch.Tensor]:
    """``sum(|x|)``: a transform iterator under a device-wide reduction."""
    import numpy as np

    compute = _load()
    if x.dtype not in (torch.float32, torch.float64):
        raise AuditError(f"cuda.compute has no sum of {x.dtype} here")
    out = torch.empty(1, dtype=x.dtype, device=x.device)
    values = compute.TransformIterator(x, lambda a: abs(a))
    start = np.zeros(1, dtype=str(x.dtype).removeprefix("torch."))

    def run() -> torch.Tensor:
        compute.reduce_into(
            d_in=values, d_out=out, num_items=x.numel(), op=compute.OpKind.PLUS, h_init=start,
            stream=torch.cuda.current_stream(),
        )  # fmt: skip
        return out[0]

    return run


PATTERNS: dict[str, Callable[..., Callable[[], torch.Tensor]]] = {"sum_abs": sum_abs}
"""What cuda.compute can express without a kernel of one's own; the other patterns have no row for it."""
