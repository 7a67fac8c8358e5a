"""Expressions of one tensor that a library call computes: activations, softmax, norms, cross-entropy.

From each value a closure grows over the ops that read nothing but it (and constants), worked out on a sample row
(:mod:`fusionaudit.rules.row_samples`). Where the row turns into what a library's function makes of it, the ops in
between spell that function out, in whatever way they do.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from fusionaudit.program.costs import op_root
from fusionaudit.program.dataflow import Flow, Step, Version
from fusionaudit.program.rows import axes_of, reduced_dims
from fusionaudit.rules.picks import indexes_classes, one_hot, picks_a_class
from fusionaudit.rules.row_samples import (
    FAR,
    OTHER_ROWS,
    OWN_OP,
    ROW,
    Operand,
    Pick,
    Rows,
    Sample,
    computes,
    function_of_row,
    is_cross_entropy,
    is_row_reduction,
    number,
    operands,
    sampled,
)
from fusionaudit.tensors import Tensor

_ANCHORS = frozenset({
    "erf", "erfc", "tanh", "sigmoid", "exp", "exp2", "rsqrt", "sqrt", "std", "var", "var_mean", "std_mean", "norm",
    "pow", "linalg_vector_norm", "logsumexp", "_softmax", "_log_softmax", "softplus", "silu", "relu6", "hardtanh",
    "clamp", "special_ndtr", "log_sigmoid_forward",
})  # fmt: skip
"""Ops of which one is in every such expression."""
_FURTHEST = 9
"""Ops from the tensor to the anchor: the cubic of GELU by tanh takes seven."""
_LARGEST = 48
_PICKED = (0, 3, 5)
_SAME = 5e-3
_CONSTANTS = (2**0.5, 0.5**0.5, 0.7978845608, 0.044715, 0.5, 1.0, 2.0, 3.0)
"""What a tensor of one element may hold in these expressions; its value was not recorded."""


AttentionForm = Literal["", "scaled", "flex"]
"""SDPA as it is, of queries that are scaled before it, or FlexAttention."""


@dataclass(frozen=True, kw_only=True)
class Spelled:
    """Steps (indices) that spell ``name`` out, the views that go in and the result.

    ``form``: of attention, which call does it.
    """

    name: str
    members: tuple[int, ...]
    results: tuple[Version, ...]
    smoothing: float = 0.0
    trailing: bool = True
    form: AttentionForm = ""


@dataclass(kw_only=True)
class _Closure:
    """What has been worked out from a root.

    ``missing``: storages of single elements whose value is not known; ``affine``: steps with a row of weights or a
    bias, which count as ones and zeros; ``axes``: what the first reduction reduces, which the others must too.
    """

    rows: Rows
    root: tuple[Version, Tensor]
    samples: dict[Version, Sample]
    made: dict[Version, tuple[int, Tensor]]
    above: dict[int, frozenset[int]]
    missing: dict[str, None]
    affine: set[int]
    axes: tuple[object, ...] | None = None
    trailing: bool = True


def library_step(step: Step) -> bool:
    """Inside one of torch's own functions on parameters, where there is no line to edit."""
    return step.op.location is not None and step.op.location.library is not None


def spelled_rows(flow: Flow) -> Iterator[Spelled]:
    """All expressions of the forward pass that a call of a library computes; they may overlap."""
    done: set[tuple[object, ...]] = set()
    for step in flow.steps:
        if step.op.phase != "forward" or op_root(step.op) not in _ANCHORS or library_step(step):
            continue
        for value, tensor in _roots(flow, step):
            key = (value, tensor.offset, tensor.stored_elements)
            if key not in done:
                done.add(key)
                yield from _from_root(flow, value, tensor)


def _roots(flow: Flow, anchor: Step) -> Iterator[tuple[Version, Tensor]]:
    """Values that the anchor may be an expression of: what it and the ops before it read."""
    pending, seen = [(anchor, 0)], {anchor.index}
    while pending:
        step, depth = pending.pop()
        for value, tensor in step.uses:
            if tensor.numel > 1 and tensor.dtype.startswith(("float", "bfloat")):
                yield value, tensor
            maker = flow.made_by(value)
            if maker is None or maker.index in seen or depth >= _FURTHEST:
                continue
            if maker.kind in ("pointwise", "cast", "copy", "reduction", "softmax") and maker.op.phase == "forward":
                seen.add(maker.index)
                pending.append((maker, depth + 1))


def _from_root(flow: Flow, value: Version, tensor: Tensor) -> Iterator[Spelled]:
    closure = _explore(flow, value, tensor, {})
    found = False
    for spelled in _matches(flow, closure, {}):
        found = True
        yield spelled
    missing = list(closure.missing)
    if found or not 0 < len(missing) <= 2:
        return
    for numbers in itertools.product(_CONSTANTS, repeat=len(missing)):
        constants = dict(zip(missing, numbers, strict=True))
        tried = _explore(flow, value, tensor, constants)
        # GELUs have such constants; x * sigmoid(x * s) is one of many for an s that is not known.
        matched = [s for s in _matches(flow, tried, constants) if s.name.startswith("GELU")]
        if matched:
            yield from matched
            return


