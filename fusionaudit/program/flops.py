"""Floating-point operations of a kernel that multiplies matrices, from the shapes of its operands.

A multiply and an add count as two, as in ``torch.utils.flop_counter``. What masks leave out (causal attention) is not
known and counts.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from fusionaudit.program.model import Kernel
from fusionaudit.tensors import Tensor


def flops(kernel: Kernel) -> int | None:
    """FLOPs of a matmul, convolution, attention or matmul template; ``None`` where its operands do not tell."""
    backward = any("backward" in name for name in kernel.op_names)
    reads = [t for t in kernel.reads if len(t.shape) >= 2]
    if kernel.category == "convolution":
        return _convolution(reads, kernel.writes, backward)
    if kernel.category == "attention":
        return _attention(reads, backward)
    return next((found for out in kernel.writes if (found := _matmul(reads, out)) is not None), None)


def _matmul(reads: Sequence[Tensor], out: Tensor) -> int | None:
    """2 b m n k of the two operands (b, m, k) and (b, k, n) behind ``out`` (b, m, n), in whatever layout; where ``out``
    is a view of a plain product, b counts as rows."""
    if len(out.shape) < 2 or not out.numel:
        return None
    *batches, rows, n = out.shape
    for batch, m in {(math.prod(batches), rows), (1, math.prod(batches) * rows)}:
        for a, b in itertools.combinations(reads, 2):
            k = math.isqrt(a.numel * b.numel // (out.numel * batch))
            if k and sorted((a.numel, b.numel)) == sorted((batch * m * k, batch * k * n)):
                return 2 * out.numel * k
    return None


def _convolution(reads: Sequence[Tensor], writes: Sequence[Tensor], backward: bool) -> int | None:
    """Forward, or one of the two gradients of a backward: both multiply as often as the forward."""
    if backward:
        source, weight, out = (reads[1], reads[2], reads[0]) if len(reads) > 2 else (None, None, None)
    else:
        source, weight, out = (reads[0], reads[1], writes[0]) if len(reads) > 1 and writes else (None, None, None)
    if source is None or weight is None or out is None or len(out.shape) < 2 or not weight.shape[0]:
        return None
    # A transposed convolution spreads each element of its input.
    spread = out if out.shape[1] == weight.shape[0] else source
    return 2 * spread.numel * weight.numel // weight.shape[0]


def _attention(reads: Sequence[Tensor], backward: bool) -> int | None:
    """q k^T and its product with v; backward: five products of that size for the two."""
    queries, keys = reads[int(backward) : int(backward) + 2] if len(reads) >= 3 else (None, None)
    if queries is None or keys is None or len(queries.shape) < 3:
        return None
    forward = 4 * queries.numel * keys.shape[-2]
    return forward * 5 // 2 if backward else forward
