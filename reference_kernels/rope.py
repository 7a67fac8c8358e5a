"""Rotary embedding in one pass."""

from __future__ import annotations

import torch

from fusionaudit.reference_kernels.reference import Launch, Reference, Tensors, cpp, normal, pack_width, rows_of

HEADS, HALF = 16, 64


def fused(launch: Launch, x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> Tensors:
    """x (positions, heads, 2 * half) turned by the angles (positions, half); cosine and sine in fp32."""
    half = cosine.shape[-1]
    cosine, sine = cosine.float(), sine.float()
    y = launch.empty(x.shape, x.dtype)
    width = pack_width(half, x, y, cosine, sine, itemsize=4)
    packs = x.numel() // 2 // width
    position = "unsigned" if x.numel() < 2**32 else "unsigned long long"
    blocks = -(-packs // 256)
    args = (x, cosine, sine, y, packs, x.shape[1], half)
    launch("rope.cu", f"rope<{cpp(x)}, {width}, {position}>", blocks, 256, args)
    return (y,)


def by_hand(x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> Tensors:
    """The rotate-half form that models write."""
    half = x.shape[-1] // 2
    c, s = (torch.cat((t, t), -1)[:, None].to(x.dtype) for t in (cosine, sine))
    turned = torch.cat((-x[..., half:], x[..., :half]), -1)
    return (x * c + turned * s,)


def _inputs(n: int, dtype: torch.dtype, device: torch.device) -> Tensors:
    positions = rows_of(n, HEADS * 2 * HALF)
    angle = torch.rand(positions, HALF, device=device) * 6.28
    return (normal((positions, HEADS, 2 * HALF), dtype, device), angle.cos(), angle.sin())


ROPE = Reference(
    name="rope",
    source="rope.cu",
    summary="rotary embedding of 16 heads of 128",
    inputs=_inputs,
    eager=by_hand,
    fused=fused,
    kernels=("rope<float, 4, unsigned>", "rope<bfloat16, 4, unsigned>", "rope<float16, 4, unsigned>"),
    applies="rotate-half written out with cat, negation and two products (FA101)",
)
