"""Groups of several tensors that one library kernel does: attention, gated units, rotary embeddings.

All by dataflow: who made an operand, and who else reads it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from fusionaudit.program.costs import op_root
from fusionaudit.program.dataflow import Flow, Step, Version
from fusionaudit.rules.row_samples import last_number, number, operands
from fusionaudit.rules.spelled_rows import AttentionForm, Spelled, library_step
from fusionaudit.tensors import Tensor
from fusionaudit.trace.schema import Op

_PRODUCTS = frozenset({"bmm", "baddbmm", "mm"})
_COPIES = frozenset({"_to_copy", "to", "clone", "copy"})
_CAPS = frozenset({"tanh", "clamp", "hardtanh"})
"""What FlexAttention's ``score_mod`` does to scores and SDPA does not."""
_ON_SCORES = _COPIES | _CAPS | {"mul", "div", "add", "sub", "masked_fill", "where", "maximum"}
_ON_WEIGHTS = _COPIES | {"mul", "div", "native_dropout", "nan_to_num"}
_MASKED = -1e4
"""What scores are set to where attention must not look; a softmax leaves nothing of it."""
_FILLS = frozenset({"scalar_tensor", "full", "full_like", "new_full", "fill"})
_DEEPEST = 8


def maker_of(flow: Flow, value: Version) -> Step | None:
    """The forward step that made a value."""
    step = flow.made_by(value)
    return step if step is not None and step.op.phase == "forward" and not library_step(step) else None


def forward_readers(flow: Flow, value: Version) -> list[Step]:
    """The steps of the forward pass that read a value."""
    return [flow.steps[r] for r in flow.readers.get(value, ()) if flow.steps[r].op.phase == "forward"]


def result(step: Step) -> Version | None:
    """The first value that a step makes."""
    return step.makes[0][0] if step.makes else None


def only_reader(flow: Flow, step: Step) -> Step | None:
    """The one forward step that reads what a step makes."""
    made = result(step)
    readers = [] if made is None else forward_readers(flow, made)
    return readers[0] if len(readers) == 1 and not library_step(readers[0]) else None


def fills(ops: Iterable[Op]) -> dict[str, float]:
    """What tensors of one number hold, by storage: the ``-inf`` of a ``where``, which lies on the CPU."""
    out: dict[str, float] = {}
    for op in ops:
        if op_root(op) in _FILLS and op.outputs and op.outputs[0].numel == 1:
            found = last_number(op)
            if found is not None and op.outputs[0].storage is not None:
                out[op.outputs[0].storage] = found
    return out


def attention(
    flow: Flow, rows: Sequence[Spelled], filled: Mapping[str, float], dropped: Iterable[Spelled] = ()
) -> Iterator[Spelled]:
    """``softmax(q @ k.T * scale + mask) @ v``, whatever softmax it is, with dropout on its result or without.

    ``filled`` as :func:`fills` says; ``dropped``: dropouts by hand.
    """
    softmaxes = {s.results[0]: s.members for s in rows if s.name == "softmax"}
    drops = {i: s for s in dropped if s.name == "dropout" for i in s.members}
    for step in flow.steps:
        if op_root(step.op) in ("_softmax", "softmax") and step.op.phase == "forward" and step.makes:
            softmaxes.setdefault(step.makes[0][0], (step.index,))
    for made, members in softmaxes.items():
        inside = set(members)
        entering = [(v, t) for i in members for v, t in flow.steps[i].uses if flow.maker.get(v) not in inside]
        scores = max(entering, key=lambda e: e[1].numel, default=None)
        axis = _axis(flow.steps[max(members)])
        before = None if scores is None else _scores(flow, scores[0], inside, filled, axis)
        after = _weighted(flow, made, axis, drops)
        if before is None or after is None:
            continue
        inside |= before | after
        product = flow.steps[max(after)]
        # The softmax goes over what the first product has a row or column of: heads that are mixed are no keys.
        if product.op.inputs[-2].shape[-1] not in flow.steps[min(before)].op.outputs[0].shape[-2:]:
            continue
        copies = _copies(flow, [flow.steps[min(before)], product], inside)
        found = result(product)
        steps = [flow.steps[i] for i in before]
        form: AttentionForm = "scaled" if any(_scales_rows(s, axis) or _scales_all(s) for s in steps) else ""
        if any(op_root(s.op) in _CAPS for s in steps):
            form = "flex"
        if form == "flex" and any(flow.steps[i].kind == "random" for i in after):
            continue  # it has no dropout
        if found is not None and all(t.dtype != "float64" for _, t in product.makes):
            whole = tuple(sorted(inside | copies))
            yield Spelled(name="attention", members=whole, results=(found,), form=form)


