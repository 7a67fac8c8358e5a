"""Recorded ops worked out on a small sample row, so that an expression is known by what it computes.

``0.5 * x * (1 + erf(x / sqrt(2)))`` and ``x * x.div(2 ** 0.5).erf().add(1).mul(0.5)`` are other ops in another order,
but the same function. A sample is a row of a few numbers, as if the real row of ``length`` elements repeated them; a
statistic is one number for the row. Which dimension is a row does not matter here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from fusionaudit.program.costs import op_root
from fusionaudit.trace.schema import Op

ROW = (-2.3, -0.9, -0.2, 0.4, 1.1, 2.6)
"""The sample: both signs, near zero and far away; no two of its elements' functions are alike."""
FAR = (-60.0, -25.0, -11.0, -7.4, -5.3, -3.6, 3.4, 5.1, 6.7, 9.2, 13.0, 28.0, 60.0)
"""A second sample for functions of an element, beyond what people clamp to."""
OTHER_ROWS = tuple(tuple(scale * x + more for x in ROW) for scale, more in ((0.25, 0.0), (100.0, 0.0), (1.0, -150.0)))
"""The same for functions of a row, whose statistics may be limited too: small, wide and far below zero."""
_CLOSE = 2e-4
"""Constants are written with four digits or more; a tanh that caps scores at 50 is ten times further away."""
_FLAT = 1e-5
_LOOSER: dict[str, float] = {"layer norm": 2e-2, "RMS norm": 2e-2, "log_softmax": 2e-3}
"""Norms by hand divide by n - 1, or add their epsilon elsewhere; so do logarithms of probabilities."""

Level = Literal["row", "statistic", "total"]


@dataclass(frozen=True, kw_only=True)
class Sample:
    """What an op made of the sample row: each element (``row``), one number for it, or one for all rows."""

    data: tuple[float, ...]
    level: Level


@dataclass(frozen=True, kw_only=True)
class Rows:
    """``length`` elements a row (``None``: no reduction yet said), ``count`` rows; ``picked``: the target's element."""

    length: int | None
    count: int
    picked: int


@dataclass(frozen=True, kw_only=True)
class Pick:
    """An operand that picks one element of each row: indices of the target class, or a row that is ``hit`` there and
    ``base`` elsewhere."""

    base: float = 0.0
    hit: float = 1.0


Operand = Sample | Pick | float


def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))


def _exp(x: float) -> float:
    return math.exp(x) if x < 700 else math.inf


def _softplus(x: float) -> float:
    return math.log1p(math.exp(x))


def _gelu(x: float) -> float:
    return 0.5 * x * (1 + math.erf(x / math.sqrt(2)))


def _gelu_tanh(x: float) -> float:
    return 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


_UNARY: dict[str, Callable[[float], float]] = {
    "neg": lambda x: -x, "abs": abs, "square": lambda x: x * x, "sqrt": math.sqrt, "rsqrt": lambda x: x**-0.5,
    "reciprocal": lambda x: 1 / x, "exp": _exp, "exp2": lambda x: 2.0**x, "expm1": math.expm1, "log": math.log,
    "log1p": math.log1p, "log2": math.log2, "tanh": math.tanh, "sigmoid": _sigmoid, "erf": math.erf, "erfc": math.erfc,
    "relu": lambda x: max(x, 0.0), "relu6": lambda x: min(max(x, 0.0), 6.0), "silu": lambda x: x * _sigmoid(x),
    "softplus": _softplus, "log_sigmoid_forward": lambda x: -_softplus(-x), "special_ndtr": lambda x: _gelu(x) / x,
    "hardsigmoid": lambda x: min(max(x / 6 + 0.5, 0.0), 1.0), "to": float, "_to_copy": float, "clone": float,
    "contiguous": float, "expand": float, "mish": lambda x: x * math.tanh(_softplus(x)),
}  # fmt: skip
_BINARY: dict[str, Callable[[float, float], float]] = {
    "mul": lambda a, b: a * b, "div": lambda a, b: a / b, "maximum": max, "minimum": min, "max": max, "min": min,
    "pow": lambda a, b: a**b, "gt": lambda a, b: float(a > b), "ge": lambda a, b: float(a >= b),
    "lt": lambda a, b: float(a < b), "le": lambda a, b: float(a <= b),
}  # fmt: skip
_BINARY["multiply"], _BINARY["divide"], _BINARY["true_divide"] = _BINARY["mul"], _BINARY["div"], _BINARY["div"]
_REDUCING = frozenset({
    "sum", "mean", "amax", "max", "amin", "min", "var", "std", "var_mean", "std_mean", "linalg_vector_norm", "norm",
    "logsumexp",
})  # fmt: skip


