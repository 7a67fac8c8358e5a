"""Translation of recorded aten ops into a chain's values: one entry per op, decompositions included."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from fusionaudit.tensors import Tensor
from fusionaudit.trace.schema import Op
from fusionaudit.verify.chain import ChainBuilder, ChainProgram, NodeRef, UnsupportedChainError, c_type, is_view
from fusionaudit.verify.op_words import (
    BINARY,
    COMPARE,
    DRAWING,
    EMPTY,
    EPSILON,
    FILLS,
    LARGEST,
    REDUCTIONS,
    UNARY,
    chance,
    drawn_tensor,
    plain,
    short_name,
    split_arguments,
)

Value = NodeRef | float | int | bool


def reduced_dims(op: Op) -> frozenset[int] | None:
    """The dimensions of its input that a reducing op runs over; ``None`` for any other op."""
    name = short_name(op)
    if name not in REDUCTIONS or not op.inputs:
        return None
    rank = len(op.inputs[0].shape)
    args, kwargs = split_arguments(op)
    dims: Any = None
    if name in ("native_layer_norm", "_fused_rms_norm"):
        dims = list(range(rank - len(args[1]), rank))
    elif name.endswith("_backward_data"):
        dims = args[2]
    elif name == "linalg_vector_norm":
        dims = args[2] if len(args) > 2 else kwargs.get("dim")
    elif name in ("sum", "mean", "amax", "amin", "max", "min", "prod", "any", "all", "var", "std", "var_mean",
                  "_softmax", "_log_softmax"):  # fmt: skip
        dims = args[1] if len(args) > 1 else kwargs.get("dim")
        if name in ("max", "min") and len(op.outputs) == 2:
            raise UnsupportedChainError(f"{op.name} also gives indices")
    if dims is None or dims == []:
        return frozenset(range(rank))
    return frozenset(d % rank for d in ([dims] if isinstance(dims, int) else dims)) if rank else frozenset()


def build_chain(ops: Sequence[Op], leaves: Callable[[str], bool]) -> ChainProgram:
    """The program of recorded ops. ``leaves(storage)`` is true where the storage is needed outside.

    Raises UnsupportedChainError: ops that move elements around, draw random numbers, reduce twice over different
    dimensions, or read an intermediate in another order.
    """
    work = [op for op in ops if not is_view(op) and short_name(op) not in EMPTY]
    if not work:
        raise UnsupportedChainError("no op of the chain launches a kernel")
    tensors = [t for op in work for t in (*op.inputs, *op.outputs)]
    space = max((t.shape for t in tensors), key=lambda s: (math.prod(s), len(s)))
    if 0 in space:
        raise UnsupportedChainError("a tensor is empty")
    reduced: frozenset[int] | None = None
    for op in work:
        dims = reduced_dims(op)
        if dims is None:
            continue
        builder = ChainBuilder(space, frozenset())
        marks = [int(i in dims) for i in range(len(op.inputs[0].shape))]
        if op.inputs[0].numel != math.prod(space):
            if op.inputs[0].numel == 1:
                continue
            raise UnsupportedChainError(f"{op.name} reduces something smaller than the chain's largest tensor")
        over = next((found for way in builder.maps(op.inputs[0].shape) if (found := way(marks)) is not None), None)
        if over is None:
            raise UnsupportedChainError(f"{op.name} reduces over part of a dimension")
        these = frozenset(i for i, mark in enumerate(over) if mark or (space[i] == 1 and len(dims) == len(space)))
        if reduced is not None and these != reduced:
            raise UnsupportedChainError("two reductions over different dimensions need two kernels")
        reduced = these
    builder = ChainBuilder(space, reduced or frozenset())
    for op in work:
        translate(builder, op)
    return builder.finish(leaves)


class Translator:
    """One op being translated: its arguments as values and constants."""

    def __init__(self, builder: ChainBuilder, op: Op) -> None:
        self.b, self.op = builder, op
        self.outputs = [op.inputs[i] for i in op.mutated] or list(op.outputs)
        if not self.outputs:
            raise UnsupportedChainError(f"{op.name} gives no tensor")
        self.args, self.kwargs = split_arguments(op)
        self.name = short_name(op)
        self.out_dtype = self.outputs[0].dtype
        self._shape = max((t.shape for t in self.outputs), key=math.prod)

    def get(self, position: int, name: str = "", default: Any = None) -> Any:
        """An argument: a value for tensors, else the scalar."""
        raw = self.args[position] if position < len(self.args) else self.kwargs.get(name, default)
        if isinstance(raw, dict) and "tensor" in raw:
            return self.b.read(self.op.inputs[raw["tensor"]], self._shape)
        return plain(raw)

    def call(self, function: str, *args: Value, dtype: str | None = None, operand: str | None = None) -> NodeRef:
        """A new value of the op's output dtype unless said otherwise."""
        return self.b.add(function, args, dtype or self.out_dtype, operand)

    def promoted(self, *args: Value) -> str:
        """The C++ type in which mixed operands meet."""
        kinds = {c_type(self.b.dtype_of(a)) for a in args if isinstance(a, NodeRef)}
        if "double" in kinds:
            return "double"
        if "float" in kinds or any(isinstance(a, float) for a in args):
            return "float"
        return "long long" if kinds - {"bool"} or any(type(a) is int for a in args) else "bool"

    def math_dtype(self) -> str:
        """fp32, or fp64 for fp64: what sums and statistics are kept in."""
        return "float64" if "float64" in (self.out_dtype, self.op.inputs[0].dtype) else "float32"


