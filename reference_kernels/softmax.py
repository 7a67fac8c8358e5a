"""Softmax and log-softmax over the last dimension or an outer one."""

from __future__ import annotations

import math

import torch

from fusionaudit.reference_kernels.reference import (
    Launch,
    Reference,
    Tensors,
    cpp,
    normal,
    pack_width,
    row_layout,
    rows_of,
)

SLICES = 8
SHARED_THREADS = 1024
OUTER_THREADS = 512  # four accesses each on their way
TILE_BYTES = 64  # of columns, as in softmax_outer_shared: two sectors, the least that DRAM hands out


TILE_STATIC = {  # bytes beside the tile: 16 partial maxima and sums of each column, in the compute type
    dtype: 2 * 16 * (TILE_BYTES // dtype.itemsize) * max(dtype.itemsize, 4) + 64
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64)
}


def resident_blocks(launch: Launch, shared_bytes: int) -> int:
    """Blocks of 1024 threads or fewer that the device holds at once with that much shared memory each."""
    return launch.sm_count * max(min(2, launch.shared_bytes_per_block // (shared_bytes + 1024)), 1)


def fused(launch: Launch, x: torch.Tensor, dim: int = -1, *, log: bool = False, path: str | None = None) -> Tensors:
    """``path`` forces ``registers``, ``shared`` or ``online``; by default the first that holds a row."""
    x = x.contiguous()
    dim %= x.dim()
    y = launch.empty(x.shape, x.dtype)
    length, flag = x.shape[dim], str(log).lower()
    if dim != x.dim() - 1:
        inner = math.prod(x.shape[dim + 1 :])
        width = pack_width(inner, x, y)
        outer = math.prod(x.shape[:dim])
        tile_bytes = length * TILE_BYTES
        if path != "online" and tile_bytes <= launch.shared_bytes_per_block - TILE_STATIC[x.dtype]:
            tiles = outer * -(-inner * x.element_size() // TILE_BYTES)
            name = f"softmax_outer_shared<{cpp(x)}, {OUTER_THREADS}, {width}, {flag}>"
            args = (x, y, tiles, length, inner)
            blocks = min(tiles, resident_blocks(launch, tile_bytes))
            launch("softmax.cu", name, blocks, OUTER_THREADS, args, shared_bytes=tile_bytes)
            return (y,)
        blocks = outer * -(-inner // (32 * width))
        name = f"softmax_outer<{cpp(x)}, {SLICES}, {width}, {flag}>"
        launch("softmax.cu", name, blocks, (32, SLICES, 1), (x, y, length, inner))
        return (y,)
    rows = x.numel() // max(length, 1)
    layout = row_layout(length, x, y, elements_per_thread=16) or row_layout(length, x, y)
    if path in (None, "registers") and layout is not None:
        name = f"softmax_registers<{cpp(x)}, {layout.arguments()}, {flag}>"
        launch("softmax.cu", name, layout.grid(rows), layout.block, (x, y, rows, length))
        return (y,)
    width, row_bytes = pack_width(length, x, y), length * x.element_size()
    if path != "online" and row_bytes <= launch.shared_bytes_per_block - 1024:  # what reduce_row itself keeps
        name = f"softmax_shared<{cpp(x)}, {SHARED_THREADS}, {width}, {flag}>"
        blocks = min(rows, resident_blocks(launch, row_bytes))
        launch("softmax.cu", name, blocks, SHARED_THREADS, (x, y, rows, length), shared_bytes=row_bytes)
    else:
        launch("softmax.cu", f"softmax_online<{cpp(x)}, 1024, {width}, {flag}>", rows, 1024, (x, y, rows, length))
    return (y,)


def by_hand(x: torch.Tensor) -> Tensors:
    """Softmax as people write it out."""
    e = torch.exp(x - x.amax(dim=-1, keepdim=True))
    return (e / e.sum(dim=-1, keepdim=True),)


def log_by_hand(x: torch.Tensor) -> Tensors:
    """Log-softmax written out."""
    shifted = x - x.amax(dim=-1, keepdim=True)
    return (shifted - shifted.exp().sum(dim=-1, keepdim=True).log(),)


def outer_by_hand(x: torch.Tensor) -> Tensors:
    """Softmax over the first dimension written out."""
    e = torch.exp(x - x.amax(dim=0, keepdim=True))
    return (e / e.sum(dim=0, keepdim=True),)


SOFTMAX = Reference(
    name="softmax",
    source="softmax.cu",
    summary="softmax over rows of 4096",
    inputs=lambda n, dtype, device: (normal((rows_of(n, 4096), 4096), dtype, device),),
    eager=by_hand,
    fused=fused,
    variants={
        "shared": lambda launch, x: fused(launch, x, path="shared"),
        "online": lambda launch, x: fused(launch, x, path="online"),
    },
    kernels=(
        "softmax_registers<float, 256, 4, 4, false>",
        "softmax_registers<bfloat16, 256, 8, 2, false>",
        "softmax_registers<float16, 32, 8, 2, true>",
        "softmax_registers<double, 256, 2, 8, false>",
        "softmax_shared<float, 1024, 4, false>",
        "softmax_online<bfloat16, 1024, 8, false>",
    ),
    dtypes=(torch.float32, torch.bfloat16, torch.float16, torch.float64),
    applies="amax, subtract, exp, sum and divide over one dimension (FA103)",
)

LOG_SOFTMAX = Reference(
    name="log_softmax",
    source="softmax.cu",
    summary="log-softmax over rows of 50304",
    inputs=lambda n, dtype, device: (normal((rows_of(n, 50304), 50304), dtype, device),),
    eager=log_by_hand,
    fused=lambda launch, x: fused(launch, x, log=True),
    kernels=("softmax_shared<float, 1024, 4, true>", "softmax_online<float, 1024, 4, true>"),
    applies="amax, subtract, exp, sum, log and subtract over one dimension (FA103)",
)

OUTER_SOFTMAX = Reference(
    name="softmax_outer",
    source="softmax.cu",
    summary="softmax over the first dimension of 2048",
    inputs=lambda n, dtype, device: (normal((2048, rows_of(n, 2048)), dtype, device),),
    eager=outer_by_hand,
    fused=lambda launch, x: fused(launch, x, 0),
    variants={"online": lambda launch, x: fused(launch, x, 0, path="online")},
    kernels=(
        "softmax_outer<float, 8, 4, false>",
        "softmax_outer<bfloat16, 8, 8, true>",
        "softmax_outer_shared<float, 512, 4, false>",
        "softmax_outer_shared<bfloat16, 512, 8, true>",
        "softmax_outer_shared<float, 512, 1, false>",
        "softmax_outer_shared<double, 512, 2, false>",
    ),
    applies="softmax over a dimension that is not the last",
)
