"""Names of ops, and what torch's own functions on parameters (optimizers, clipping) take to be a few kernels."""

from __future__ import annotations

import re
from collections.abc import Iterable

from fusionaudit.trace.schema import Op

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
