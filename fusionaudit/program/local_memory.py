"""Local memory of a recorded pass's Triton kernels, where the trace does not tell it (Kineto)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fusionaudit.program.model import Kernel, Pass


def with_local_memory(p: Pass, resources: dict[str, Any]) -> Pass:
    """The pass with ``local_memory_bytes`` from what the process had loaded (``capture/loaded_kernels.py``).

    By name and registers; where kernels of one name and as many registers differ, it stays unknown.
    """
    loaded = {n: ks for n, ks in resources.get("kernels", {}).items() if _whole(ks)}

    def told(kernel: Kernel) -> Kernel:
        if kernel.local_memory_bytes is not None:
            return kernel
        found = {k["local_bytes"] for k in loaded.get(kernel.name, ()) if k["registers"] == kernel.registers}
        return replace(kernel, local_memory_bytes=found.pop()) if len(found) == 1 else kernel

    return replace(p, kernels=tuple(told(k) for k in p.kernels)) if loaded else p


def _whole(figures: Any) -> bool:
    return isinstance(figures, list) and all(
        isinstance(f, dict) and isinstance(f.get("registers"), int) and isinstance(f.get("local_bytes"), int)
        for f in figures
    )