def operands(op: Op) -> list[Any]:
    """The positional arguments of a recorded op; its tensors in order where the arguments were not recorded."""
    if not op.arguments:
        return [{"tensor": i} for i in range(len(op.inputs))]
    return [a for a in op.arguments if not (isinstance(a, dict) and "kwargs" in a)]


def number(argument: Any) -> float | None:
    """A recorded scalar; ``None`` for anything else."""
    if isinstance(argument, dict) and "float" in argument:
        return float(argument["float"])
    return float(argument) if isinstance(argument, (int, float)) else None


def last_number(op: Op) -> float | None:
    """The last scalar among an op's arguments: what a fill fills with."""
    return next((n for n in map(number, reversed(operands(op))) if n is not None), None)


def is_row_reduction(op: Op) -> bool:
    """Makes statistics of rows (``max`` of two tensors does not)."""
    tensors = [a for a in operands(op) if isinstance(a, dict) and "tensor" in a]
    return op_root(op) in _REDUCING and len(tensors) == 1


def sampled(op: Op, found: Sequence[Operand | None], rows: Rows) -> tuple[Sample, ...] | None:
    """What the op makes of samples, for each of its outputs; ``None`` where that cannot be told.

    ``found`` are the positional operands in order: a sample, a constant, a pick; ``None`` for what is no number.
    """
    try:
        made = _sampled(op, found, rows)
    except (ValueError, ZeroDivisionError, OverflowError, TypeError, IndexError):
        return None
    if made is None or any(not isinstance(x, float) or math.isnan(x) for s in made for x in s.data):
        return None
    return made


def _sampled(op: Op, found: Sequence[Operand | None], rows: Rows) -> tuple[Sample, ...] | None:
    name, given = op_root(op), op.keywords
    if given.get("rounding_mode") is not None or not found:
        return None
    if name in ("to", "_to_copy") and any(not t.dtype.startswith(("float", "bfloat")) for t in op.outputs):
        return None  # cuts off what is behind the point
    first = found[0]
    if isinstance(first, Sample) and is_row_reduction(op):
        return _reduced(name, op, first, found, given, rows)
    if isinstance(first, Sample) and name in ("gather", "index", "nll_loss_forward") and Pick() in found:
        sign = -1.0 if name == "nll_loss_forward" else 1.0
        return (Sample(data=(sign * first.data[rows.picked],), level="statistic"),) if first.level == "row" else None
    if isinstance(first, Sample) and name in ("_softmax", "_log_softmax", "softmax", "log_softmax"):
        whole = _ROWS["softmax" if name.endswith("softmax") and "log" not in name else "log_softmax"]
        return (Sample(data=tuple(whole(first.data, rows.length or len(first.data))), level="row"),)
    picking = next((f for f in found if isinstance(f, Pick)), None)
    if picking is not None:  # one-hot rows times the row
        row = next((f for f in found if isinstance(f, Sample) and f.level == "row"), None)
        if name != "mul" or row is None:
            return None
        # The sample stands for a row that repeats it, in which one element is the target's.
        data = [x * picking.base for x in row.data]
        data[rows.picked] += (
            row.data[rows.picked] * (picking.hit - picking.base) * len(data) / (rows.length or len(data))
        )
        return (Sample(data=tuple(data), level="row"),)
    numbers = [f for f in found if isinstance(f, (Sample, float))]
    if not op.arguments and len(numbers) == 1:  # an op log without arguments: an epsilon, a square
        numbers += {"pow": [2.0], "add": [0.0], "clamp": [0.0], "clamp_min": [0.0]}.get(name, [])
    work = _function(name, op, found, given, len(numbers))
    return None if work is None else (_mapped(work, numbers),)


