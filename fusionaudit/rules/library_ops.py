"""Op sequences that a library already has as one kernel, with the call that replaces them.

Matching is on the set of ops of a chain, not on their order: what has to be there, what may be there besides. The most
specific pattern (most required ops) wins. It is a hint in the remedy, never a reason for a finding.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from fusionaudit.trace.schema import Op


@dataclass(frozen=True, kw_only=True)
class Pattern:
    """``needs``: groups of alternatives, one op of each group must be there; ``allows``: what else may be there."""

    name: str
    call: str
    needs: tuple[frozenset[str], ...]
    allows: frozenset[str] = frozenset()
    forbids: frozenset[str] = frozenset()


def _alternatives(text: str) -> tuple[frozenset[str], ...]:
    return tuple(frozenset(group.split("|")) for group in text.split())


_MOVES = frozenset({"_to_copy", "to", "clone", "copy", "contiguous"})

PATTERNS: tuple[Pattern, ...] = (
    Pattern(
        name="softmax",
        call="torch.softmax(x, dim)",
        needs=_alternatives("amax|max exp sum div"),
        allows=frozenset({"sub", "mul", "add", "masked_fill", "where"}),
        forbids=frozenset({"log"}),
    ),
    Pattern(
        name="softmax",
        call="torch.softmax(x, dim)",
        needs=_alternatives("exp sum div"),
        allows=frozenset({"sub", "mul"}),
    ),
    Pattern(
        name="log_softmax",
        call="torch.log_softmax(x, dim)",
        needs=_alternatives("exp sum log sub"),
        allows=frozenset({"amax", "max", "add"}),
        forbids=frozenset({"neg", "mean", "gather"}),
    ),
    Pattern(
        name="cross entropy",
        call="torch.nn.functional.cross_entropy(logits, target)",
        needs=_alternatives("exp sum log neg|mean"),
        allows=frozenset({"amax", "max", "sub", "add", "mul", "gather", "mean", "neg", "div"}),
    ),
    Pattern(
        name="cross entropy",
        call="torch.nn.functional.cross_entropy(logits, target)",
        needs=_alternatives("_log_softmax gather|nll_loss_forward|mul"),
        allows=frozenset({"neg", "mean", "sum", "div"}),
    ),
    Pattern(
        name="layer norm",
        call="torch.nn.functional.layer_norm(x, shape, weight, bias)",
        needs=_alternatives("mean|var_mean|var sub rsqrt|sqrt|std"),
        allows=frozenset({"pow", "square", "add", "mul", "div", "var", "mean"}),
    ),
    Pattern(
        name="RMS norm",
        call="torch.nn.functional.rms_norm(x, shape, weight, eps)",
        needs=_alternatives("pow|square|mul mean|sum rsqrt|sqrt"),
        allows=frozenset({"add", "mul", "div"}),
        forbids=frozenset({"sub"}),
    ),
    Pattern(
        name="GELU (exact)",
        call="torch.nn.functional.gelu(x)",
        needs=_alternatives("erf mul"),
        allows=frozenset({"add", "div"}),
    ),
    Pattern(
        name="GELU (tanh)",
        call='torch.nn.functional.gelu(x, approximate="tanh")',
        needs=_alternatives("tanh pow|mul add mul"),
        allows=frozenset({"pow", "add"}),
    ),
    Pattern(name="SiLU", call="torch.nn.functional.silu(x)", needs=_alternatives("sigmoid mul")),
    Pattern(
        name="SwiGLU",
        call="one fused silu-and-mul (torch.compile makes it; Liger and vLLM ship it)",
        needs=_alternatives("silu mul"),
    ),
    Pattern(
        name="rotary embedding",
        call="one fused rotary kernel (torch.compile makes it; flash-attn and Liger ship it)",
        needs=_alternatives("mul cat sub|neg add|sub"),
    ),
    Pattern(
        name="rotary embedding",
        call="one fused rotary kernel (torch.compile makes it; flash-attn and Liger ship it)",
        needs=_alternatives("mul cat neg add"),
    ),
    Pattern(
        name="dropout and residual",
        call="torch.compile over both (one kernel), or a fused dropout-add such as flash-attn's",
        needs=_alternatives("native_dropout|bernoulli add"),
        allows=frozenset({"mul", "div"}),
    ),
    Pattern(
        name="EMA",
        call="torch._foreach_lerp_(averages, values, 1 - decay)",
        needs=_alternatives("mul add"),
        allows=frozenset({"sub"}),
        forbids=frozenset({"relu", "tanh", "sigmoid"}),
    ),
)

_EMA = PATTERNS[-1]

ATTENTION = "torch.nn.functional.scaled_dot_product_attention(q, k, v)"
FOREACH_OPTIMIZER = "foreach=True of the optimizer"
FUSED_OPTIMIZER = "fused=True or foreach=True of the optimizer"
_FUSED_ON_CUDA: dict[str, tuple[int, int]] = {"adam": (2, 0), "adamw": (2, 0), "sgd": (2, 3), "adagrad": (2, 13)}
"""Modules of torch.optim whose ``fused=True`` runs on CUDA, and the torch that has it (older ones refuse it or know it
on the CPU only). The others (RMSprop, NAdam, RAdam, Adamax, Adadelta, ASGD, Rprop) have no fused form."""
_VERSION = re.compile(r"(\d+)\.(\d+)")
CLIP = "torch.nn.utils.clip_grad_norm_(parameters, max_norm, foreach=True)"


def roots(ops: Iterable[str]) -> tuple[str, ...]:
    """``add`` for ``aten.add_.Tensor``."""
    out = []
    for op in ops:
        name = op.split(".")[1] if "." in op else op
        out.append(name[:-1] if name.endswith("_") and not name.endswith("__") else name)
    return tuple(out)


def match(ops: Iterable[str]) -> Pattern | None:
    """The pattern that these ops spell out, ``None`` if none. EMA needs the per-parameter rule's word, so not here."""
    found = frozenset(roots(ops))
    fits = [
        p
        for p in PATTERNS
        if p is not _EMA
        and all(group & found for group in p.needs)
        and not (p.forbids & found)
        and found <= frozenset().union(*p.needs, p.allows, _MOVES)
    ]
    return max(fits, key=lambda p: len(p.needs)) if fits else None


def only_library(ops: Iterable[Op]) -> str | None:
    """The function of torch that all these ops are part of, where the user can only choose the call."""
    found = {None if op.location is None else op.location.library for op in ops}
    return found.pop() if len(found) == 1 else None


def has_fused(library: str | None, torch_version: str = "") -> bool:
    """Has this function of torch (``torch.optim.adam.step``) a fused form on CUDA (in that version, where given)?"""
    parts = (library or "").split(".")
    since = _FUSED_ON_CUDA.get(parts[2]) if parts[:2] == ["torch", "optim"] and len(parts) > 2 else None
    found = _VERSION.match(torch_version)
    return since is not None and (found is None or (int(found[1]), int(found[2])) >= since)


def optimizer_form(library: str | None) -> str:
    """The argument that a torch optimizer (``None``: one that is not known) takes for a whole step at once."""
    return FUSED_OPTIMIZER if library is None or has_fused(library) else FOREACH_OPTIMIZER


def library_call(library: str, line_ops: Iterable[str]) -> str | None:
    """What to call in its place; ``None`` where the ops of that line go through all tensors at once already."""
    if any(name.startswith(("_foreach_", "_fused_")) for name in roots(line_ops)):
        return None
    return optimizer_form(library) if library.startswith("torch.optim.") else f"{library}(..., foreach=True)"