def _scores(
    flow: Flow, value: Version, inside: set[int], filled: Mapping[str, float], axis: int | None
) -> set[int] | None:
    """From the softmax's input back to the product of queries and keys."""
    found: set[int] = set()
    scaled = False
    for _ in range(_DEEPEST):
        step = maker_of(flow, value)
        if step is None or any(r.index not in inside | found for r in forward_readers(flow, value)):
            return None
        found.add(step.index)
        if op_root(step.op) in _PRODUCTS:
            return found
        if op_root(step.op) not in _ON_SCORES or not step.makes:
            return None
        size = step.makes[0][1].numel
        whole = [v for v, t in step.uses if t.stored_elements == size and maker_of(flow, v) is not None]
        paths = {v: made for v in whole if (made := _product_of(flow, v)) is not None}
        if len(paths) > 1 and op_root(step.op) == "add":  # a bias that is a projection of each pair
            paths = {v: made for v, made in paths.items() if op_root(made.op) != "mm"}
        scores = next(iter(paths), None)
        if scores is None or len(paths) > 1:
            return None
        scaled = scaled or _scales_rows(step, axis)
        if not _scales_rows(step, axis) and not _as_sdpa(step, scores, filled):
            return None
        if scaled and op_root(step.op) in ("add", "sub"):
            return None  # a bias that is scaled as well
        value = scores
    return None


def _scales_rows(step: Step, axis: int | None) -> bool:
    """Multiplies scores with what all keys of a query share (a learned number for each head): the query can have it.

    ``axis``: the stride of keys."""
    tensors = step.op.inputs
    if op_root(step.op) not in ("mul", "div") or len(tensors) != 2 or axis is None or not step.makes:
        return False
    made, other = step.makes[0][1], min(tensors, key=lambda t: t.stored_elements)
    if other.numel <= 1 or (op_root(step.op) == "div" and other is not tensors[1]):
        return False
    keys = [d - len(made.shape) for d, n in enumerate(made.shape) if made.strides[d] == axis and n > 1]
    return len(keys) == 1 and (-keys[0] > len(other.shape) or other.shape[keys[0]] == 1 or other.strides[keys[0]] == 0)


def _scales_all(step: Step) -> bool:
    """By one number on the device, as a learned temperature is: SDPA takes numbers of the host."""
    numbers = [t for t in step.op.inputs if t.numel == 1]
    return op_root(step.op) in ("mul", "div") and any(not t.device.startswith("cpu") for t in numbers)


def _as_sdpa(step: Step, scores: Version, filled: Mapping[str, float]) -> bool:
    """What SDPA does to scores: a number times them, a mask that is added, or one that leaves nothing of an element."""
    name, arguments = op_root(step.op), operands(step.op)
    mine = {id(t) for v, t in step.uses if v == scores}
    tensors = [step.op.inputs[a["tensor"]] if isinstance(a, dict) and "tensor" in a else None for a in arguments]
    at = [i for i, t in enumerate(tensors) if t is not None and id(t) in mine]
    if name in _COPIES or name in _CAPS:
        return True
    if len(at) != 1:
        return False
    if name in ("mul", "div"):
        return (name == "mul" or at == [0]) and sum(t.numel > 1 for t in step.op.inputs) == 1
    if name in ("add", "sub"):
        return name == "add" or at == [0]
    places = {"masked_fill": {0: 2}, "where": {1: 2, 2: 1}, "maximum": {0: 1, 1: 0}}[name]
    other = places.get(at[0], len(arguments))
    if other >= len(arguments):
        return False
    tensor = tensors[other]
    fill = number(arguments[other]) if tensor is None else filled.get(tensor.storage or "")
    return fill is not None and fill <= _MASKED


def _product_of(flow: Flow, value: Version) -> Step | None:
    """The matrix product that it was made by, through what is done to scores."""
    for _ in range(_DEEPEST):
        step = maker_of(flow, value)
        if step is None or op_root(step.op) in _PRODUCTS:
            return step
        if op_root(step.op) not in _ON_SCORES or not step.uses:
            return None
        value = max(step.uses, key=lambda u: u[1].stored_elements)[0]
    return None


