"""Cross-entropy from logits: logits are read once."""

from __future__ import annotations

import torch

from fusionaudit.reference_kernels.reference import (
    Launch,
    Reference,
    Tensors,
    accumulate_dtype,
    cpp,
    normal,
    pack_width,
    rows_of,
)

VOCABULARY = 32000


def fused(launch: Launch, logits: torch.Tensor, target: torch.Tensor) -> Tensors:
    """The loss of each row, in fp32 (fp64 for fp64)."""
    rows, cols = logits.shape
    loss = launch.empty((rows,), accumulate_dtype(logits.dtype))
    name = f"cross_entropy<{cpp(logits)}, 512, {pack_width(cols, logits)}>"
    launch("cross_entropy.cu", name, rows, 512, (logits, target, loss, cols))
    return (loss,)


def by_hand(logits: torch.Tensor, target: torch.Tensor) -> Tensors:
    """Log-softmax in fp32, then the target's entry."""
    wide = logits.to(accumulate_dtype(logits.dtype))
    return (-torch.log_softmax(wide, -1).gather(1, target[:, None])[:, 0],)


def _inputs(n: int, dtype: torch.dtype, device: torch.device) -> Tensors:
    rows = rows_of(n, VOCABULARY)
    return (normal((rows, VOCABULARY), dtype, device), torch.randint(0, VOCABULARY, (rows,), device=device))


CROSS_ENTROPY = Reference(
    name="cross_entropy",
    source="cross_entropy.cu",
    summary="cross-entropy of rows of 32000 logits",
    inputs=_inputs,
    eager=by_hand,
    fused=fused,
    kernels=("cross_entropy<float, 512, 4>", "cross_entropy<bfloat16, 512, 8>", "cross_entropy<float16, 512, 8>"),
    applies="log-softmax and the choice of one entry a row (FA103)",
)