def _draws(t: Translator) -> tuple[Value | None, ...]:
    limit, drawn = chance(t.op), t.b.draw(drawn_tensor(t.op))
    if limit is None:
        return (t.call("convert", drawn),)
    if t.name != "native_dropout":
        return (t.call("lt", drawn, limit, dtype="bool", operand="float"),)
    keep = t.call("lt", drawn, limit, dtype="bool", operand="float")
    wide = t.math_dtype()
    kept = t.call("mul", t.get(0), 1.0 / limit, dtype=wide)
    return (t.call("where", keep, kept, 0.0, dtype=wide), keep)


def translate(builder: ChainBuilder, op: Op) -> None:
    """Add the op's values to the builder, or say why not."""
    t = Translator(builder, op)
    makes = {**dict.fromkeys(REDUCTIONS, _reduction), **dict.fromkeys(DRAWING, _draws)}
    results = makes[t.name](t) if t.name in makes else (_pointwise(t),)
    for tensor, value in zip(t.outputs, results, strict=False):
        if value is not None:
            builder.write(tensor, _as(t, value, tensor))


def _as(t: Translator, value: Value, tensor: Tensor) -> NodeRef:
    if isinstance(value, NodeRef) and t.b.dtype_of(value) == tensor.dtype:
        return value
    return t.call("convert", value, dtype=tensor.dtype)


def _pointwise(t: Translator) -> Value:
    name = t.name
    if name in FILLS:
        return FILLS[name]
    if name in ("fill", "full_like", "full", "new_full"):
        filled: Value = t.get(1, "fill_value")
        return filled
    if name in ("_to_copy", "clone", "contiguous", "alias", "lift_fresh_copy", "detach"):
        return t.call("cast", t.get(0))
    if name == "copy":
        return t.call("cast", t.get(1))
    if name in UNARY:
        operand = t.get(0)
        return t.call(name, operand, operand=t.promoted(operand) if name.startswith("is") else None)
    if name == "logical_not":
        return t.call("eq", t.get(0), 0, dtype="bool", operand=t.promoted(t.get(0)))
    if name in BINARY:
        return t.call(name, t.get(0), t.get(1))
    if name in COMPARE:
        a, b = t.get(0), t.get(1)
        return t.call(name, a, b, dtype="bool", operand=t.promoted(a, b))
    if name in ("add", "sub", "rsub"):
        a, b, alpha = t.get(0), t.get(1), t.get(2, "alpha", 1)
        a, b = (b, a) if name == "rsub" else (a, b)
        if alpha != 1:
            b = t.call("mul", b, alpha)
        return t.call("add" if name == "add" else "sub", a, b)
    if name == "div":
        mode = t.kwargs.get("rounding_mode") or (t.args[2] if len(t.args) > 2 else None)
        return t.call({None: "div", "floor": "floor_divide", "trunc": "trunc_divide"}[mode], t.get(0), t.get(1))
    if name == "floor_divide":
        return t.call("floor_divide", t.get(0), t.get(1))
    if name == "pow":
        return t.call("pow", t.get(0), t.get(1))
    return _ternary(t)


