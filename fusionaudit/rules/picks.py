"""Operands that pick one element of each row: the indices of the target class, and one-hot rows made of them."""

from __future__ import annotations

from collections.abc import Sequence

from fusionaudit.program.costs import op_root
from fusionaudit.program.dataflow import Flow, Step, Version
from fusionaudit.program.rows import axes_of
from fusionaudit.rules.row_samples import Operand, Pick, Rows, Sample, last_number, number, operands, sampled
from fusionaudit.tensors import Tensor

_ONE_HOT = frozenset({"scatter", "one_hot", "eq", "index_put"})
_LONGEST = 6
_CLOSE = 1e-3


def picks_a_class(step: Step, tensor: Tensor, rows: Rows, axes: tuple[object, ...] | None) -> bool:
    """The indices of a gather from the dimension that is reduced, one element a row; or a library's target."""
    if tensor.dtype not in ("int64", "int32"):
        return False
    name, source = op_root(step.op), step.op.inputs[0]
    if name == "nll_loss_forward":
        return True
    if name != "gather" or axes is None or not step.op.outputs or step.op.outputs[0].numel != rows.count:
        return False
    dim = next((a for a in operands(step.op)[1:2] if isinstance(a, int)), None)
    return dim is None or axes_of(source, [dim]) == axes


def indexes_classes(step: Step, indices: Sequence[object], rows: Rows, axes: tuple[object, ...] | None) -> bool:
    """``x[rows, target]``: one element a row, of the dimension that is reduced."""
    source = step.op.inputs[0]
    if axes is None or not step.op.outputs or step.op.outputs[0].numel != rows.count:
        return False
    if not all(isinstance(i, dict) and "tensor" in i for i in indices):
        return False
    return any(axes_of(source, [d]) == axes for d in range(min(len(indices), len(source.shape))))


def one_hot(flow: Flow, value: Version | None, rows: Rows) -> Pick | None:
    """A value that was made from one class index a row, ``None`` for any other.

    Zeros (or the rest of a smoothed label) and a scatter, or a comparison with all classes; scaled and shifted or not.
    """
    found = _one_hot(flow, value, rows, _LONGEST)
    if found is None or found.base == 0:
        return found
    whole = found.hit + found.base * ((rows.length or 1) - 1)
    return found if abs(abs(whole) - 1) < _CLOSE else None  # else it weighs the classes


def _one_hot(flow: Flow, value: Version | None, rows: Rows, longest: int) -> Pick | None:
    maker = flow.made_by(value)
    if maker is None or not maker.uses or longest == 0:
        return None
    placed = op_root(maker.op) in _ONE_HOT
    return _placed(flow, maker, rows) if placed else _worked_out(flow, maker, rows, longest)


def _placed(flow: Flow, maker: Step, rows: Rows) -> Pick | None:
    name = op_root(maker.op)
    if rows.count not in [t.numel for t in maker.op.inputs if t.dtype in ("int64", "int32")]:
        return None
    if name == "eq":
        makers = [(flow.made_by(v), t) for v, t in maker.uses]
        classes = any(m and op_root(m.op) == "arange" and t.numel == rows.length for m, t in makers)
        return Pick() if classes else None
    if name == "one_hot":
        return Pick()
    under = next((v for v, t in maker.uses if t.storage == maker.op.inputs[0].storage), None)
    base = _filled(flow, under)
    hit = number(operands(maker.op)[-1]) if name == "scatter" else None
    if base is None or (base != 0 and hit is None):
        return None
    return Pick(base=base, hit=1.0 if hit is None else hit)


def _filled(flow: Flow, value: Version | None) -> float | None:
    """The number that all of a value is, as far as a fill says so."""
    maker = flow.made_by(value)
    if maker is None:
        return None
    name = op_root(maker.op)
    if maker.kind in ("cast", "copy") and maker.uses:
        return _filled(flow, maker.uses[0][0])
    if maker.kind != "fill":
        return None
    if "zero" in name or "one" in name:
        return 0.0 if "zero" in name else 1.0
    return last_number(maker.op)


def _worked_out(flow: Flow, maker: Step, rows: Rows, longest: int) -> Pick | None:
    """Of a one-hot value and numbers."""
    large = [v for v, t in maker.uses if t.numel > 1]
    inner = _one_hot(flow, large[0], rows, longest - 1) if len(large) == 1 and len(maker.uses) == 1 else None
    if inner is None or maker.op.outputs[0].numel != rows.count * (rows.length or 1):
        return None
    if maker.kind in ("cast", "copy"):
        return inner
    own = Sample(data=(inner.base, inner.hit), level="row")
    tensors = [isinstance(a, dict) and "tensor" in a for a in operands(maker.op)]
    given: list[Operand | None] = [own if t else number(a) for t, a in zip(tensors, operands(maker.op), strict=True)]
    made = sampled(maker.op, given, rows)
    return None if made is None or len(made[0].data) != 2 else Pick(base=made[0].data[0], hit=made[0].data[1])
