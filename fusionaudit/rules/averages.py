"""Moving averages among the updates of a step, told by their scalars."""

from __future__ import annotations

from collections.abc import Sequence

from fusionaudit.program.costs import op_root
from fusionaudit.rules.row_samples import keywords, number, operands
from fusionaudit.trace.schema import Op

_CLOSE = 1e-6


def is_average(ops: Sequence[Op]) -> bool:
    """``lerp``, or two factors that add up to one: ``e.mul_(d).add_(p, alpha=1 - d)``, ``d * e + (1 - d) * p``."""
    names = {op_root(op) for op in ops}
    if "lerp" in names:
        return names <= {"lerp", "copy", "_to_copy"}
    if not names <= {"mul", "add", "sub", "copy", "_to_copy", "clone"} or not names & {"add", "sub"}:
        return False
    factors = {n for op in ops if op_root(op) == "mul" for a in operands(op)[1:2] if (n := number(a)) is not None}
    alphas = {n for op in ops if op_root(op) == "add" if (n := number(keywords(op).get("alpha"))) is not None}
    if "sub" in names:  # e.sub_((1 - d) * (e - p))
        return len(factors) == 1 and 0 < min(factors) < 1
    found = factors | alphas
    if not found:
        return {"mul", "add"} <= names  # an op log without scalars
    return len(found) in (1, 2) and any(abs(a + b - 1) < _CLOSE for a in found for b in found)
