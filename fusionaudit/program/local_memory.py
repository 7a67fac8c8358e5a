"""Local memory of a recorded pass's Triton kernels, which no trace tells: Kineto's has none, CUPTI's is 0 for each
kernel (H200, nsys 2025.3: 0 where the driver says 256 bytes, tests/data/h200/README.md)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fusionaudit.figures import counted
from fusionaudit.findings import Note
from fusionaudit.program.model import Kernel, Pass


def with_local_memory(p: Pass, resources: dict[str, Any]) -> Pass:
    """The pass with ``local_memory_bytes`` from what the process had loaded (``capture/loaded_kernels.py``).

    By name and registers; where kernels of one name and as many registers differ, it stays unknown. A note says so.
    """
    loaded = {n: ks for n, ks in resources.get("kernels", {}).items() if _whole(ks)}

    def told(kernel: Kernel) -> Kernel:
        found = {k["local_bytes"] for k in loaded.get(kernel.name, ()) if k["registers"] == kernel.registers}
        known = kernel.local_memory_bytes is not None or len(found) != 1
        return kernel if known else replace(kernel, local_memory_bytes=found.pop())

    kernels = tuple(told(k) for k in p.kernels)
    unknown = {k.name for k in kernels if k.name.startswith("triton_") and k.local_memory_bytes is None}
    if not unknown or not p.name.startswith(("compiled", "imported")):
        return replace(p, kernels=kernels)
    text = f"{p.name}: register spills of {counted(len(unknown), 'Triton kernel')} are not known: no trace tells them"
    remedy = "see them with `fusionaudit run`, which asks the loaded kernels"
    note = Note(kind="unmeasured", text=text, remedy=remedy, pass_name=p.name)
    return replace(p, kernels=kernels, notes=(*p.notes, note))


def _whole(figures: Any) -> bool:
    return isinstance(figures, list) and all(
        isinstance(f, dict) and isinstance(f.get("registers"), int) and isinstance(f.get("local_bytes"), int)
        for f in figures
    )