def _weighted(flow: Flow, value: Version, axis: int | None, drops: Mapping[int, Spelled]) -> set[int] | None:
    """From the softmax's result on to the product with the values, which sums over what the softmax normalised."""
    found: set[int] = set()
    for _ in range(_DEEPEST):
        readers = forward_readers(flow, value)
        drop = drops.get(readers[0].index) if readers else None
        if drop is not None and all(r.index in drop.members for r in readers):  # rand_like looks at its shape
            found.update(drop.members)
            value = drop.results[0]
            continue
        if len(readers) != 1:
            return None
        step = readers[0]
        found.add(step.index)
        if op_root(step.op) in _PRODUCTS:
            mine = [i for i, t in enumerate(step.op.inputs) if any(v == value and t is u for v, u in step.uses)]
            if len(step.op.inputs) < 2 or len(mine) != 1:
                return None
            first = len(step.op.inputs) - 2
            if mine[0] < first:
                return None
            operand = step.op.inputs[mine[0]]
            summed = operand.strides[-1] if mine[0] == first else operand.strides[-2]
            return found if axis is None or summed == axis or 1 in operand.shape[-2:] else None
        if op_root(step.op) not in _ON_WEIGHTS or not step.makes:
            return None
        if op_root(step.op) in ("mul", "div") and sum(t.numel > 1 for t in step.op.inputs) != 1:
            return None
        value = step.makes[0][0]
    return None


def _axis(softmax: Step) -> int | None:
    """The stride along which a library softmax normalises; ``None``: not known."""
    if op_root(softmax.op) not in ("_softmax", "softmax") or not softmax.makes:
        return None
    dim = next((a for a in operands(softmax.op)[1:2] if isinstance(a, int)), None)
    made = softmax.makes[0][1]
    return made.strides[dim] if dim is not None and -len(made.shape) <= dim < len(made.shape) else None


def _copies(flow: Flow, products: Sequence[Step], inside: set[int]) -> set[int]:
    """Copies (layouts, expanded heads) and scalings of what goes into the products, made for them alone."""
    found: set[int] = set()
    for product in products:
        for value, _ in product.uses:
            for _ in range(3):
                step = maker_of(flow, value)
                if step is None or step.index in inside or len(forward_readers(flow, value)) != 1:
                    break
                scalar = op_root(step.op) in ("mul", "div") and sum(t.numel > 1 for t in step.op.inputs) == 1
                if not (scalar or step.kind == "copy") or not step.uses or step.op.mutated:
                    break
                found.add(step.index)
                value = step.uses[0][0]
    return found


def gated(flow: Flow, rows: Sequence[Spelled]) -> Iterator[Spelled]:
    """``silu(gate) * up``: an activation of one tensor times another of the same size."""
    named = {"silu": "SwiGLU", "gelu": "GeGLU"}
    acts = {s.results[0]: (s.members, s.name) for s in rows if s.name in ("SiLU", "GELU (exact)", "GELU (tanh)")}
    for step in flow.steps:
        if op_root(step.op) in ("silu", "gelu", "sigmoid") and step.op.phase == "forward" and step.makes:
            acts.setdefault(step.makes[0][0], ((step.index,), op_root(step.op)))
    for made, (members, act) in acts.items():
        step = flow.steps[max(members)]
        product = only_reader(flow, step)
        if product is None or op_root(product.op) != "mul" or not product.makes or len(product.uses) != 2:
            continue
        others = [(v, t) for v, t in product.uses if v != made]
        mine = [t for v, t in product.uses if v == made]
        entering = [(v, t) for i in members for v, t in flow.steps[i].uses if flow.maker.get(v) not in members]
        if len(others) != 1 or not mine or others[0][1].stored_elements != mine[0].stored_elements or not entering:
            continue
        (gate, gate_tensor), (up, up_tensor) = entering[0], others[0]
        if act == "sigmoid":
            # torch's own GLU: both halves of one tensor.
            apart = gate_tensor.offset - up_tensor.offset
            halves = any(apart == n * m for n, m in zip(up_tensor.shape, up_tensor.strides, strict=True))
            if gate != up or apart <= 0 or not halves or _twice(gate_tensor) != _twice(up_tensor):
                continue
            name = "GLU"
        elif gate == up and gate_tensor.offset == up_tensor.offset:
            continue
        else:
            name = "SwiGLU" if act in ("silu", "SiLU") else named["gelu"]
        yield Spelled(name=name, members=tuple(sorted({*members, product.index})), results=(product.makes[0][0],))


def _twice(tensor: Tensor) -> tuple[object, ...]:
    return (tensor.shape, tensor.strides)


def rotary(flow: Flow) -> Iterator[Spelled]:
    """Rotary embeddings: halves (or neighbours) of a head turned by an angle each."""
    for step in flow.steps:
        if step.op.phase != "forward" or library_step(step) or not step.makes:
            continue
        members = _complex_turn(flow, step) or _rotated_half(flow, step) or _joined_turns(flow, step)
        if members is None:
            continue
        last = flow.steps[max(members)]
        yield Spelled(name="rotary embedding", members=tuple(sorted(members)), results=(last.makes[0][0],))


