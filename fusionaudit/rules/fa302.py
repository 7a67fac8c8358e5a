"""Fused too much: registers or shared memory cap occupancy.

What: a generated memory-bound kernel uses so many registers or so much shared memory that fewer than a quarter of the
SM's threads are resident, while the launch has more blocks than that.

Why it costs: a memory-bound kernel hides latency with threads that wait; with few of them the memory is not kept
busy.

How it is measured: occupancy from ptxas figures (registers, shared memory, warps at the kernel's configuration) or
from the trace's launch. It is a warning only where the kernel was also measured below 60 % of the attainable
bandwidth: low occupancy alone does not make a kernel slow, so without a GPU it is information.

When it is wrong: kernels with much work in flight a thread (wide loads, unrolled loops) run well at low occupancy.

What to do: split the fused region, or try smaller blocks (torch._inductor.config.max_autotune_pointwise).
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from fusionaudit.config import Config
from fusionaudit.device import Device
from fusionaudit.findings import Finding
from fusionaudit.program.kernel_names import short_label
from fusionaudit.program.model import Kernel, Program
from fusionaudit.rules.judging import short, step_ns

CODE = "FA302"
TITLE = "fused too much: registers or shared memory cap occupancy"

_SLOW = 0.6
_LEAST_NS = 10_000
_GENERATED = ("pointwise", "reduction", "persistent_reduction", "scan")


def occupancy(kernel: Kernel, device: Device | None) -> float | None:
    """Resident threads of an SM as a share of its maximum, from the figures that are known."""
    if kernel.occupancy is not None:
        return kernel.occupancy
    if device is None or device.threads_per_sm is None or kernel.block is None:
        return None
    threads = kernel.block[0] * kernel.block[1] * kernel.block[2]
    blocks = device.threads_per_sm // max(1, threads)
    if device.blocks_per_sm:
        blocks = min(blocks, device.blocks_per_sm)
    if kernel.registers and device.registers_per_sm:
        blocks = min(blocks, device.registers_per_sm // max(1, kernel.registers * threads))
    if kernel.shared_memory_bytes and device.shared_bytes_per_sm:
        blocks = min(blocks, device.shared_bytes_per_sm // kernel.shared_memory_bytes)
    return blocks * threads / device.threads_per_sm


def all_resident(kernel: Kernel, device: Device | None, share: float) -> bool:
    """All blocks of the launch are resident at once at that occupancy: nothing waits for a register."""
    if device is None or None in (kernel.grid, kernel.block, device.threads_per_sm, device.sm_count):
        return False
    threads = math.prod(kernel.grid or ()) * math.prod(kernel.block or ())
    return threads <= share * (device.threads_per_sm or 0) * (device.sm_count or 0)


def bandwidth_share(kernel: Kernel, device: Device | None) -> float | None:
    """Measured bytes per time as a share of what a copy reaches; ``None`` unless both are known and measured."""
    if device is None or kernel.time_basis != "measured" or not kernel.duration_ns or kernel.global_bytes is None:
        return None
    attainable = device.attainable_bandwidth
    return None if attainable is None else kernel.global_bytes / (kernel.duration_ns * 1e-9) / attainable


def check(program: Program, config: Config) -> Iterator[Finding]:
    """One finding for each generated kernel with few resident threads."""
    for p in program.passes:
        if p.name not in ("compiled", "imported"):
            continue
        seen: set[tuple[str | None, str]] = set()
        total = step_ns(p, program.device)
        for kernel in p.kernels:
            if kernel.category not in _GENERATED or not (kernel.graph or kernel.name.startswith("triton_")):
                continue
            found = occupancy(kernel, program.device)
            if found is None or found >= config.thresholds.low_occupancy or (kernel.graph, kernel.name) in seen:
                continue
            if all_resident(kernel, program.device, found):
                continue
            seen.add((kernel.graph, kernel.name))
            share = bandwidth_share(kernel, program.device)
            long = (kernel.duration_ns or 0) >= _LEAST_NS and (not total or (kernel.duration_ns or 0) >= 0.03 * total)
            slow = share is not None and share < _SLOW and long
            yield Finding(
                rule=CODE,
                pass_name=p.name,
                severity="warning" if slow else "info",
                message=f"{short_label(kernel.name)} keeps {found:.0%} of an SM's threads resident "
                f"({kernel.registers or '?'} registers, {kernel.shared_memory_bytes or 0} B shared)"
                + (f" and reaches {share:.0%} of a copy's bandwidth" if share is not None else "")
                + f": {short(kernel.op_names)}",
                ops=kernel.op_names,
                kernel_ids=(kernel.id,),
                location=kernel.location,
                reason="registers or shared memory of one block leave room for few blocks",
                remedy="split the fused region or autotune its block sizes",
                confidence="medium",
                evidence={"occupancy": found, "bandwidth_share": share},
                graph=kernel.graph,
                key=kernel.phase,
            )
