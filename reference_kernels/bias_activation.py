"""Bias, activation and residual in one pass; with a scale: scale-bias-ReLU."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812

from fusionaudit.reference_kernels.reference import Launch, Reference, Tensors, cpp, normal, pack_width, rows_of

ACTIVATIONS = ("relu", "gelu", "gelu_tanh", "silu")
COLS = 4096
UNROLL = 2


def fused(
    launch: Launch,
    x: torch.Tensor,
    bias: torch.Tensor,
    *,
    scale: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
    activation: str = "relu",
) -> Tensors:
    """``activation(x * scale + bias) + residual`` with bias and scale along the last dimension."""
    y = launch.empty(x.shape, x.dtype)
    cols = x.shape[-1]
    width = pack_width(cols, *(t for t in (x, bias, scale, residual, y) if t is not None))
    packs = x.numel() // width
    flags = ", ".join(str(t is not None).lower() for t in (scale, residual))
    position = "unsigned" if x.numel() < 2**32 else "unsigned long long"
    name = f"bias_activation<{cpp(x)}, {width}, {UNROLL}, {ACTIVATIONS.index(activation)}, {flags}, {position}>"
    blocks = -(-packs // (256 * UNROLL))
    launch("bias_activation.cu", name, blocks, 256, (x, scale, bias, residual, y, packs, cols))
    return (y,)


def _inputs(extra: str) -> object:
    def make(n: int, dtype: torch.dtype, device: torch.device) -> Tensors:
        shape = (rows_of(n, COLS), COLS)
        last = (COLS,) if extra == "scale" else shape
        return (normal(shape, dtype, device), normal((COLS,), dtype, device), normal(last, dtype, device))

    return make


SCALE_BIAS_RELU = Reference(
    name="scale_bias_relu",
    source="bias_activation.cu",
    summary="relu(x * scale + bias) over rows of 4096",
    inputs=_inputs("scale"),  # type: ignore[arg-type]
    eager=lambda x, bias, scale: (torch.relu(x * scale + bias),),
    fused=lambda launch, x, bias, scale: fused(launch, x, bias, scale=scale),
    kernels=(
        "bias_activation<float, 4, 2, 0, true, false, unsigned>",
        "bias_activation<float, 4, 2, 0, true, false, unsigned long long>",
    ),
    applies="an elementwise chain with operands along the last dimension (FA101)",
)
BIAS_GELU_RESIDUAL = Reference(
    name="bias_gelu_residual",
    source="bias_activation.cu",
    summary="gelu(x + bias) + residual over rows of 4096",
    inputs=_inputs("residual"),  # type: ignore[arg-type]
    eager=lambda x, bias, residual: (F.gelu(x + bias) + residual,),
    fused=lambda launch, x, bias, residual: fused(launch, x, bias, residual=residual, activation="gelu"),
    kernels=(
        "bias_activation<bfloat16, 8, 2, 1, false, true, unsigned>",
        "bias_activation<float16, 8, 2, 2, false, true, unsigned>",
        "bias_activation<float, 4, 2, 3, false, true, unsigned>",
    ),
    applies="what follows a matmul: bias, activation, residual (FA101, FA104)",
)
