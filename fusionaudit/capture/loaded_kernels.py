"""Registers and local memory of the Triton kernels that this process has loaded, as Inductor's launchers keep them.

A Kineto trace tells a kernel's registers and not its local memory; a launcher asked the driver for both.
"""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

_WORD_BYTES = 4
"""A launcher counts local memory (the stack frame with what spills to it) in words."""


def write_loaded_kernels(path: Path) -> None:
    """``{"kernels": {name: [{"registers": 255, "local_bytes": 64}]}}``; no file where Inductor loaded no kernel."""
    heuristics = sys.modules.get("torch._inductor.runtime.triton_heuristics")
    tuner_type = getattr(heuristics, "CachingAutotuner", None)
    if tuner_type is None:
        return
    # By type, not isinstance: that would ask proxies, some of which stand for something dead.
    found = loaded_kernels(o for o in gc.get_objects() if issubclass(type(o), tuner_type))
    if found:
        path.write_text(json.dumps({"kernels": found}) + "\n")


def loaded_kernels(tuners: Iterable[Any]) -> dict[str, list[dict[str, int]]]:
    """Kernel name to the figures of each configuration that is loaded; those without figures are left out."""
    found: dict[str, list[dict[str, int]]] = {}
    for tuner in tuners:
        name = (getattr(tuner, "inductor_meta", None) or {}).get("kernel_name")
        for launcher in getattr(tuner, "launchers", None) or ():
            registers, words = getattr(launcher, "n_regs", None), getattr(launcher, "n_spills", None)
            if isinstance(name, str) and isinstance(registers, int) and isinstance(words, int):
                found.setdefault(name, []).append({"registers": registers, "local_bytes": _WORD_BYTES * words})
    return found
