"""SwiGLU: the gate's activation and the product in one pass."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812

from fusionaudit.reference_kernels.reference import Launch, Reference, Tensors, cpp, normal, pack_width, rows_of

COLS = 4096
UNROLL = 2


def fused(launch: Launch, x: torch.Tensor) -> Tensors:
    """``silu(gate) * up`` with gate and up the halves of x's last dimension."""
    cols = x.shape[-1] // 2
    y = launch.empty((*x.shape[:-1], cols), x.dtype)
    width = pack_width(cols, x, y)
    packs = y.numel() // width
    position = "unsigned" if y.numel() < 2**32 else "unsigned long long"
    blocks = -(-packs // (256 * UNROLL))
    launch("gated.cu", f"swiglu<{cpp(x)}, {width}, {UNROLL}, {position}>", blocks, 256, (x, y, packs, cols))
    return (y,)


SWIGLU = Reference(
    name="swiglu",
    source="gated.cu",
    summary="silu(gate) * up over rows of 2 x 4096",
    inputs=lambda n, dtype, device: (normal((rows_of(n, 2 * COLS), 2 * COLS), dtype, device),),
    eager=lambda x: (F.silu(x[..., : x.shape[-1] // 2]) * x[..., x.shape[-1] // 2 :],),
    fused=fused,
    kernels=("swiglu<float, 4, 2, unsigned>", "swiglu<bfloat16, 8, 2, unsigned>", "swiglu<float16, 8, 2, unsigned>"),
    applies="an activation and a product of two halves (FA101)",
)