def _function(
    name: str, op: Op, found: Sequence[Operand | None], given: dict[str, Any], count: int
) -> Callable[..., float] | None:
    """The op on numbers, its constants taken in."""
    alpha = number(given.get("alpha", 1)) or 1.0
    value = number(given.get("value", 1))
    by_name: dict[tuple[str, int], Callable[..., float]] = {
        ("add", 2): lambda a, b: a + alpha * b, ("sub", 2): lambda a, b: a - alpha * b,
        ("rsub", 2): lambda a, b: b - alpha * a, ("where", 3): lambda c, a, b: a if c else b,
        ("addcmul", 3): lambda a, b, c: a + (value or 1.0) * b * c,
        ("addcdiv", 3): lambda a, b, c: a + (value or 1.0) * b / c,
        ("lerp", 3): lambda a, b, w: a + w * (b - a), ("clamp_min", 2): max, ("clamp_max", 2): min,
    }  # fmt: skip
    if (name, count) in by_name:
        return by_name[name, count]
    if name in ("clamp", "hardtanh"):
        limits = [*(number(a) for a in operands(op)[1:3]), None, None]
        least = limits[0] if limits[0] is not None else number(given.get("min"))
        most = limits[1] if limits[1] is not None else number(given.get("max"))
        return lambda x, *_: min(max(x, -math.inf if least is None else least), math.inf if most is None else most)
    if name == "gelu":
        return _gelu_tanh if given.get("approximate") == "tanh" else _gelu
    if name in _UNARY and isinstance(found[0], Sample) and count == 1:
        return _UNARY[name]
    return _BINARY.get(name) if count == 2 else None


def _mapped(work: Callable[..., float], numbers: Sequence[Sample | float]) -> Sample:
    levels = [n.level for n in numbers if isinstance(n, Sample)]
    level: Level = "row" if "row" in levels else "statistic" if "statistic" in levels else "total"
    width = max((len(n.data) for n in numbers if isinstance(n, Sample)), default=1)
    columns = [n.data if isinstance(n, Sample) else (n,) for n in numbers]
    return Sample(data=tuple(float(work(*(c[i % len(c)] for c in columns))) for i in range(width)), level=level)


def _reduced(
    name: str, op: Op, x: Sample, found: Sequence[Operand | None], given: dict[str, Any], rows: Rows
) -> tuple[Sample, ...] | None:
    """A row to its statistic, statistics of all rows (alike here) to one number, or a row to that number at once."""
    size = max((t.numel for t in op.outputs), default=0)
    length = rows.length or len(x.data)
    to_total = x.level == "statistic" or (rows.length is not None and rows.count > 1 and size == 1)
    if x.level == "total" or (x.level == "statistic" and name not in ("sum", "mean", "amax", "max", "amin", "min")):
        return None
    times = float(rows.count) if to_total and name == "sum" else 1.0
    level: Level = "total" if to_total else "statistic"
    data = x.data
    mean = sum(data) / len(data)
    repeated = length / len(data) if x.level == "row" else 1.0
    spread = sum((v - mean) ** 2 for v in data) / len(data)
    correction = given.get("correction", given.get("unbiased", 1 if op.arguments else 0))
    correction = next((float(f) for f in found[1:2] if isinstance(f, float)), number(correction) or 0.0)
    variance = spread * length / max(1.0, length - correction)
    if name in ("linalg_vector_norm", "norm"):
        order = next((f for f in found[1:2] if isinstance(f, float)), 2.0)
        if order != 2.0:
            return None
    single: dict[str, Callable[[], float]] = {
        "sum": lambda: sum(data) * repeated * times, "mean": lambda: mean, "amax": lambda: max(data),
        "max": lambda: max(data), "amin": lambda: min(data), "min": lambda: min(data), "var": lambda: variance,
        "std": lambda: math.sqrt(variance),
        "linalg_vector_norm": lambda: math.sqrt(sum(v * v for v in data) * repeated),
        "norm": lambda: math.sqrt(sum(v * v for v in data) * repeated),
        "logsumexp": lambda: math.log(sum(math.exp(v) for v in data) * repeated),
    }  # fmt: skip
    if name in ("var_mean", "std_mean"):
        first = variance if name == "var_mean" else math.sqrt(variance)
        return (Sample(data=(first,), level=level), Sample(data=(mean,), level=level))
    return (Sample(data=(single[name](),), level=level),)


