"""Memory-bound stage tied to a compute-bound one, slower than apart.

What: a Triton matmul template with elementwise work fused in takes longer than the matmul and that work would take
apart, each at its own limit.

Why it costs: the registers and loads of the elementwise work slow the matmul's inner loop down, and work on an operand
(a prologue) is done again for every tile of the result; two kernels would each run at their roof.

How it is measured: the kernel's measured time against the sum of two: the same matmul by itself, as the eager pass
measured it (the slowest with as many FLOPs and a result of the same shape), else at the attainable FLOP rate (0.7 of
the datasheet's); and the tensors of the elementwise work moved once more at the attainable bandwidth. Without measured
times nothing is said.

When it is wrong: where the eager pass has no such matmul, small or odd shapes reach less than 0.7 of the rate by
themselves.

What to do: torch._inductor.config.epilogue_fusion = False (or prologue_fusion, for work on an operand) for this
graph, or torch._inductor.config.benchmark_epilogue_fusion = True so that Inductor measures both.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from fusionaudit.config import Config
from fusionaudit.device import Device
from fusionaudit.findings import Finding
from fusionaudit.program.flops import flops
from fusionaudit.program.kernel_names import short_label
from fusionaudit.program.model import Kernel, Program
from fusionaudit.rules.judging import human_time, kernel_ns, short, step_ns, worth
from fusionaudit.rules.library_ops import roots

CODE = "FA303"
TITLE = "memory-bound stage tied to a compute-bound one, slower than apart"

_MATMULS = {"mm", "addmm", "bmm", "baddbmm", "convolution", "_scaled_mm"}
_MARGIN = 1.1


def matmul_ns(program: Program, kernel: Kernel) -> tuple[int | None, bool]:
    """Time of the kernel's matmul by itself and whether that was measured (the eager pass's slowest such matmul)."""
    eager, counted = program.get("eager"), flops(kernel)
    results = {t.shape for t in kernel.writes}
    measured = [
        k.duration_ns
        for k in (eager.kernels if eager is not None and counted else ())
        if k.category in ("matmul", "convolution") and k.time_basis == "measured" and k.duration_ns is not None
        and flops(k) == counted and results & {t.shape for t in k.writes}
    ]  # fmt: skip
    if measured:
        return max(measured), True
    return kernel_ns(replace(kernel, duration_ns=None, category="matmul"), program.device), False


def elementwise_ns(kernel: Kernel, device: Device | None) -> int | None:
    """Modelled time of the elementwise work as a kernel of its own: the largest tensor read and written once more."""
    if device is None or not kernel.writes:
        return None
    # Two of the reads are the matmul's operands; what else has the result's shape belongs to the epilogue.
    others = max(0, len(kernel.reads) - 2)
    extra = sum([t.nbytes or 0 for t in kernel.reads if t.shape == kernel.writes[0].shape][:others])
    moved = device.transfer_ns(2 * max(t.nbytes or 0 for t in (*kernel.reads, *kernel.writes)) + extra)
    return None if moved is None else max(moved, device.launch_ns)


def check(program: Program, config: Config) -> Iterator[Finding]:
    """One finding for each fused template that is slower than its parts."""
    for p in program.passes:
        if p.name not in ("compiled", "imported") or step_ns(p, program.device) is None:
            continue
        for kernel in p.kernels:
            names = set(roots(kernel.op_names))
            if kernel.category != "template" or kernel.time_basis != "measured" or not names - _MATMULS:
                continue
            alone, measured = matmul_ns(program, kernel)
            rest = elementwise_ns(kernel, program.device)
            taken = kernel.duration_ns or 0
            if alone is None or rest is None or taken <= _MARGIN * (alone + rest):
                continue
            apart = alone + rest
            source = "as in the eager pass" if measured else "modelled"
            judged = worth(program, p, config, saving_ns=taken - apart, avoidable_bytes=None)
            yield Finding(
                rule=CODE,
                pass_name=p.name,
                severity=judged.severity,
                message=f"{short_label(kernel.name)} ({short(kernel.op_names)}) takes {human_time(taken)}; apart, the "
                f"matmul ({human_time(alone)}, {source}) and the rest ({human_time(rest)}) would take less",
                ops=kernel.op_names,
                kernel_ids=(kernel.id,),
                location=kernel.location,
                saving_ns=taken - apart,
                basis="modelled",
                remedy="set torch._inductor.config.benchmark_epilogue_fusion = True, or epilogue_fusion = False here "
                "(prologue_fusion where the work is on an operand)",
                confidence="medium" if measured else "low",
                evidence={"apart_ns": apart, "fused_ns": taken, "matmul_measured": measured},
                graph=kernel.graph,
                key=kernel.phase,
            )
