"""Moving averages among the updates of a step, told by their scalars."""

from __future__ import annotations

from collections.abc import Sequence

from fusionaudit.program.costs import op_root
from fusionaudit.rules.row_samples import number, operands
from fusionaudit.trace.schema import Op

_CLOSE = 1e-6


def is_average(ops: Sequence[Op]) -> bool:
    """``lerp``, or two factors that add up to one: ``e.mul_(d).add_(p, alpha=1 - d)``, ``d * e + (1 - d) * p``."""
    names = {op_root(op) for op in ops}
    if "lerp" in names:
        return names <= {"lerp", "copy", "_to_copy"}
    if not names <= {"mul", "add", "sub", "copy", "_to_copy", "clone"} or not names & {"add", "sub"}:
        return False
    products = [op for op in ops if op_root(op) == "mul"]
    factors = {n for op in products for a in operands(op)[1:2] if (n := number(a)) is not None}
    if "sub" in names:  # e.sub_((1 - d) * (e - p)): the product is of a difference
        apart = {t.storage for op in ops if op_root(op) == "sub" and not op.mutated for t in op.outputs}
        told = products and all(any(t.storage in apart for t in op.inputs) for op in products)
        return bool(told) and len(factors) == 1 and 0 < min(factors) < 1
    sums = [op for op in ops if op_root(op) == "add"]
    alphas = {n for op in sums if (n := number(op.keywords.get("alpha"))) is not None}
    if not factors | alphas:
        return {"mul", "add"} <= names  # an op log without scalars
    if not factors or (not alphas and len(products) < 2 * len(sums)):  # e.mul_(0.5).add_(p) takes the whole of p
        return False
    found = sorted(factors | alphas)
    return len(found) <= 2 and abs(found[0] + found[-1] - 1) < _CLOSE