def _ternary(t: Translator) -> Value:
    name = t.name
    if name == "where":
        return t.call("where", t.get(0), t.get(1), t.get(2))
    if name == "masked_fill":
        return t.call("where", t.get(1), t.get(2), t.get(0))
    if name in ("clamp", "clamp_min", "clamp_max", "hardtanh"):
        value = t.get(0)
        low = t.get(1, "min_val" if name == "hardtanh" else "min", -1.0 if name == "hardtanh" else None)
        high = t.get(2, "max_val" if name == "hardtanh" else "max", 1.0 if name == "hardtanh" else None)
        if name == "clamp_max":
            low, high = None, low if low is not None else t.get(1, "max")
        if low is not None:
            value = t.call("maximum", value, low)
        return value if high is None else t.call("minimum", value, high)
    if name in ("addcmul", "addcdiv"):
        product = t.call("mul" if name == "addcmul" else "div", t.get(1), t.get(2))
        return t.call("add", t.get(0), t.call("mul", product, t.get(3, "value", 1)))
    if name == "lerp":
        return t.call("lerp", t.get(0), t.get(1), t.get(2))
    if name in ("gelu", "gelu_backward"):
        backward = name == "gelu_backward"
        tanh = t.get(1 + backward, "approximate", "none") == "tanh"
        function = ("gelu_tanh" if tanh else "gelu") + ("_backward" if backward else "")
        return t.call(function, *([t.get(0), t.get(1)] if backward else [t.get(0)]))
    if name == "threshold_backward":
        return t.call("threshold_backward", t.get(0), t.get(1), t.get(2))
    if name == "leaky_relu":
        return t.call("leaky_relu", t.get(0), t.get(1, "negative_slope", 0.01))
    if name == "softplus":
        return t.call("softplus", t.get(0), t.get(1, "beta", 1), t.get(2, "threshold", 20))
    if name == "elu":
        return t.call("elu", t.get(0), t.get(1, "alpha", 1), t.get(2, "scale", 1), t.get(3, "input_scale", 1))
    if name == "xlogy":
        x, y = t.get(0), t.get(1)
        product = t.call("where", t.call("eq", x, 0, dtype="bool", operand=t.promoted(x)), 0.0,
                         t.call("mul", x, t.call("log", y)))  # fmt: skip
        return t.call("where", t.call("isnan", y, dtype="bool", operand=t.promoted(y)), math.nan, product)
    if name == "nan_to_num":
        return _nan_to_num(t)
    if name == "native_dropout_backward":
        return t.call("mul", t.call("mul", t.get(0), t.get(1)), t.get(2))
    raise UnsupportedChainError(f"no fused form is known for {t.op.name}")