def _complex_turn(flow: Flow, step: Step) -> set[int] | None:
    """``view_as_complex(x.float()) * freqs``, and back to x's dtype: three kernels with the casts."""
    made = step.makes[0][1]
    if op_root(step.op) != "mul" or not made.dtype.startswith("complex") or len(step.uses) != 2:
        return None
    value, tensor = max(step.uses, key=lambda u: u[1].stored_elements)
    other = min(t.stored_elements for _, t in step.uses)
    up = maker_of(flow, value)
    if other >= tensor.stored_elements or up is None or up.kind != "cast" or len(forward_readers(flow, value)) != 1:
        return None
    if up.makes[0][1].dtype.startswith("complex"):
        return None  # a real number turned is no pair
    down = only_reader(flow, step)
    members = {up.index, step.index}
    if down is not None and down.kind == "cast" and down.makes and down.makes[0][1].dtype == up.uses[0][1].dtype:
        members.add(down.index)
    return members


def _turned(flow: Flow, value: Version) -> tuple[Step, Version, Tensor] | None:
    """A product with a cosine or sine: the step, and the operand that it turns (the one with more elements)."""
    step = maker_of(flow, value)
    if step is None or op_root(step.op) != "mul" or len(step.uses) != 2 or len(forward_readers(flow, value)) != 1:
        return None
    operand, tensor = max(step.uses, key=lambda u: u[1].stored_elements)
    return step, operand, tensor


def _rotated_half(flow: Flow, step: Step) -> set[int] | None:
    """``x * cos + cat(-x2, x1) * sin``."""
    if op_root(step.op) != "add" or len(step.uses) != 2:
        return None
    for (mine, _), (other, _) in (step.uses, step.uses[::-1]):
        turned, plain = _turned(flow, mine), _turned(flow, other)
        if turned is None or plain is None:
            continue
        join = maker_of(flow, turned[1])
        if join is None or join.kind != "join" or len(join.uses) != 2 or len(forward_readers(flow, turned[1])) != 1:
            continue
        source = plain[1]
        negated = [maker_of(flow, v) for v, _ in join.uses if v != source]
        half = negated[0] if len(negated) == 1 else None
        if half is None or op_root(half.op) != "neg" or half.uses[0][0] != source or not half.makes:
            continue
        (first, _), (second, kept) = join.uses
        swapped = first == half.makes[0][0] and second == source and kept.offset < half.uses[0][1].offset
        if swapped and 2 * kept.numel == 2 * half.makes[0][1].numel == join.makes[0][1].numel:
            return {step.index, turned[0].index, plain[0].index, join.index, half.index}
    return None


def _joined_turns(flow: Flow, step: Step) -> set[int] | None:
    """``cat(x1 * cos - x2 * sin, x2 * cos + x1 * sin)`` of two parts of one tensor, or turned the other way."""
    if step.kind != "join" or len(step.uses) != 2:
        return None
    members = {step.index}
    parts: dict[str, list[tuple[_Operand, _Operand]]] = {}
    places: list[str] = []
    for value, _ in step.uses:
        half = maker_of(flow, value)
        if half is None or op_root(half.op) not in ("add", "sub") or len(half.uses) != 2:
            return None
        turned = [t for t in (_turned(flow, v) for v, _ in half.uses) if t is not None]
        if len(turned) != 2 or len(forward_readers(flow, value)) != 1 or half.op.keywords.get("alpha", 1) != 1:
            return None
        members |= {half.index, *(t[0].index for t in turned)}
        places.append(op_root(half.op))
        parts[places[-1]] = [(_operand(v, t), _factor(s, v, t)) for s, v, t in turned]
    if set(parts) != {"add", "sub"}:
        return None
    (own, cos), (other, sin) = parts["sub"]
    if own == other or own[0] != other[0] or {(other, cos), (own, sin)} != set(parts["add"]):
        return None
    # Each part comes back in its own place.
    return members if (places[0] == "sub") == (own[1] < other[1]) else None


_Operand = tuple[Version | None, int, tuple[object, ...]]


def _operand(value: Version, tensor: Tensor) -> _Operand:
    return value, tensor.offset, _twice(tensor)


def _factor(product: Step, value: Version, tensor: Tensor) -> _Operand:
    """What a product multiplies the operand with."""
    found = [(v, t) for v, t in product.uses if (v, t) != (value, tensor)]
    return _operand(*found[0]) if len(found) == 1 else (None, 0, ())
