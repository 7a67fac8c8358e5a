"""Which call does a whole loop over parameters: told by the ops of its turns, their scalars and what they write."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fusionaudit.program.chains import Chain
from fusionaudit.rules.averages import is_average
from fusionaudit.rules.library_ops import CLIP, optimizer_form, roots
from fusionaudit.rules.repeats import Loop

_NORMS = frozenset({"norm", "linalg_vector_norm"})
_CLIP_VALUE = "torch.nn.utils.clip_grad_value_(parameters, clip_value)"
_EMA = "torch._foreach_lerp_(averages, values, 1 - decay)"
_SGD = "torch._foreach_add_(parameters, gradients, alpha=-lr), or torch.optim.SGD(parameters, lr, fused=True)"
_ONE_ADD = "; in the loop, p.add_(p.grad, alpha=-lr) is one kernel"
_MOMENTUM = "torch.optim.SGD(parameters, lr, momentum=m, fused=True), or foreach=True of it"
_ADAM = "torch.optim.AdamW (or Adam) with fused=True, or foreach=True of it"
_NORM = "torch._foreach_norm(tensors)"
_FOREACH = "torch._foreach_* over the list of tensors"
AXPY = "use p.add_(p.grad, alpha=-lr), one kernel; or, for all tensors at once, what FA106 says"


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
        return UpdateCall(call=_ADAM, whole=True)
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
    return bool(names & _NORMS) or (bool(loop.gradients) and "sum" in names and bool(names & {"pow", "mul", "square"}))


def is_axpy(chain: Chain) -> bool:
    """``p -= lr * p.grad``: a product with a number, then added to (taken from) a tensor in place."""
    return roots(chain.ops) in (("mul", "sub"), ("mul", "add")) and chain.ops[1].split(".")[1].endswith("_")