def _explore(
    flow: Flow,
    value: Version,
    tensor: Tensor,
    constants: Mapping[str, float],
    picked: int = 0,
    length: int | None = None,
    row: tuple[float, ...] = ROW,
) -> _Closure:
    rows = Rows(length=length, count=1 if length is None else tensor.numel // length, picked=picked)
    found = _Closure(
        rows=rows, root=(value, tensor), samples={value: Sample(data=row, level="row")}, made={value: (-1, tensor)},
        above={}, missing={}, affine=set(),
    )  # fmt: skip
    first = flow.readers.get(value, ())
    heap, seen = list(first), set(first)
    heapq.heapify(heap)
    while heap and len(found.above) < _LARGEST:
        step = flow.steps[heapq.heappop(heap)]
        if not _admit(flow, step, found, constants):
            continue
        for made, _ in step.makes:
            for reader in flow.readers.get(made, ()):
                if reader not in seen:
                    seen.add(reader)
                    heapq.heappush(heap, reader)
    return found


def _admit(flow: Flow, step: Step, found: _Closure, constants: Mapping[str, float]) -> bool:
    """Work the step out, if it reads nothing but what is known."""
    if step.op.phase != "forward" or library_step(step):
        return False
    given: list[Operand | None] = []
    makers: set[int] = set()
    affine = False
    reads = dict(zip((id(t) for _, t in step.uses), (v for v, _ in step.uses), strict=True))
    for argument in operands(step.op):
        if not (isinstance(argument, dict) and "tensor" in argument):
            if isinstance(argument, list) and any(isinstance(a, dict) and "tensor" in a for a in argument):
                if not indexes_classes(step, argument, found.rows, found.axes):
                    return False
                given.append(Pick())
            else:
                given.append(number(argument))
            continue
        tensor = step.op.inputs[argument["tensor"]]
        value = reads.get(id(tensor))
        if value is not None and value in found.samples:
            maker, whole = found.made[value]
            if tensor.offset != whole.offset or tensor.stored_elements != whole.stored_elements:
                return False
            makers.add(maker)
            given.append(found.samples[value])
        elif tensor.numel == 1:
            if tensor.storage is None or tensor.is_parameter:
                return False
            if tensor.storage not in constants:
                found.missing[tensor.storage] = None
                return False
            given.append(constants[tensor.storage])
        elif _is_weight(step, tensor, found):
            affine = True
            given.append(0.0 if op_root(step.op) == "add" else 1.0)
        elif picks_a_class(step, tensor, found.rows, found.axes):
            given.append(Pick())
        elif op_root(step.op) == "mul" and (picked := one_hot(flow, value, found.rows)) is not None:
            given.append(picked)
        elif op_root(step.op) == "nll_loss_forward":
            given.append(None)
        else:
            return False
    if not makers:
        return False
    if not _measure_rows(step, found, given):
        return False
    made = sampled(step.op, given, found.rows)
    if made is None:
        return False
    outputs = [(v, t) for v, t in step.makes]
    for (value, tensor), sample in zip(outputs, made, strict=False):
        found.samples[value] = sample
        found.made[value] = (step.index, tensor)
    if affine:
        found.affine.add(step.index)
    found.above[step.index] = frozenset().union(*(found.above.get(m, frozenset()) for m in makers), {step.index})
    return True


def _is_weight(step: Step, tensor: Tensor, found: _Closure) -> bool:
    """A row of weights, or a bias, for all rows once they are reduced."""
    known = found.rows.length is not None and op_root(step.op) in ("mul", "add")
    known = known and bool(tensor.shape) and tensor.shape[-1] > 1
    return known and tensor.stored_elements == found.rows.length and tensor.dtype.startswith(("float", "bfloat"))


def _measure_rows(step: Step, found: _Closure, given: list[Operand | None]) -> bool:
    """The first reduction says how long the rows are, and whether they are the innermost dimensions.

    False where a later one reduces others: that is no function of rows.
    """
    first = given[0]
    if not isinstance(first, Sample) or first.level != "row" or not step.op.outputs or not step.op.inputs:
        return True
    source, name = step.op.inputs[0], op_root(step.op)
    if name in ("_softmax", "_log_softmax"):
        dim = next((a for a in operands(step.op)[1:2] if isinstance(a, int)), -1)
        length = source.shape[dim] if source.shape else 1
        dims: list[int] | None = [dim]
    elif is_row_reduction(step.op):
        size = max(t.numel for t in step.op.outputs)
        if not size or source.numel % size or (size == 1 and name in ("amax", "max") and len(source.shape) > 1):
            return True
        length = source.numel // size
        dims = reduced_dims(step.op)
        if dims is not None and source.shape:
            whole = {d % len(source.shape) for d in dims}
            last = len(source.shape) - len(whole)
            found.trailing = found.trailing and whole == set(range(last, len(source.shape)))
        if size == 1 and found.rows.length is not None:
            return True  # the total over all rows
    else:
        return True
    axes = None if dims is None else axes_of(source, dims)
    if found.axes is not None and axes is not None and axes != found.axes:
        return False
    if length > 1:
        found.axes = found.axes or axes
        if found.rows.length is None:
            found.rows = replace(found.rows, length=length, count=source.numel // length)
    return True


def _matches(flow: Flow, closure: _Closure, constants: Mapping[str, float]) -> Iterator[Spelled]:
    value, tensor = closure.root
    elsewhere: dict[tuple[float, ...], _Closure] = {}
    named: dict[int, str] = {}
    for made, sample in closure.samples.items():
        maker, written = closure.made[made]
        if maker < 0 or sample.level != "row":
            continue
        members = closure.above[maker]
        reduces = any(_reduces(flow.steps[i]) for i in members)
        rows_of = closure.rows.length if reduces else None
        name = function_of_row(sample, ROW, rows_of)
        if name is None or ("norm" not in name and members & closure.affine):
            continue
        further = OTHER_ROWS if reduces else (FAR,)
        for row in set(further) - set(elsewhere):
            elsewhere[row] = _explore(flow, value, tensor, constants, row=row)
        if not all(computes(name, elsewhere[row].samples.get(made), row, rows_of) for row in further):
            continue
        named[maker] = name
        if any(op_root(flow.steps[i].op) == OWN_OP.get(name) for i in members):
            continue  # of what a clamp lets through
        works = sum(flow.steps[i].kind not in ("cast", "copy") for i in members)  # casts alone are no spelling
        # What comes after it and changes nothing (a ReLU of a sigmoid) is not part of it, but for a norm's weights.
        again = any(named.get(i) == name for i in members - {maker}) and maker not in closure.affine
        if not again and works > 1 and written.numel == tensor.numel:
            spelled = Spelled(name=name, members=tuple(sorted(members)), results=(made,), trailing=closure.trailing)
            yield _with_ends(flow, spelled, closure)
    picking = [m for m in closure.samples if closure.samples[m].level != "row"]
    if closure.rows.length is None or not any(_picks(flow.steps[i]) for i in closure.above):
        return
    length = closure.rows.length
    others = {row: [_explore(flow, value, tensor, {}, k, length, row) for k in _PICKED] for row in (ROW, OTHER_ROWS[0])}
    for made in picking:
        maker = closure.made[made][0]
        members = closure.above[maker]
        # A gather of log-probabilities alone is no loss yet.
        if len(members) < 3 or members & closure.affine or not any(_picks(flow.steps[i]) for i in members):
            continue
        if any(made not in o.samples for explored in others.values() for o in explored):
            continue
        # The library's own form of the loss: log_softmax and nll_loss.
        if any(op_root(flow.steps[i].op).startswith("nll_loss") for i in members):
            continue
        shares = [
            is_cross_entropy([o.samples[made] for o in ours], _PICKED, row, length) for row, ours in others.items()
        ]
        smoothing, elsewise = shares
        # A temperature looks like smoothing on one row alone.
        if smoothing is not None and elsewise is not None and abs(smoothing - elsewise) < _SAME:
            cut = _without_casts(flow, closure, members)
            yield Spelled(name="cross entropy", members=cut, results=(made,), smoothing=round(smoothing, 4))


def _reduces(step: Step) -> bool:
    return step.kind == "softmax" or is_row_reduction(step.op)


def _picks(step: Step) -> bool:
    """Reads the target."""
    if op_root(step.op) in ("gather", "index", "nll_loss_forward"):
        return True
    return op_root(step.op) == "mul" and len({t.storage for t in step.op.inputs if t.numel > 1}) == 2


def _without_casts(flow: Flow, closure: _Closure, members: frozenset[int]) -> tuple[int, ...]:
    """Without the casts of the root, which the caller of the library writes as well."""
    value = closure.root[0]
    casts = {i for i in members if flow.steps[i].kind == "cast" and any(v == value for v, _ in flow.steps[i].uses)}
    return tuple(sorted(members - casts))


def _with_ends(flow: Flow, spelled: Spelled, closure: _Closure) -> Spelled:
    """With the casts that the call makes itself: up before it and down again after it, or up before a softmax."""
    members, result = list(spelled.members), spelled.results[0]
    tensor = closure.made[result][1]
    wanted = closure.root[1].dtype
    step = _cast_after(flow, result, tensor)
    if step is not None and step.makes[0][1].dtype == wanted:
        members.append(step.index)
        result, tensor = step.makes[0]
    kept = tuple(sorted(members))
    if tensor.dtype != wanted and spelled.name not in ("softmax", "log_softmax"):
        kept = _without_casts(flow, closure, frozenset(members))
    return replace(spelled, members=kept, results=(result,))


def _cast_after(flow: Flow, value: Version, tensor: Tensor) -> Step | None:
    """The cast that is all that the forward pass does with a value."""
    readers = [r for r in flow.readers.get(value, ()) if flow.steps[r].op.phase == "forward"]
    step = flow.steps[readers[0]] if len(readers) == 1 else None
    return step if step is not None and step.kind == "cast" and len(step.makes) == 1 else None
