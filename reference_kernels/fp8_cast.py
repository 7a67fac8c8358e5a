"""Cast to fp8 with a scale, and the maximum of |x| for the next scale, in one read."""

from __future__ import annotations

import torch

from fusionaudit.reference_kernels.reference import Launch, Reference, Tensors, cpp, normal

THREADS, UNROLL, BLOCKS_PER_SM = 512, 2, 4
FP8 = torch.float8_e4m3fn


def fused(launch: Launch, x: torch.Tensor, scale: torch.Tensor) -> Tensors:
    """(fp8 of x * scale, amax of x); scale is one fp32 value on the device."""
    y, amax = launch.empty(x.shape, FP8), launch.empty((), torch.float32)
    width = 1 if x.data_ptr() % 16 else 16 // x.element_size()
    blocks = max(min(launch.sm_count * BLOCKS_PER_SM, -(-x.numel() // (THREADS * width * UNROLL))), 1)
    partial = launch.empty((blocks,), torch.float32)
    name = f"fp8_cast<{cpp(x)}, {THREADS}, {width}, {UNROLL}>"
    launch("fp8_cast.cu", name, blocks, THREADS, (x, scale, y, amax, partial, launch.tickets(1), x.numel()))
    return (y, amax)


def by_hand(x: torch.Tensor, scale: torch.Tensor) -> Tensors:
    """Two reads: one for the maximum, one for the cast."""
    amax = x.abs().amax()
    return ((x.float() * scale.float()).clamp(-448, 448).to(FP8), amax.float())


FP8_CAST = Reference(
    name="fp8_cast",
    source="fp8_cast.cu",
    summary="fp8 of x * scale with amax",
    inputs=lambda n, dtype, device: (normal((n,), dtype, device), torch.full((), 40.0, device=device)),
    eager=by_hand,
    fused=fused,
    kernels=(
        "fp8_cast<float, 512, 4, 2>",
        "fp8_cast<bfloat16, 512, 8, 2>",
        "fp8_cast<float16, 512, 8, 2>",
        "fp8_cast<float, 512, 1, 2>",
    ),
    applies="a maximum and a scaled cast of the same tensor (FA102, FA105)",
)
