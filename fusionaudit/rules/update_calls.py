"""Which call does a whole loop over parameters: told by the ops of its turns, their scalars and what they write."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fusionaudit.program.chains import Chain
from fusionaudit.program.costs import op_root
from fusionaudit.rules.averages import is_average
from fusionaudit.rules.library_ops import CLIP, optimizer_form, roots
from fusionaudit.rules.repeats import Loop
from fusionaudit.rules.row_samples import number, operands
from fusionaudit.trace.schema import Op

_NORMS = frozenset({"norm", "linalg_vector_norm"})
_CLIP_VALUE = "torch.nn.utils.clip_grad_value_(parameters, clip_value)"
_EMA = "torch._foreach_lerp_(averages, values, 1 - decay)"
_SGD = "torch._foreach_add_(parameters, gradients, alpha=-lr), or torch.optim.SGD(parameters, lr, fused=True)"
_ONE_ADD = "; in the loop, p.add_(p.grad, alpha=-lr) is one kernel"
_MOMENTUM = "torch.optim.SGD(parameters, lr, momentum=m, fused=True), or foreach=True of it"
_ADAM = "torch.optim.AdamW (or Adam) with fused=True, or foreach=True of it"
_RMSPROP = "torch.optim.RMSprop with foreach=True (it has no fused form), or torch.compile the update"
_ADAGRAD = "torch.optim.Adagrad with foreach=True, or fused=True (on CUDA from torch 2.13 on)"
_NORM = "torch._foreach_norm(tensors)"
_FOREACH = "torch._foreach_* over the list of tensors"
_ALL = "one kernel; or, for all tensors at once, what FA106 says"


@dataclass(frozen=True, kw_only=True)
class UpdateCall:
    """The call, and whether it does all the loop's ops in one pass over the tensors."""

    call: str
    whole: bool


def update_call(loop: Loop, others: Sequence[Loop]) -> UpdateCall:
    """The call that does the whole loop in a few launches; ``others`` are the loops of the pass."""
    names = set(roots(loop.names))
    library = None if loop.location is None else loop.location.library
    if library is not None and loop.phase == "optimizer":
        return UpdateCall(call=optimizer_form(library), whole=False)
    if _measures(loop):
        return UpdateCall(call=_NORM if loop.gradients is False else CLIP, whole=False)
    if loop.gradients and names <= {"clamp", "clamp_min", "clamp_max"}:
        return UpdateCall(call=_CLIP_VALUE, whole=False)
    if loop.gradients and names <= {"mul", "div"} and any(_measures(o) and o.gradients for o in others):
        return UpdateCall(call=CLIP, whole=False)
    if {"sqrt", "pow"} & names and {"addcdiv", "div"} & names:
        if not _divides_gradients(loop.ops):
            return UpdateCall(call=_ADAM, whole=True)
        return UpdateCall(call=_RMSPROP if _squares_decay(loop.ops) else _ADAGRAD, whole=False)
    if not loop.gradients and is_average(loop.ops):
        return UpdateCall(call=_EMA, whole=True)
    if loop.gradients and loop.writes and names <= {"mul", "add", "sub", "_to_copy", "copy", "neg", "clone"}:
        plain = 2 * len(loop.writes) < 3 * loop.turns  # momentum writes a buffer for each parameter as well
        sgd = _SGD + (_ONE_ADD if "mul" in names else "")
        return UpdateCall(call=sgd if plain else _MOMENTUM, whole=True)
    if loop.phase == "optimizer" and library is None and names - {"zeros_like", "zero", "clone"}:
        return UpdateCall(call=optimizer_form(None), whole=False)
    return UpdateCall(call=_FOREACH, whole=False)


def _measures(loop: Loop) -> bool:
    """Norms of all tensors, or sums of their squares."""
    names = set(roots(loop.names))
    return bool(names & _NORMS) or (bool(loop.gradients) and "sum" in names and bool(_squared(loop.ops)))


def _squared(ops: Sequence[Op]) -> set[str | None]:
    """Storages of what is squared: ``g ** 2``, ``g * g``, ``v.addcmul_(g, g)``."""
    out: set[str | None] = set()
    for op in ops:
        factors = [t.storage for t in (op.inputs[1:3] if op_root(op) == "addcmul" else op.inputs[:2])]
        twice = op_root(op) in ("mul", "addcmul") and len(factors) == 2 and factors[0] == factors[1]
        if factors and (twice or op_root(op) in ("pow", "square")):
            out.add(factors[0])
    return out


def _divides_gradients(ops: Sequence[Op]) -> bool:
    """What is divided by the root is what was squared (RMSprop, Adagrad), not an average of it (Adam)."""
    squared = _squared(ops)
    origin: dict[str | None, str | None] = {}  # of a gradient times a number
    for op in ops:
        tensors = [t.storage for t in op.inputs if t.numel > 1]
        root = op_root(op)
        if root in ("mul", "div", "neg") and len(tensors) == 1 and op.outputs:
            origin[op.outputs[0].storage] = origin.get(tensors[0], tensors[0])
        elif root == "addcdiv" or (root == "div" and len(tensors) == 2):
            over = op.inputs[1 if root == "addcdiv" else 0].storage
            if origin.get(over, over) in squared:
                return True
    return False


def _squares_decay(ops: Sequence[Op]) -> bool:
    """The sum of squares under the root forgets (RMSprop): it is scaled, or taken into an average; else Adagrad."""
    squares: set[str | None] = set()
    under: set[str | None] = set()
    for op in ops:
        root = op_root(op)
        if root in ("sqrt", "rsqrt") or (root == "pow" and number((*operands(op), None, None)[1]) in (0.5, -0.5)):
            under.add(op.inputs[0].storage)
        elif root in ("pow", "square", "mul") and _squared([op]):
            squares.update(o.storage for o in op.outputs)
    for op in reversed(ops):
        if not under.intersection(o.storage for o in op.outputs):
            continue
        if op_root(op) == "lerp":
            return True
        large = [t.storage for t in op.inputs if t.numel > 1]
        if op_root(op) in ("mul", "div") and len(large) == 1 and large[0] not in squares:
            return True
        if op_root(op) in ("add", "addcmul"):
            under.update(large)
    return False


def tensor_call(chain: Chain, ops: Sequence[Op]) -> str:
    """What one turn of a loop over parameters can call instead of the chain of these ``ops``."""
    if roots(chain.ops) in (("mul", "sub"), ("mul", "add")) and chain.ops[1].split(".")[1].endswith("_"):
        own = [op for op in ops if op.id in chain.op_ids]
        scales = len(own) == 2 and 0 in own[0].mutated and own[0].inputs[0].storage == own[1].inputs[0].storage
        if not scales:  # p -= lr * p.grad
            return f"use p.add_(p.grad, alpha=-lr), {_ALL}"
        if is_average(own):
            return f"use m.lerp_(p.grad, 1 - decay), {_ALL}"
    return "see that finding"
