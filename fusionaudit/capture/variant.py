"""Applies one variant of a sweep in the child, before the program runs: default dtype, dynamic sizes, options."""

from __future__ import annotations

import functools
from typing import Any

from fusionaudit.errors import AuditError

DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "fp64": "float64"}
"""Short names of the dtypes that can be torch's default."""


def apply(variant: dict[str, Any]) -> None:
    """``{"dtype": "bf16", "dynamic": true, "options": {"epilogue_fusion": false}}``; every key may be missing.

    ``dtype`` is the default dtype of tensors that are made without one: what the program gives a dtype keeps it.
    ``dynamic`` and ``options`` hold for every torch.compile of the program, whatever it says itself. AuditError for
    an unknown dtype or an option that this Inductor does not have.
    """
    dtype, dynamic, options = variant.get("dtype"), variant.get("dynamic"), variant.get("options") or {}
    if dtype is not None:
        _default_dtype(str(dtype))
    if dynamic is not None:
        _force_dynamic(bool(dynamic))
    if options:
        _inductor_options(options)


def _default_dtype(name: str) -> None:
    import torch

    wanted = getattr(torch, DTYPES.get(name, name), None)
    if not isinstance(wanted, torch.dtype) or not wanted.is_floating_point:
        raise AuditError(f"sweep: unknown dtype {name!r}", remedy=f"known: {', '.join(DTYPES)}")
    torch.set_default_dtype(wanted)


def _force_dynamic(dynamic: bool) -> None:
    import torch

    original = torch.compile

    @functools.wraps(original)
    def compile_dynamic(model: Any = None, **options: Any) -> Any:
        return original(model, **{**options, "dynamic": dynamic})

    torch.compile = compile_dynamic


def _inductor_options(options: dict[str, Any]) -> None:
    import torch._inductor.config as config

    known = config.shallow_copy_dict() if hasattr(config, "shallow_copy_dict") else config.to_dict()
    for key, value in options.items():
        name = key.replace("-", "_")
        if name not in known:
            raise AuditError(f"sweep: this Inductor has no option {key!r}", remedy="see torch._inductor.list_options()")
        present = known[name]
        if (
            present is not None
            and not isinstance(value, type(present))
            and not (isinstance(present, float) and isinstance(value, int))
        ):
            raise AuditError(f"sweep: option {key!r} wants a {type(present).__name__}, not {value!r}")
        # A patch that is never left: the child ends with the pass.
        config.patch({name: value}).__enter__()
