"""Kernel far under the bandwidth that its bytes need.

What: a kernel that only moves memory takes far longer than its bytes at the bandwidth that a plain copy reaches.

Why it costs: the time between is lost: uncoalesced access, too few threads (a softmax over the outer dimension took
3.9 ms for 67 MB: 17 GB/s), branches in the loop, atomics on one address.

How it is measured: measured duration against modelled bytes; below 40 % of a copy, longer than 20 us, and at least 3
% of the step. Without measured times nothing is said.

When it is wrong: kernels that compute a lot for each element (erf chains, random numbers), and gathers, whose sectors
are larger than the rows that they use.

What to do: reduce over the inner dimension (transpose once), materialise a many-way cat before the reduction, sort
indices before a scatter; or torch.compile where the kernel is ATen's.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from fusionaudit.config import Config
from fusionaudit.findings import Finding
from fusionaudit.program.kernel_names import short_label
from fusionaudit.program.model import MEMORY_BOUND, Kernel, Program
from fusionaudit.rules.fa302 import bandwidth_share
from fusionaudit.rules.judging import compiles_itself, human_bytes, human_time, short, worth

CODE = "FA304"
TITLE = "kernel far under the bandwidth that its bytes need"

_LEAST_NS = 20_000
_NOT_JUDGED = {"memcpy", "memset", "random"}


def check(program: Program, config: Config) -> Iterator[Finding]:
    """One finding for each kernel (launches of one name and line together)."""
    device = program.device
    for p in program.passes:
        if p.name not in ("eager", "compiled", "imported") or device is None:
            continue
        groups: dict[tuple[object, ...], list[Kernel]] = defaultdict(list)
        for kernel in p.kernels:
            if kernel.category not in MEMORY_BOUND or kernel.category in _NOT_JUDGED:
                continue
            share = bandwidth_share(kernel, device)
            if share is None or share >= config.thresholds.low_bandwidth or (kernel.duration_ns or 0) < _LEAST_NS:
                continue
            groups[(kernel.name, kernel.op_names, kernel.graph)].append(kernel)
        for group in groups.values():
            first = group[0]
            taken = sum(k.duration_ns or 0 for k in group)
            needed = sum(device.transfer_ns(k.global_bytes) or 0 for k in group)
            judged = worth(program, p, config, saving_ns=taken - needed, avoidable_bytes=None)
            share = needed / taken if taken else 0.0
            away = p.name == "eager" and compiles_itself(program)
            yield Finding(
                rule=CODE,
                pass_name=p.name,
                severity="info" if away else judged.severity,
                message=f"{short_label(first.name)} ({short(first.op_names)}) takes {human_time(taken)} for "
                f"{human_bytes(sum(k.global_bytes or 0 for k in group))}: {share:.0%} of what a copy reaches",
                ops=first.op_names,
                kernel_ids=tuple(k.id for k in group),
                location=first.location,
                saving_ns=taken - needed,
                basis="modelled",
                reason="the step is compiled in the script; this is its eager form" if away else None,
                remedy="look at its access pattern: inner dimension, coalescing, atomics, branches",
                confidence="medium",
                evidence={"bandwidth_share": round(share, 3), "launches": len(group), "share_of_step": judged.share},
                graph=first.graph,
                key=first.phase,
            )
