"""LayerNorm and RMSNorm, forward and backward."""

from __future__ import annotations

import torch

from fusionaudit.reference_kernels.reference import (
    Launch,
    Reference,
    Tensors,
    accumulate_dtype,
    cpp,
    normal,
    row_layout,
    rows_of,
)

EPS = 1e-5
SLICES = 8
COLS = 4096
THREADS_PER_SM = 512  # of the backward: up to 128 registers each, as its launch bounds ask for


def forward(
    launch: Launch, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, *, eps: float = EPS
) -> Tensors:
    """y, mean and rstd (RMSNorm, where there is no bias: y and rstd)."""
    cols = x.shape[-1]
    rows = x.numel() // cols
    y = launch.empty(x.shape, x.dtype)
    mean = None if bias is None else launch.empty((rows,), accumulate_dtype(x.dtype))
    rstd = launch.empty((rows,), accumulate_dtype(x.dtype))
    layout = row_layout(cols, *(t for t in (x, y, weight, bias) if t is not None), elements_per_thread=16)
    if layout is None:
        raise ValueError(f"rows of {cols} elements do not fit in registers")
    name = f"norm_forward<{cpp(x)}, {layout.arguments()}, {str(bias is None).lower()}>"
    launch("norm.cu", name, layout.grid(rows), layout.block, (x, weight, bias, y, mean, rstd, rows, cols, eps))
    return (y, rstd) if mean is None else (y, mean, rstd)


def backward(
    launch: Launch,
    dy: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    rstd: torch.Tensor,
    mean: torch.Tensor | None = None,
) -> Tensors:
    """dx, dweight and (LayerNorm, where there is a mean) dbias; two launches, three with a bias."""
    cols = x.shape[-1]
    rows = x.numel() // cols
    accumulate = accumulate_dtype(x.dtype)
    dx = launch.empty(x.shape, x.dtype)
    layout = row_layout(cols, dy, x, dx, weight, elements_per_thread=16)
    if layout is None or layout.threads > 512:  # five values a column: 1024 threads would have to spill
        raise ValueError(f"rows of {cols} elements do not fit in registers")
    blocks = min(
        layout.grid(rows), launch.sm_count * max(THREADS_PER_SM // (layout.threads * layout.rows_per_block), 1)
    )
    slots = blocks * layout.rows_per_block
    names = ("weight",) if mean is None else ("weight", "bias")
    partial = [launch.empty((slots, cols), accumulate) for _ in names]
    sums = [launch.empty((cols,), x.dtype) for _ in names]
    name = f"norm_backward<{cpp(x)}, {layout.arguments()}, {str(mean is None).lower()}>"
    args = (dy, x, weight, mean, rstd, dx, partial[0], partial[1] if mean is not None else None, rows, cols)
    launch("norm.cu", name, blocks, layout.block, args)
    for source, out in zip(partial, sums, strict=True):
        name = f"sum_partials<{cpp(x)}, {SLICES}>"
        launch("norm.cu", name, -(-cols // 32), (32, SLICES, 1), (source, out, slots, cols))
    return (dx, *sums)


def layer_norm_by_hand(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> Tensors:
    """LayerNorm written out, with the statistics it saves."""
    mean = x.mean(-1, keepdim=True)
    rstd = ((x - mean) ** 2).mean(-1, keepdim=True).add(EPS).rsqrt()
    return ((x - mean) * rstd * weight + bias, mean.flatten(), rstd.flatten())


def rms_norm_by_hand(x: torch.Tensor, weight: torch.Tensor) -> Tensors:
    """RMSNorm written out."""
    rstd = (x * x).mean(-1, keepdim=True).add(EPS).rsqrt()
    return (x * rstd * weight, rstd.flatten())


def layer_norm_backward(
    dy: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, rstd: torch.Tensor, mean: torch.Tensor
) -> Tensors:
    """The gradients written out."""
    normalised = (x - mean[:, None].to(x.dtype)) * rstd[:, None].to(x.dtype)
    g = dy * weight
    dx = g - g.mean(-1, keepdim=True) - normalised * (g * normalised).mean(-1, keepdim=True)
    return (dx * rstd[:, None].to(x.dtype), (dy * normalised).sum(0), dy.sum(0))


def rms_norm_backward(dy: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, rstd: torch.Tensor) -> Tensors:
    """The gradients written out."""
    normalised = x * rstd[:, None].to(x.dtype)
    g = dy * weight
    dx = (g - normalised * (g * normalised).mean(-1, keepdim=True)) * rstd[:, None].to(x.dtype)
    return (dx, (dy * normalised).sum(0))


def _inputs(parameters: int) -> object:
    def make(n: int, dtype: torch.dtype, device: torch.device) -> Tensors:
        x = normal((rows_of(n, COLS), COLS), dtype, device)
        return (x, *(normal((COLS,), dtype, device) for _ in range(parameters)))

    return make


def _backward_inputs(layer: bool) -> object:
    def make(n: int, dtype: torch.dtype, device: torch.device) -> Tensors:
        rows = rows_of(n, COLS)
        x, dy = normal((rows, COLS), dtype, device), normal((rows, COLS), dtype, device)
        wide = x.to(accumulate_dtype(dtype))
        mean = wide.mean(-1) if layer else torch.zeros(rows, device=device, dtype=wide.dtype)
        rstd = ((wide - mean[:, None]) ** 2).mean(-1).add(EPS).rsqrt()
        return (dy, x, normal((COLS,), dtype, device), rstd, *((mean,) if layer else ()))

    return make


LAYER_NORM = Reference(
    name="layer_norm",
    source="norm.cu",
    summary="LayerNorm over rows of 4096, with the statistics that the backward needs",
    inputs=_inputs(2),  # type: ignore[arg-type]
    eager=layer_norm_by_hand,
    fused=forward,
    kernels=("norm_forward<float, 256, 4, 4, false>", "norm_forward<bfloat16, 256, 8, 2, false>"),
    applies="mean, centre, square, mean, rsqrt, scale and shift over the last dimension (FA103)",
)
RMS_NORM = Reference(
    name="rms_norm",
    source="norm.cu",
    summary="RMSNorm over rows of 4096",
    inputs=_inputs(1),  # type: ignore[arg-type]
    eager=rms_norm_by_hand,
    fused=forward,
    kernels=("norm_forward<float16, 256, 8, 2, true>", "norm_forward<double, 256, 2, 8, true>"),
    applies="square, mean, rsqrt and scale over the last dimension (FA103)",
)
LAYER_NORM_BACKWARD = Reference(
    name="layer_norm_backward",
    source="norm.cu",
    summary="gradients of LayerNorm over rows of 4096",
    inputs=_backward_inputs(True),  # type: ignore[arg-type]
    eager=layer_norm_backward,
    fused=backward,
    kernels=("norm_backward<float, 256, 4, 4, false>", "norm_backward<bfloat16, 256, 8, 2, false>"),
    tolerance_scale=4,
    applies="the backward of a norm written out",
)
RMS_NORM_BACKWARD = Reference(
    name="rms_norm_backward",
    source="norm.cu",
    summary="gradients of RMSNorm over rows of 4096",
    inputs=_backward_inputs(False),  # type: ignore[arg-type]
    eager=rms_norm_backward,
    fused=backward,
    kernels=("norm_backward<float, 256, 4, 4, true>", "sum_partials<float, 8>", "sum_partials<bfloat16, 8>"),
    tolerance_scale=4,
    applies="the backward of a norm written out",
)
