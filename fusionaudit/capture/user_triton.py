"""Triton kernels that the script launches itself: recorded by name as one opaque launch each, and not run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from fusionaudit.capture.patches import Patches, moved

Launch = Callable[[str, Sequence[torch.Tensor]], None]
"""Told of each launch: the kernel's name and its tensor arguments."""


def intercept_triton(patches: Patches, on_launch: Launch) -> None:
    """Catch ``kernel[grid](...)``, autotuned or not. What the kernel would have written stays as it was."""
    from triton.runtime import autotuner, jit

    if not hasattr(jit, "JITFunction") or not hasattr(jit.JITFunction, "run"):
        raise moved("triton.runtime.jit.JITFunction.run")

    def run(self: Any, *args: Any, **kwargs: Any) -> None:
        name = getattr(getattr(self, "fn", None), "__name__", "kernel")
        on_launch(name, [v for v in (*args, *kwargs.values()) if isinstance(v, torch.Tensor)])

    def run_inner(self: Any, *args: Any, **kwargs: Any) -> Any:
        return self.fn.run(*args, **kwargs)

    patches.set(jit.JITFunction, "run", run)
    patches.set(autotuner.Autotuner, "run", run_inner)
