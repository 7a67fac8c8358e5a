"""Patterns through cuda.compute (extra ``compute``): iterators and operators in Python, kernels by CUB.

Each entry of PATTERNS takes a pattern's inputs and gives a call that returns its outputs. What one pass of CUB over
elements cannot express has no form here; ``why_not`` says so in the table.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from fusionaudit.errors import AuditError, pip_for

REMEDY = pip_for("compute")

Form = Callable[[], tuple[torch.Tensor, ...]]


def _load() -> Any:
    try:
        import cuda.compute as module
    except (ImportError, RuntimeError) as error:
        # RuntimeError: the package is there, a library that it loads is not.
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise AuditError(f"cuda.compute cannot be used: {first}", remedy=REMEDY) from None
    if not hasattr(module, "reduce_into"):
        raise AuditError("cuda.compute finds no CUDA bindings", remedy=REMEDY)
    return module


def _numpy_type(x: torch.Tensor) -> Any:
    """The numpy scalar type of a tensor's elements; operators are compiled for it."""
    import numpy as np

    if x.dtype not in (torch.float32, torch.float64):
        raise AuditError(f"cuda.compute has no operators on {x.dtype}: its arrays are numpy's")
    return {torch.float32: np.float32, torch.float64: np.float64}[x.dtype]


def _counting(compute: Any, count: int) -> Any:
    """0, 1, 2, ...; 32-bit where that is enough, for the sake of the divisions."""
    import numpy as np

    return compute.CountingIterator(np.int32(0) if count < 2**31 else np.int64(0))


def _gathered(compute: Any, values: torch.Tensor, count: int, place: Callable[[Any], Any]) -> Any:
    """``values[place(i)]`` for each i below ``count``."""
    place.__annotations__.clear()  # cuda.compute would take them for its types
    return compute.PermutationIterator(values.reshape(-1), compute.TransformIterator(_counting(compute, count), place))


def _elementwise(compute: Any, columns: tuple[Any, ...], out: torch.Tensor, operator: Callable[[Any], Any]) -> Form:
    """One pass: ``out[i]`` from a tuple of values at i."""
    operator.__annotations__.clear()  # cuda.compute would take them for its types
    values = compute.ZipIterator(*columns)
    flat = out.reshape(-1)

    def run() -> tuple[torch.Tensor, ...]:
        compute.unary_transform(
            d_in=values, d_out=flat, op=operator, num_items=flat.numel(), stream=torch.cuda.current_stream()
        )
        return (out,)

    return run


def sum_abs(x: torch.Tensor) -> Form:
    """``sum(|x|)``: a transform iterator under a device-wide reduction."""
    import numpy as np

    compute, kind = _load(), _numpy_type(x)
    out = torch.empty(1, dtype=x.dtype, device=x.device)
    values = compute.TransformIterator(x, lambda a: abs(a))
    start = np.zeros(1, dtype=kind)

    def run() -> tuple[torch.Tensor, ...]:
        compute.reduce_into(
            d_in=values, d_out=out, num_items=x.numel(), op=compute.OpKind.PLUS, h_init=start,
            stream=torch.cuda.current_stream(),
        )  # fmt: skip
        return (out[0],)

    return run


def scale_bias_relu(x: torch.Tensor, bias: torch.Tensor, scale: torch.Tensor) -> Form:
    """``relu(x * scale + bias)``: the operands along columns by permutation iterators."""
    compute, kind, cols, n = _load(), _numpy_type(x), x.shape[-1], x.numel()
    zero = kind(0)

    def column(i: Any) -> Any:
        return i % cols

    def operator(v: Any) -> Any:
        return max(v[0] * v[1] + v[2], zero)

    columns = (x.reshape(-1), _gathered(compute, scale, n, column), _gathered(compute, bias, n, column))
    return _elementwise(compute, columns, torch.empty_like(x), operator)


def bias_gelu_residual(x: torch.Tensor, bias: torch.Tensor, residual: torch.Tensor) -> Form:
    """``gelu(x + bias) + residual``."""
    compute, kind, cols, n = _load(), _numpy_type(x), x.shape[-1], x.numel()
    half, one, root = kind(0.5), kind(1), kind(math.sqrt(0.5))

    def column(i: Any) -> Any:
        return i % cols

    def operator(v: Any) -> Any:
        a = v[0] + v[1]
        return half * a * (one + math.erf(a * root)) + v[2]

    columns = (x.reshape(-1), _gathered(compute, bias, n, column), residual.reshape(-1))
    return _elementwise(compute, columns, torch.empty_like(x), operator)


def swiglu(x: torch.Tensor) -> Form:
    """``silu(gate) * up``, both halves of a row."""
    compute, kind, cols = _load(), _numpy_type(x), x.shape[-1] // 2
    out = torch.empty((*x.shape[:-1], cols), dtype=x.dtype, device=x.device)
    one, n = kind(1), out.numel()

    def gate(i: Any) -> Any:
        return (i // cols) * (2 * cols) + i % cols

    def up(i: Any) -> Any:
        return (i // cols) * (2 * cols) + i % cols + cols

    def operator(v: Any) -> Any:
        return v[0] / (one + math.exp(-v[0])) * v[1]

    return _elementwise(compute, (_gathered(compute, x, n, gate), _gathered(compute, x, n, up)), out, operator)


def rope(x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> Form:
    """Rotary embedding over (positions, heads, 2 * half): each element with its partner of the other half."""
    compute, kind, n = _load(), _numpy_type(x), x.numel()
    heads, wide = x.shape[1], x.shape[2]
    half, one = wide // 2, kind(1)

    def partner(i: Any) -> Any:
        return i + half - wide * ((i % wide) // half)

    def angle(i: Any) -> Any:
        return (i // (wide * heads)) * half + i % half

    def operator(v: Any) -> Any:
        sign = one if (v[4] % wide) // half == 1 else -one
        return v[0] * v[2] + sign * v[1] * v[3]

    columns = (
        x.reshape(-1),
        _gathered(compute, x, n, partner),
        _gathered(compute, cosine, n, angle),
        _gathered(compute, sine, n, angle),
        _counting(compute, n),
    )
    return _elementwise(compute, columns, torch.empty_like(x), operator)


PATTERNS: dict[str, Callable[..., Form]] = {
    "sum_abs": sum_abs,
    "scale_bias_relu": scale_bias_relu,
    "bias_gelu_residual": bias_gelu_residual,
    "swiglu": swiglu,
    "rope": rope,
}
"""What cuda.compute expresses in one pass without a kernel of one's own."""

_REASONS = {
    "dropout_residual": "it draws no random numbers",
    "fp8_cast": "its arrays are numpy's, without fp8",
    "transpose_cast": "its arrays are numpy's, without bfloat16",
    "adamw": "one call takes one list of elements, not many tensors with several outputs",
    "work_queue": "each call is a launch of its own",
    "spilling": "the pattern is about registers of one kernel",
}


def why_not(pattern: str) -> str:
    """Why a pattern has no form."""
    reason = _REASONS.get(pattern, "a row is read again after its reduction, which no algorithm of it does in one pass")
    return f"no form in cuda.compute: {reason}"