def _nan_to_num(t: Translator) -> Value:
    value = t.get(0)
    if c_type(t.out_dtype) not in ("float", "double"):
        return t.call("convert", value)
    largest = LARGEST.get(t.out_dtype)
    if largest is None:
        raise UnsupportedChainError(f"{t.op.name} of {t.out_dtype}")

    def put(wrong: Value, position: int, name: str, instead: float) -> NodeRef:
        given = t.get(position, name)
        return t.call("where", wrong, instead if given is None else float(given), value)

    kind = t.promoted(value)
    value = put(t.call("isnan", value, dtype="bool", operand=kind), 1, "nan", 0.0)
    value = put(t.call("eq", value, math.inf, dtype="bool", operand=kind), 2, "posinf", largest)
    return put(t.call("eq", value, -math.inf, dtype="bool", operand=kind), 3, "neginf", -largest)


def _count(t: Translator) -> int:
    dims = reduced_dims(t.op) or frozenset()
    return math.prod(t.op.inputs[0].shape[d] for d in dims)


def _reduction(t: Translator) -> tuple[Value | None, ...]:
    name, wide = t.name, t.math_dtype()
    t._shape = t.op.inputs[0].shape
    x = t.get(0)
    if len(t.op.inputs[0].shape) == 0 or t.op.inputs[0].numel == 1 != math.prod(t.b.shape):
        raise UnsupportedChainError(f"{t.op.name} of one element")

    def total(value: Value, kind: str = "sum", dtype: str = wide) -> NodeRef:
        return t.b.add(f"reduce_{kind}", (value,), dtype)

    def wider(function: str, *args: Value) -> NodeRef:
        return t.call(function, *args, dtype=wide)

    exact = wide if c_type(t.out_dtype) != "long long" else "int64"
    if name in ("sum", "prod"):
        return (total(x, name, exact),)
    if name == "mean":
        return (wider("div", total(x), _count(t)),)
    if name in ("amax", "max", "amin", "min"):
        return (total(x, "max" if "max" in name else "min", t.out_dtype),)
    if name in ("any", "all"):
        flag = t.call("ne", x, 0, dtype="bool", operand=t.promoted(x))
        return (total(flag, "max" if name == "any" else "min", "bool"),)
    if name in ("var", "std", "var_mean"):
        mean = wider("div", total(x), _count(t))
        correction = t.kwargs.get("correction", 1)
        divisor = _count(t) - (1 if correction is None else plain(correction))
        var = wider("div", total(wider("square", wider("sub", x, mean))), divisor)
        return (wider("sqrt", var) if name == "std" else var, mean)
    if name == "linalg_vector_norm":
        if t.get(1, "ord", 2) != 2:
            raise UnsupportedChainError(f"{t.op.name} of another order than 2")
        return (wider("sqrt", total(wider("square", x))),)
    if name in ("_softmax", "_log_softmax"):
        shifted = wider("sub", x, total(x, "max"))
        if name == "_softmax":
            e = wider("exp", shifted)
            return (wider("div", e, total(e)),)
        return (wider("sub", shifted, wider("log", total(wider("exp", shifted)))),)
    y = t.get(1) if name.endswith("_backward_data") else None
    if y is not None and name == "_softmax_backward_data":
        return (wider("mul", y, wider("sub", x, total(wider("mul", x, y)))),)
    if y is not None:
        return (wider("sub", x, wider("mul", wider("exp", y), total(x))),)
    return _norm(t, x, wider, total)


def _norm(
    t: Translator, x: Value, wider: Callable[..., NodeRef], total: Callable[..., NodeRef]
) -> tuple[Value | None, ...]:
    count = _count(t)
    layer = t.name == "native_layer_norm"
    mean = wider("div", total(x), count) if layer else None
    centred = x if mean is None else wider("sub", x, mean)
    eps = t.get(4 if layer else 3, "eps")
    if eps is None:
        eps = EPSILON[t.math_dtype()]
    rstd = wider("rsqrt", wider("add", wider("div", total(wider("square", centred)), count), eps))
    y: Value = wider("mul", centred, rstd)
    weight, bias = t.get(2, "weight"), t.get(3, "bias") if layer else None
    if weight is not None:
        y = wider("mul", y, weight)
    if bias is not None:
        y = wider("add", y, bias)
    return (y, mean, rstd) if layer else (y, rstd)
