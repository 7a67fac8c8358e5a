"""A matmul with elementwise work behind it, written as the one library call that takes that work as its epilogue.

Bias, ReLU and GELU go into cuBLASLt's epilogue, a ReLU behind a convolution into cuDNN's. What else stands behind a
matmul has no library form; Inductor's template can take it (see :mod:`candidates`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from fusionaudit.tensors import Tensor
from fusionaudit.trace.schema import Op
from fusionaudit.verify.chain import is_view
from fusionaudit.verify.op_words import plain, short_name, split_arguments

HEADS = frozenset({"mm", "addmm", "bmm", "baddbmm", "convolution", "_scaled_mm"})


def has_matmul(ops: Sequence[Op]) -> bool:
    """True where a matmul or convolution is among the ops."""
    return any(short_name(op) in HEADS for op in ops)


def library_forms(ops: Sequence[Op], outputs: Sequence[Tensor]) -> Iterator[tuple[str, list[Op]]]:
    """(name of the call, the ops with that call in place of the matmul and what it takes in), best first.

    A result of the matmul that something else reads too has to stay, so no epilogue can take its place.
    """
    leaving = {t.storage for t in outputs}
    forms = [list(ops)]
    for fold in (_bias, _activation):
        folded = fold(forms[-1], leaving)
        if folded is not None:
            forms.append(folded[1])
            yield folded
    # The activation takes in more than the bias alone, but is not always faster: both are given.


def _after(ops: Sequence[Op], head: int, leaving: set[str | None]) -> int | None:
    """The op that alone reads what ``ops[head]`` wrote."""
    made = ops[head].outputs[0]
    readers = [i for i, op in enumerate(ops) if i > head and _reads(op, made) and not is_view(op)]
    if not readers:
        return None
    op, then = ops[readers[0]], readers[1:]
    in_place = any(op.inputs[i].storage == made.storage for i in op.mutated)
    if not in_place and (made.storage in leaving or then):
        return None
    same = [t for t in op.inputs if t.storage == made.storage]
    whole = all(t.numel == made.numel and t.is_contiguous and t.dtype == made.dtype for t in same)
    return readers[0] if whole and made.is_contiguous else None


def _reads(op: Op, made: Tensor) -> bool:
    return any(t.storage == made.storage for t in op.inputs)


def _replace(ops: Sequence[Op], head: int, last: int, name: str, inputs: Sequence[Tensor], arguments: Any) -> list[Op]:
    """The ops with ``head`` and ``last`` replaced by one call that makes what ``last`` made, in the matmul's shape."""
    end = ops[last]
    result = end.inputs[end.mutated[0]] if end.mutated else end.outputs[0]
    old = ops[head].outputs[0]
    made = replace(old, storage=result.storage, offset=result.offset)
    call = Op(id=end.id, name=name, inputs=tuple(inputs), outputs=(made,), arguments=tuple(arguments))
    views = {i for i, op in enumerate(ops) if i < last and is_view(op) and _reads(op, old)}  # a replay makes its own
    return [call if i == last else op for i, op in enumerate(ops) if i != head and i not in views]


def _bias(ops: Sequence[Op], leaving: set[str | None]) -> tuple[str, list[Op]] | None:
    """mm and an add of a vector (a bias), or of a whole matrix: addmm."""
    for head, op in enumerate(ops):
        last = _after(ops, head, leaving) if short_name(op) == "mm" else None
        if last is None or short_name(ops[last]) != "add" or len(ops[last].inputs) != 2:
            continue
        made, add = op.outputs[0], ops[last]
        _, kwargs = split_arguments(add)
        others = [t for t in add.inputs if t.storage != made.storage]
        if len(others) != 1 or plain(kwargs.get("alpha", 1)) != 1 or others[0].dtype != made.dtype:
            continue
        other = others[0]
        vector = other.shape == made.shape[-1:]
        if vector or (other.shape == made.shape and not add.mutated):
            arguments = ({"tensor": 0}, {"tensor": 1}, {"tensor": 2})
            name = "aten.addmm.default"
            return name, _replace(ops, head, last, name, (other, *op.inputs), arguments)
    return None


def _activation(ops: Sequence[Op], leaving: set[str | None]) -> tuple[str, list[Op]] | None:
    """addmm with a vector and ReLU or GELU: _addmm_activation; convolution and ReLU: cudnn_convolution_relu."""
    for head, op in enumerate(ops):
        kind = short_name(op)
        last = _after(ops, head, leaving) if kind in ("addmm", "convolution") and op.outputs else None
        if last is None:
            continue
        args, kwargs = split_arguments(op)
        then, made = short_name(ops[last]), op.outputs[0]
        if kind == "addmm" and then in ("relu", "gelu"):
            plain_sum = all(plain(kwargs.get(k, 1)) == 1 for k in ("alpha", "beta"))
            if len(op.inputs) == 3 and op.inputs[0].shape == made.shape[-1:] and plain_sum:
                arguments = (*args[:3], {"kwargs": {"use_gelu": then == "gelu"}})
                name = "aten._addmm_activation.default"
                return name, _replace(ops, head, last, name, op.inputs, arguments)
        if kind == "convolution" and then == "relu" and len(args) == 9 and not args[6]:
            name = "aten.cudnn_convolution_relu.default"
            return name, _replace(ops, head, last, name, op.inputs, (*args[:6], args[8]))
    return None
