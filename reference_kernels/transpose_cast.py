"""Transpose and cast in one pass."""

from __future__ import annotations

import torch

from fusionaudit.reference_kernels.reference import (
    CPP_TYPES,
    Launch,
    Reference,
    Tensors,
    cpp,
    normal,
    pack_width,
    rows_of,
)

COLS = 4096
TILE = 64


def fused(launch: Launch, x: torch.Tensor, dtype: torch.dtype = torch.bfloat16) -> Tensors:
    """x (rows, cols) as a contiguous (cols, rows) tensor of ``dtype``."""
    rows, cols = x.shape
    y = launch.empty((cols, rows), dtype)
    name = f"transpose_cast<{cpp(x)}, {CPP_TYPES[dtype]}, {pack_width(cols, x)}, {pack_width(rows, y)}>"
    launch("transpose_cast.cu", name, -(-rows // TILE) * -(-cols // TILE), 256, (x, y, rows, cols))
    return (y,)


TRANSPOSE_CAST = Reference(
    name="transpose_cast",
    source="transpose_cast.cu",
    summary="bfloat16 of x transposed, rows of 4096",
    inputs=lambda n, dtype, device: (normal((rows_of(n, COLS), COLS), dtype, device),),
    eager=lambda x: (x.t().contiguous().to(torch.bfloat16),),
    fused=fused,
    precise=lambda x: (x.t().contiguous(),),
    dtypes=(torch.float32, torch.float16),
    kernels=(
        "transpose_cast<float, bfloat16, 4, 8>",
        "transpose_cast<float, bfloat16, 1, 1>",
        "transpose_cast<float16, bfloat16, 8, 8>",
    ),
    applies="a copy into another layout and a cast (FA105)",
)