def _log_softmax(x: Sequence[float], length: int) -> list[float]:
    total = math.log(sum(math.exp(v) for v in x) * length / len(x))
    return [v - total for v in x]


def _layer_norm(x: Sequence[float], length: int) -> list[float]:
    mean = sum(x) / len(x)
    deviation = math.sqrt(sum((v - mean) ** 2 for v in x) / len(x))
    return [(v - mean) / deviation for v in x]


def _rms_norm(x: Sequence[float], length: int) -> list[float]:
    return [v / math.sqrt(sum(u * u for u in x) / len(x)) for v in x]


_ROWS: dict[str, Callable[[Sequence[float], int], list[float]]] = {
    "softmax": lambda x, n: [math.exp(v) for v in _log_softmax(x, n)],
    "log_softmax": _log_softmax,
    "layer norm": _layer_norm,
    "RMS norm": _rms_norm,
}  # fmt: skip
_ACTIVATIONS: dict[str, Callable[[float], float]] = {
    "GELU (exact)": _gelu,
    "GELU (tanh)": _gelu_tanh,
    "quick GELU": lambda x: x * _sigmoid(1.702 * x),
    "SiLU": lambda x: x * _sigmoid(x),
    "Mish": lambda x: x * math.tanh(_softplus(x)),
    "hardswish": lambda x: x * min(max(x + 3, 0.0), 6.0) / 6,
    "sigmoid": _sigmoid,
    "softplus": _softplus,
    "log sigmoid": lambda x: -_softplus(-x),
}


OWN_OP = {
    "sigmoid": "sigmoid", "SiLU": "silu", "Mish": "mish", "softplus": "softplus", "log sigmoid": "log_sigmoid_forward",
    "hardswish": "hardswish", "GELU (exact)": "gelu", "GELU (tanh)": "gelu",
}  # fmt: skip
"""The library's op of an activation."""


def _near(found: Sequence[float], wanted: Sequence[float], close: float) -> bool:
    """Equal but for rounding; against the largest where one is near zero (probabilities of long rows are all small)."""
    least = 0.05 * max(abs(b) for b in wanted)
    return all(abs(a - b) <= close * max(least, abs(b)) for a, b in zip(found, wanted, strict=True))


def function_of_row(made: Sample, row: Sequence[float], length: int | None) -> str | None:
    """The library's function that takes the sample ``row`` to ``made``, ``None`` if none does.

    ``length`` of the rows that are reduced on the way, ``None`` where none are.
    """
    known = _ACTIVATIONS if length is None else _ROWS
    return None if made.level != "row" else next((n for n in known if computes(n, made, row, length)), None)


def computes(name: str, made: Sample | None, row: Sequence[float], length: int | None) -> bool:
    """Does the function ``name`` take ``row`` to ``made``? Far out, where most functions are flat, to 1e-5."""
    if made is None or len(made.data) != len(row):
        return False
    if length is not None:
        return _near(made.data, _ROWS[name](row, length), _LOOSER.get(name, _CLOSE))
    wanted = [_ACTIVATIONS[name](x) for x in row]
    if row == ROW:
        return _near(made.data, wanted, _CLOSE)
    return all(abs(a - b) <= max(_FLAT, _CLOSE * abs(b)) for a, b in zip(made.data, wanted, strict=True))


def is_cross_entropy(made: Sequence[Sample], picked: Sequence[int], row: Sequence[float], length: int) -> float | None:
    """Is this the loss of the target class, and with how much label smoothing? ``made``: of ``row``, one for each pick.

    Any factor is fine (a mean or a sum over rows, a sign that comes later).
    """
    logs = _log_softmax(row, length)
    mean = sum(logs) / len(logs)
    (a, b, c), (ya, yb, yc) = (logs[k] for k in picked[:3]), (m.data[0] for m in made[:3])
    close = _LOOSER["log_softmax"]
    if any(len(m.data) != 1 for m in made) or abs(a - b) < close or abs(ya - yb) < 1e-9:
        return None
    slope = (ya - yb) / (a - b)
    rest = ya - slope * a
    if abs(slope * c + rest - yc) > close * abs(yc):
        return None
    share = rest / mean / slope  # smoothing / (1 - smoothing)
    return share / (1 + share) if -close < share < 1 else None
