"""``sum(|x|)``: an elementwise producer fused into a full reduction."""

from __future__ import annotations

import torch

from fusionaudit.reference_kernels.reference import (
    Launch,
    Reference,
    Tensors,
    accumulate_dtype,
    cpp,
    normal,
)

THREADS = 512
UNROLL = 4
BLOCKS_PER_SM = 4  # 2048 threads of an SM at 32 registers


def fused(launch: Launch, x: torch.Tensor, *, atomic: bool = False) -> Tensors:
    """Result as a scalar tensor in x's dtype; ``atomic`` adds the blocks' partials in no fixed order."""
    accumulate = accumulate_dtype(x.dtype)
    width = 1 if x.data_ptr() % 16 else 16 // x.element_size()
    blocks = max(min(launch.sm_count * BLOCKS_PER_SM, -(-x.numel() // (THREADS * width))), 1)
    result = launch.empty((), accumulate if atomic else x.dtype)
    partial = launch.empty((blocks,), accumulate)
    if atomic:
        result.zero_()
    name = f"sum_abs<{cpp(x)}, {THREADS}, {width}, {UNROLL}, {int(not atomic)}>"
    launch("sum_abs.cu", name, blocks, THREADS, (x, result, partial, launch.tickets(1), x.numel()))
    return (result.to(x.dtype),)


SUM_ABS = Reference(
    name="sum_abs",
    source="sum_abs.cu",
    summary="sum(|x|) over all elements",
    inputs=lambda n, dtype, device: (normal((n,), dtype, device),),
    eager=lambda x: (x.abs().sum(),),
    fused=fused,
    variants={"atomic": lambda launch, x: fused(launch, x, atomic=True)},
    kernels=(
        "sum_abs<float, 512, 4, 4, 1>",
        "sum_abs<float, 512, 4, 4, 0>",
        "sum_abs<bfloat16, 512, 8, 4, 1>",
        "sum_abs<float16, 512, 8, 4, 1>",
        "sum_abs<double, 512, 2, 4, 1>",
        "sum_abs<float, 512, 1, 4, 1>",
    ),
    dtypes=(torch.float32, torch.bfloat16, torch.float16, torch.float64),
    applies="an elementwise op read only by a full sum (FA102)",
)
