"""Recorded ops by what they do, with the words that verification knows them by, and their arguments."""

from __future__ import annotations

from typing import Any

from fusionaudit.tensors import Tensor
from fusionaudit.trace.schema import Op
from fusionaudit.verify.chain import UnsupportedChainError

UNARY = frozenset([
    "abs", "neg", "square", "sign", "reciprocal", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt",
    "rsqrt", "sin", "cos", "tan", "atan", "tanh", "erf", "floor", "ceil", "round", "trunc", "relu", "sigmoid",
    "silu", "hardswish", "hardsigmoid", "isnan", "isinf", "bitwise_not", "log_sigmoid"
])  # fmt: skip
BINARY = frozenset([
    "mul", "maximum", "minimum", "atan2", "fmod", "remainder", "sigmoid_backward", "tanh_backward", "silu_backward",
    "bitwise_and", "bitwise_or", "bitwise_xor"
])  # fmt: skip
COMPARE = frozenset(["eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or"])
RENAMED = {
    "__and__": "bitwise_and", "__or__": "bitwise_or", "__xor__": "bitwise_xor", "absolute": "abs", "negative": "neg",
    "sgn": "sign", "divide": "div", "multiply": "mul", "subtract": "sub", "true_divide": "div", "greater": "gt",
    "less": "lt", "greater_equal": "ge", "less_equal": "le", "not_equal": "ne", "fix": "trunc",
}  # fmt: skip
FILLS = {"zeros_like": 0, "ones_like": 1, "zero": 0, "zeros": 0, "ones": 1, "new_zeros": 0, "new_ones": 1}
LARGEST = {"float64": 1.7976931348623157e308, "float32": 3.4028234663852886e38, "float16": 65504.0,
           "bfloat16": 3.3895313892515355e38}  # fmt: skip
"""``torch.finfo(dtype).max``."""
EPSILON = {"float64": 2.220446049250313e-16, "float32": 1.1920928955078125e-07}
"""``torch.finfo(dtype).eps`` of what sums are kept in: what a norm without an eps takes."""
EMPTY = frozenset({"empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided"})
"""Ops that only make room; no kernel runs."""
DRAWING = frozenset(["native_dropout", "bernoulli", "rand", "rand_like", "uniform"])
"""Ops whose random numbers a kernel can draw."""
SHAPE_ONLY = frozenset({*FILLS, "full_like", "empty_like", "new_empty", "new_full"}) - {"zero", "zeros", "ones"}
"""Ops that read nothing of their input but its shape and dtype."""
REDUCTIONS = frozenset([
    "sum", "mean", "amax", "amin", "max", "min", "prod", "any", "all", "var", "std", "var_mean",
    "linalg_vector_norm", "_softmax", "_log_softmax", "_softmax_backward_data", "_log_softmax_backward_data",
    "native_layer_norm", "_fused_rms_norm"
])  # fmt: skip


def short_name(op: Op) -> str:
    """``add`` for ``aten.add_.Tensor``."""
    name = op.base_name.removeprefix("aten.")
    if name.endswith("_") and not name.endswith("__"):
        name = name[:-1]
    return RENAMED.get(name, name)


def plain(value: Any) -> Any:
    """A recorded scalar without its tag (``{"float": "inf"}``, ``{"dtype": "float32"}``)."""
    if isinstance(value, dict):
        if "float" in value:
            return float(value["float"])
        return value.get("dtype", value)
    return value


def split_arguments(op: Op) -> tuple[list[Any], dict[str, Any]]:
    """Positional and keyword arguments of a recorded call."""
    args = list(op.arguments)
    kwargs = args.pop()["kwargs"] if args and isinstance(args[-1], dict) and "kwargs" in args[-1] else {}
    return args, kwargs


def drawn_tensor(op: Op) -> Tensor:
    """The tensor that a drawing op fills: dropout's mask, else what it gives or writes in place."""
    if op.mutated:
        return op.inputs[op.mutated[0]]
    position = 1 if short_name(op) == "native_dropout" else 0
    if len(op.outputs) <= position:
        raise UnsupportedChainError(f"{op.name}: what it draws was not recorded")
    return op.outputs[position]


def chance(op: Op) -> float | None:
    """The probability of a one where ones and zeros are drawn; ``None`` for uniform numbers.

    UnsupportedChainError where a tensor gives it, or where nothing is drawn at all.
    """
    args, kwargs = split_arguments(op)
    if short_name(op) in ("rand", "rand_like", "uniform"):
        if plain(args[1] if short_name(op) == "uniform" and len(args) > 1 else 0) != 0 or len(args) > 2:
            raise UnsupportedChainError(f"{op.name} between bounds of its own")
        return None
    by_number = 0.5 if op.name.endswith(".float") else None  # its default; bernoulli.default takes it from a tensor
    given = plain(args[1]) if len(args) > 1 else kwargs.get("p", by_number)
    if not isinstance(given, (int, float)):
        raise UnsupportedChainError(f"{op.name} with a probability that a tensor gives")
    found = 1.0 - given if short_name(op) == "native_dropout" else float(given)
    if not 0.0 < found < 1.0 or (short_name(op) == "native_dropout" and plain(args[2]) is False):
        raise UnsupportedChainError(f"{op.name} that draws nothing")
    return found
