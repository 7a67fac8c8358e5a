"""Fused too much: spills to local memory.

What: a generated kernel needs more registers than a thread has, so values go to local memory (global memory, cached)
and come back.

Why it costs: each spilled value is a store and a load for every thread. Mixed-order reductions that took in node
after node cost 6.3 ms a step on a small transformer (pytorch 179423).

How it is measured: from ptxas (`-v`: bytes of spill stores and loads of the kernel at its configuration), or from the
driver (local memory a thread of the kernels that the audited process had loaded; no trace tells it), of kernels that
have all registers that a thread may have: with some left, it is an array (sin and cos keep one for large angles).
A kernel counts from 32 bytes a thread on: 8 values.

When it is wrong: a few spilled bytes outside the loop cost nothing.

What to do: split the region with a graph break or torch._dynamo.disable at the place that the lines show; lower
torch._inductor.config.realize_reads_threshold or max_fusion_size; for mixed-order reductions turn off
torch._inductor.config.triton.mix_order_reduction.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator

from fusionaudit.config import Config
from fusionaudit.figures import counted
from fusionaudit.findings import Finding
from fusionaudit.program.kernel_names import short_label
from fusionaudit.program.model import Kernel, Program
from fusionaudit.rules.judging import human_time, kernel_ns, short, step_ns

CODE = "FA301"
TITLE = "fused too much: spills to local memory"

_LEAST_BYTES = 32
_MOST_REGISTERS, _SM_REGISTERS, _REGISTER_UNIT = 255, 65536, 8
"""Of a thread, of an SM (which a block has to fit in), and the step in which they are given out."""


def spilled_bytes(kernel: Kernel) -> int | None:
    """Bytes a thread that do not fit in registers; ``None``: not known. ptxas knows spills, the driver only local
    memory."""
    if kernel.spill_bytes is not None or kernel.registers is None or kernel.local_memory_bytes is None:
        return kernel.spill_bytes
    threads = math.prod(kernel.block or (1,))
    most = min(_MOST_REGISTERS, _SM_REGISTERS // max(threads, 1))
    return kernel.local_memory_bytes if kernel.registers > most - _REGISTER_UNIT else 0


def check(program: Program, config: Config) -> Iterator[Finding]:
    """One finding for each generated kernel that spills."""
    for p in program.passes:
        if p.name not in ("compiled", "imported"):
            continue
        total = step_ns(p, program.device)
        groups: dict[tuple[object, ...], list[Kernel]] = defaultdict(list)
        for kernel in p.kernels:
            generated = kernel.graph is not None or kernel.name.startswith("triton_")
            if generated and (spilled_bytes(kernel) or 0) >= _LEAST_BYTES:
                groups[(kernel.graph, kernel.name)].append(kernel)
        for (graph, _), group in groups.items():
            first = group[0]
            times = [kernel_ns(k, program.device) for k in group]
            taken = sum(t for t in times if t is not None)
            share = taken / total if total else None
            # Bound by its launch: what it spills comes from L1 while nothing waits for it.
            tiny = bool(taken) and taken / len(group) < config.thresholds.small_kernel_ns
            yield Finding(
                rule=CODE,
                pass_name=p.name,
                severity="info" if (share is not None and share < 0.01) or tiny else "warning",
                message=f"{short_label(first.name)} keeps {spilled_bytes(first)} bytes a thread in local memory "
                f"({first.registers or '?'} registers, {counted(len(group), 'launch', 'launches')} a step"
                + (f", {human_time(taken)}" if taken else "")
                + f"): {short(first.op_names)}",
                ops=first.op_names,
                kernel_ids=tuple(k.id for k in group),
                location=first.location,
                reason="more values live at once than a thread has registers for",
                remedy="split the fused region, or turn off mixed-order reductions for it",
                confidence="high" if first.spill_bytes is not None else "medium",
                evidence={"spill_bytes": spilled_bytes(first), "registers": first.registers, "share_of_step": share},
                graph=None if graph is None else str(graph),
                key=first.phase,
            )
