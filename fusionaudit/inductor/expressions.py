"""Works out size expressions such as ``512*s0`` or ``(s0*s1)//8`` by hand; nothing is ever executed."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Mapping

Number = int | float | bool

_LIMIT = 1 << 80  # sizes beyond any memory: a planted 9**9**9 must not run


def _power(base: Number, exponent: Number) -> Number | None:
    if not isinstance(base, int) or not isinstance(exponent, int) or not 0 <= exponent <= 64 or abs(base) > 1 << 40:
        return None
    return int(base**exponent)


_BINARY: dict[type[ast.operator], Callable[[Number, Number], Number | None]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.FloorDiv: lambda a, b: a // b if b else None,
    ast.Mod: lambda a, b: a % b if b else None,
    ast.Div: lambda a, b: (
        (a // b if isinstance(a, int) and isinstance(b, int) and a % b == 0 else a / b) if b else None
    ),
    ast.Pow: _power,
}
_COMPARE: dict[type[ast.cmpop], Callable[[Number, Number], bool]] = {
    ast.Lt: lambda a, b: a < b,
    ast.LtE: lambda a, b: a <= b,
    ast.Gt: lambda a, b: a > b,
    ast.GtE: lambda a, b: a >= b,
    ast.Eq: lambda a, b: a == b,
    ast.NotEq: lambda a, b: a != b,
}
_FUNCTIONS: dict[str, Callable[..., Number]] = {
    "max": max,
    "min": min,
    "Max": max,
    "Min": min,
    "abs": abs,
    "int": int,
    "floor": math.floor,
    "ceil": math.ceil,
    "trunc": math.trunc,
    "cdiv": lambda a, b: -(-a // b),
    "ceildiv": lambda a, b: -(-a // b),
    "align": lambda a: -(-a // 64) * 64,
    "FloorDiv": lambda a, b: a // b,
    "CeilDiv": lambda a, b: -(-a // b),
    "ModularIndexing": lambda a, b, c: a // b % c,
}
"""Functions that Inductor prints in sizes, by the last part of their name."""


def evaluate(node: ast.expr, names: Mapping[str, object]) -> Number | None:
    """The number that an expression stands for; ``None`` where a name is not known or the form is not arithmetic."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, int | float) else None
    if isinstance(node, ast.Name):
        value = names.get(node.id)
        return value if isinstance(value, int | float) else None
    if isinstance(node, ast.UnaryOp):
        inner = evaluate(node.operand, names)
        if inner is None:
            return None
        if isinstance(node.op, ast.USub):
            return -inner
        return inner if isinstance(node.op, ast.UAdd) else (not inner if isinstance(node.op, ast.Not) else None)
    if isinstance(node, ast.BinOp):
        left, right = evaluate(node.left, names), evaluate(node.right, names)
        rule = _BINARY.get(type(node.op))
        if left is None or right is None or rule is None:
            return None
        try:
            result = rule(left, right)
        except OverflowError:
            return None
        return None if result is None or abs(result) > _LIMIT else result
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        left, right = evaluate(node.left, names), evaluate(node.comparators[0], names)
        test = _COMPARE.get(type(node.ops[0]))
        return None if left is None or right is None or test is None else test(left, right)
    if isinstance(node, ast.IfExp):
        chosen = evaluate(node.test, names)
        return None if chosen is None else evaluate(node.body if chosen else node.orelse, names)
    if isinstance(node, ast.Call) and not node.keywords:
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        values = [evaluate(a, names) for a in node.args]
        function = _FUNCTIONS.get(name)
        if function is None or not values or any(v is None for v in values):
            return None
        try:
            return function(*values)
        except (TypeError, ZeroDivisionError, ValueError, OverflowError):
            return None
    return None


def integer(node: ast.expr, names: Mapping[str, object]) -> int | None:
    """:func:`evaluate` as an int; ``None`` where the result has a fraction."""
    value = evaluate(node, names)
    return int(value) if value is not None and math.isfinite(value) and value == int(value) else None


def integers(node: ast.expr, names: Mapping[str, object]) -> tuple[int, ...] | None:
    """A tuple or list of sizes; ``None`` where one of them is not known."""
    if not isinstance(node, ast.Tuple | ast.List):
        return None
    values = [integer(e, names) for e in node.elts]
    return None if any(v is None for v in values) else tuple(v for v in values if v is not None)


def dotted(node: ast.expr) -> str:
    """``torch.ops.aten.mm.default`` for an attribute chain; empty for anything else."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if isinstance(node, ast.Name):
        return ".".join([node.id, *reversed(parts)])
    return ""


def literal(node: ast.expr) -> object:
    """The value of a literal (numbers, strings, tuples, lists, dicts); calls and names inside become ``None``.

    The decorators of kernels hold ``DeviceProperties(...)`` and ``instance_descriptor(...)`` between plain values.
    """
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Tuple | ast.List | ast.Set):
        return [literal(e) for e in node.elts]
    if isinstance(node, ast.Dict):
        return {
            literal(k): literal(v) for k, v in zip(node.keys, node.values, strict=True) if isinstance(k, ast.Constant)
        }
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant):
        value = node.operand.value
        return -value if isinstance(value, int | float) else None
    return None
