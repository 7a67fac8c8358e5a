"""Memory-bound stage tied to a compute-bound one, slower than apart.

What: a Triton matmul template with elementwise work fused in takes longer than the matmul and that work would take
apart, each at its own limit.

Why it costs: the epilogue's registers and loads slow the matmul's inner loop down; two kernels would each run at
their roof.

How it is measured: the kernel's measured time against the sum of the matmul at the attainable FLOP rate (0.7 of the
datasheet's) and the epilogue's extra tensors and the result moved once more at the attainable bandwidth. Without
measured times nothing is said.

When it is wrong: small or odd-shaped matmuls reach less than 0.7 of the rate by themselves.

What to do: torch._inductor.config.epilogue_fusion = False for this graph, or
torch._inductor.config.benchmark_epilogue_fusion = True so that Inductor measures both.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from fusionaudit.config import Config
from fusionaudit.device import Device
from fusionaudit.findings import Finding
from fusionaudit.program.kernel_names import short_label
from fusionaudit.program.model import Kernel, Program
from fusionaudit.rules.judging import human_time, kernel_ns, short, step_ns, worth
from fusionaudit.rules.library_ops import roots

CODE = "FA303"
TITLE = "memory-bound stage tied to a compute-bound one, slower than apart"

_MATMULS = {"mm", "addmm", "bmm", "baddbmm", "convolution", "_scaled_mm"}
_MARGIN = 1.1


def apart_ns(kernel: Kernel, device: Device | None) -> int | None:
    """Modelled time of the matmul and of its epilogue as kernels of their own."""
    if device is None or not kernel.writes:
        return None
    alone = kernel_ns(replace(kernel, duration_ns=None, category="matmul"), device)
    result = sum(t.nbytes or 0 for t in kernel.writes)
    # Two of the reads are the matmul's operands; what else has the result's shape belongs to the epilogue.
    others = max(0, len(kernel.reads) - 2)
    extra = sum([t.nbytes or 0 for t in kernel.reads if t.shape == kernel.writes[0].shape][:others])
    epilogue = device.transfer_ns(2 * result + extra)
    return None if alone is None or epilogue is None else alone + max(epilogue, device.launch_ns)


def check(program: Program, config: Config) -> Iterator[Finding]:
    """One finding for each fused template that is slower than its parts."""
    for p in program.passes:
        if p.name not in ("compiled", "imported") or step_ns(p, program.device) is None:
            continue
        for kernel in p.kernels:
            names = set(roots(kernel.op_names))
            if kernel.category != "template" or kernel.time_basis != "measured" or not names - _MATMULS:
                continue
            apart = apart_ns(kernel, program.device)
            taken = kernel.duration_ns or 0
            if apart is None or taken <= _MARGIN * apart:
                continue
            judged = worth(program, p, config, saving_ns=taken - apart, avoidable_bytes=None)
            yield Finding(
                rule=CODE,
                pass_name=p.name,
                severity=judged.severity,
                message=f"{short_label(kernel.name)} ({short(kernel.op_names)}) takes {human_time(taken)}; the matmul "
                f"and its epilogue apart would take about {human_time(apart)}",
                ops=kernel.op_names,
                kernel_ids=(kernel.id,),
                location=kernel.location,
                saving_ns=taken - apart,
                basis="modelled",
                remedy="set torch._inductor.config.benchmark_epilogue_fusion = True, or epilogue_fusion = False here",
                confidence="low",
                evidence={"apart_ns": apart, "fused_ns": taken},
                graph=kernel.graph,
                key=kernel.phase,
            )
