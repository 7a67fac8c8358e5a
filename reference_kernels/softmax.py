"""Softmax and log-softmax over the last dimension or an outer one."""

from __future__ import annotations

import math

import torch

from fusionaudit.reference_kernels.reference import (
    Launch,
    Reference,
    Tensors,
    accumulate_dtype,
    cpp,
    normal,
    pack_width,
    row_layout,
    rows_of,
)

SHARED_THREADS = 1024
TILE_BYTES = 128
"""Of columns that a block takes of an outer dimension: whole lines, and few enough that all blocks' fit in the L2."""
OUTER_THREADS = 1024
LEAST_ROWS = 4
"""For each thread of a part of an outer dimension: below, a part is not worth its block."""


def resident_blocks(launch: Launch, shared_bytes: int) -> int:
    """Blocks of 1024 threads or fewer that the device holds at once with that much shared memory each."""
    return launch.sm_count * max(min(2, launch.shared_bytes_per_block // (shared_bytes + 1024)), 1)


def fused(launch: Launch, x: torch.Tensor, dim: int = -1, *, log: bool = False, path: str | None = None) -> Tensors:
    """``path`` forces ``registers``, ``shared`` or ``online`` for rows; by default the first that holds a row."""
    x = x.contiguous()
    dim %= x.dim()
    y = launch.empty(x.shape, x.dtype)
    if dim != x.dim() - 1:
        return outer(launch, x, y, dim, log=log)
    length, flag = x.shape[dim], str(log).lower()
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


def outer(launch: Launch, x: torch.Tensor, y: torch.Tensor, dim: int, *, log: bool) -> Tensors:
    """Over a dimension that is not the last: in one launch, or in two where its columns do not fill the GPU."""
    length, inner, outers = x.shape[dim], math.prod(x.shape[dim + 1 :]), math.prod(x.shape[:dim])
    width = pack_width(inner, x, y)
    across = min(TILE_BYTES // (width * x.element_size()), 32)
    threads = min(OUTER_THREADS, 1024 if length > 1024 else 512)
    blocks, slices = outers * -(-inner // (across * width)), threads // across
    parts = min(launch.sm_count // blocks, length // (slices * LEAST_ROWS)) if 2 * x.nbytes < launch.l2_bytes else 1
    tops = sums = None
    if parts > 1:
        tops, sums = (launch.empty((parts, outers * inner), accumulate_dtype(x.dtype)) for _ in range(2))
    for phase in (1, 2) if parts > 1 else (0,):
        name = f"softmax_outer<{cpp(x)}, {across}, {slices}, {width}, {str(log).lower()}, {phase}>"
        launch("softmax.cu", name, (blocks, max(parts, 1), 1), threads, (x, y, length, inner, tops, sums))
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
    limit="one row fills an SM's shared memory, so its one block waits at each row's barriers: 89 to 92% on an H200",
    applies="amax, subtract, exp, sum, log and subtract over one dimension (FA103)",
)

OUTER_SOFTMAX = Reference(
    name="softmax_outer",
    source="softmax.cu",
    summary="softmax over the first dimension of 2048",
    inputs=lambda n, dtype, device: (normal((2048, rows_of(n, 2048)), dtype, device),),
    eager=outer_by_hand,
    fused=lambda launch, x: fused(launch, x, 0),
    kernels=(
        "softmax_outer<float, 8, 128, 4, false, 0>",
        "softmax_outer<float, 8, 128, 4, false, 1>",
        "softmax_outer<float, 8, 128, 4, true, 2>",
        "softmax_outer<float, 32, 32, 1, false, 0>",
        "softmax_outer<bfloat16, 8, 128, 8, true, 0>",
        "softmax_outer<double, 8, 64, 2, false, 0>",
    ),
    limit="the columns are read twice, and the L2 keeps only part of them: 64% of the copy bandwidth on an H200",
    reads_twice=True,
    applies="softmax over a dimension that is not the last",
)
