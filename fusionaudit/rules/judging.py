"""How much a finding is worth: modelled times, savings, and the severity that follows from them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fusionaudit.config import Config
from fusionaudit.device import Device
from fusionaudit.figures import scaled_bytes, scaled_ns
from fusionaudit.findings import Basis, Location, Severity
from fusionaudit.program.costs import sum_known
from fusionaudit.program.flops import flops
from fusionaudit.program.kept import kept
from fusionaudit.program.model import Kernel, Pass, Program
from fusionaudit.trace.schema import Op

_HEADS = ("matmul", "convolution")
_ATTAINABLE_FLOPS = 0.7
"""Share of the datasheet's FLOP rate that large cuBLAS matmuls reach (nvjet in the H200 captures: 0.6 to 0.8)."""
_FASTEST_KERNEL_NS = 1200
"""The shortest kernels in the H200 captures take 1.1 to 1.3 us on the device however little they do."""
_BETWEEN_KERNELS_NS = 900
"""Idle time of the GPU between two kernels of a stream that are both queued, at least: 192 tiny kernels take 471 us on
an H200 with the host far ahead, 295 us as one CUDA graph (tests/data/h200/bench.json, work_queue)."""


@dataclass(frozen=True, kw_only=True)
class Worth:
    """``saving_ns`` per step with its basis (``None``: not known), its share of the step, and the severity.

    ``share`` is ``None`` where a kernel of the step has no time of its own: a share of what is not known says nothing.
    """

    severity: Severity
    saving_ns: int | None
    basis: Basis | None
    share: float | None = None


@kept
def kernels_by_id(p: Pass) -> dict[int, Kernel]:
    """The kernels of a pass by id."""
    return {k.id: k for k in p.kernels}


def kernel_ns(kernel: Kernel, device: Device | None) -> int | None:
    """The kernel's time: as the pass has it, else for a matmul a model (bytes or FLOPs, whatever takes longer)."""
    if kernel.duration_ns is not None:
        return kernel.duration_ns
    if device is None:
        return None
    moved = device.transfer_ns(kernel.global_bytes)
    if kernel.category not in ("matmul", "convolution", "template", "attention"):
        return None if moved is None else max(moved, device.launch_ns)
    counted = flops(kernel)
    half = any(t.dtype in ("bfloat16", "float16") for t in kernel.reads)
    rates = device.peak_flops_per_s or {}
    rate = rates.get("bfloat16" if half else "float32") or rates.get("float16" if half else "tf32")
    computed = round(counted / (rate * _ATTAINABLE_FLOPS) * 1e9) if counted and rate else None
    known = [t for t in (moved, computed) if t is not None]
    return max((*known, device.launch_ns)) if known else None


def step_ns(p: Pass, device: Device | None) -> int | None:
    """GPU time of the step from all kernels that have one; ``None`` if none has."""
    times = [t for t in (kernel_ns(k, device) for k in p.kernels) if t is not None]
    return sum(times) if times else None


def is_launch_bound(p: Pass, device: Device | None) -> bool:
    """The launches of the step take the host longer than the kernels take the device."""
    busy = step_ns(p, device)
    return device is not None and busy is not None and busy < 1.5 * device.launch_ns * len(p.kernels)


def pass_basis(p: Pass) -> Basis:
    """Basis of a saving in this pass: durations were measured and the saving is modelled from them, or all is
    predicted."""
    return "predicted" if p.engine == "deviceless" else "modelled"


def merged_ns(
    p: Pass, device: Device | None, kernels: Sequence[Kernel], minimum_bytes: int | None, left: int = 1
) -> int | None:
    """Time of ``left`` kernels in place of these: their bytes at the attainable bandwidth, no less than so many of the
    smallest."""
    if device is None:
        return None
    moved = device.transfer_ns(minimum_bytes)
    if moved is None:
        return None
    if p.engine == "deviceless":
        return max(moved, left * device.launch_ns)
    shortest = min((k.duration_ns for k in kernels if k.duration_ns is not None), default=_FASTEST_KERNEL_NS)
    return max(moved, left * min(shortest, _FASTEST_KERNEL_NS))


def worth(program: Program, p: Pass, config: Config, *, saving_ns: int | None, avoidable_bytes: int | None) -> Worth:
    """Severity by the share of the step's time that is saved; where no time is known, by the share of its bytes."""
    limits = config.thresholds
    total = step_ns(p, program.device)
    basis: Basis | None = None if saving_ns is None else pass_basis(p)
    if saving_ns is not None and total:
        share = saving_ns / total
        return Worth(
            severity="warning" if share >= limits.min_time_share else "info",
            saving_ns=saving_ns,
            basis=basis,
            share=round(share, 4) if p.gpu_time_ns is not None else None,
        )
    moved = p.global_bytes
    large = (
        avoidable_bytes is not None
        and avoidable_bytes >= limits.min_bytes
        and (not moved or avoidable_bytes >= limits.min_byte_share * moved)
    )
    return Worth(severity="warning" if large else "info", saving_ns=saving_ns, basis=basis)


def fused_saving_ns(
    program: Program,
    p: Pass,
    kernel_ids: Iterable[int],
    minimum_bytes: int | None,
    avoidable_bytes: int | None,
    left: int = 1,
) -> int | None:
    """Time saved where ``left`` kernels take the place of these; from bytes alone where their times are not known."""
    found = kernels_by_id(p)
    kernels = [found[i] for i in dict.fromkeys(kernel_ids) if i in found]
    if any(k.category in _HEADS for k in kernels):
        return _epilogue_saving_ns(program, p, kernels, minimum_bytes, avoidable_bytes)
    times = [kernel_ns(k, program.device) for k in kernels]
    after = merged_ns(p, program.device, kernels, minimum_bytes, left)
    if not kernels or after is None or any(t is None for t in times):
        return None if program.device is None else program.device.transfer_ns(avoidable_bytes)
    return max(0, sum(t for t in times if t is not None) - after)


def _epilogue_saving_ns(
    program: Program, p: Pass, kernels: Sequence[Kernel], minimum_bytes: int | None, avoidable_bytes: int | None
) -> int | None:
    """The larger of what two forms save, in both of which the matmul keeps its time: an epilogue (the bytes in between
    are not moved), and one kernel behind the matmul. No form saves more than the kernels behind the matmul take now:
    what they read may have come from the L2 cache, faster than memory gives it."""
    device = program.device
    if device is None:
        return None
    heads = [k for k in kernels if k.category in _HEADS]
    behind = [k for k in kernels if k.category not in (*_HEADS, "memset")]
    found = [device.transfer_ns(avoidable_bytes)]
    now = sum_known(kernel_ns(k, device) for k in behind)
    operands = sum_known(t.nbytes for k in heads for t in k.reads)
    results = sum_known(t.nbytes for k in heads for t in k.writes)
    if None not in (now, minimum_bytes, operands, results) and len(behind) > 1:
        left = max(0, (minimum_bytes or 0) - (operands or 0)) + (results or 0)
        after = merged_ns(p, device, behind, left)
        found.append(None if after is None else (now or 0) - after)
    known = [t for t in found if t is not None]
    return None if not known else max(0, max(known) if now is None else min(max(known), now))


def between_ns(p: Pass, kernel_ids: Iterable[int], left: int = 1) -> int:
    """Idle time between these kernels that goes where ``left`` of them stay. It comes on top of kernels' durations.

    Memsets do not count (the library's own, fused kernels may need one too); nor does a deviceless pass, where a
    kernel's time holds its launch already.
    """
    if p.engine == "deviceless":
        return 0
    found = kernels_by_id(p)
    launches = sum(i in found and found[i].category != "memset" for i in set(kernel_ids))
    return _BETWEEN_KERNELS_NS * max(0, launches - left)


def compiles_itself(program: Program) -> bool:
    """True where the script calls torch.compile on its own: graphs ran, and the capture did not compile for it."""
    if program.environment.get("uses_compile"):
        return True
    compiled = program.get("compiled")
    if compiled is None or not any(k.graph is not None for k in compiled.kernels):
        return False
    notes = [*program.notes, *compiled.notes]
    return not any(n.kind == "compiled-for-you" for n in notes)


def compiled_away(program: Program, p: Pass, ops: Sequence[Op]) -> bool:
    """In the eager pass of a script that compiles itself: these ops run inside its compiled graphs anyway.

    What is left of them there is judged in the compiled pass (FA105, FA108, FA111, FA112).
    """
    compiled = program.get("compiled")
    if p.name != "eager" or compiled is None or not compiles_itself(program) or not ops:
        return False
    loose = {(o.name, o.location and (o.location.file, o.location.line)) for o in compiled.ops}
    return not all((o.name, o.location and (o.location.file, o.location.line)) in loose for o in ops)


def human_bytes(count: int | None) -> str:
    """``1.07 GB``; decimal units, as datasheets and Nsight count."""
    return "an unknown number of bytes" if count is None else scaled_bytes(count)


def human_time(ns: int | None) -> str:
    """``12.3 us``; empty where not known."""
    return "" if ns is None else scaled_ns(ns)


def eager_line(program: Program, op_names: Iterable[str]) -> Location | None:
    """The one line on which the eager pass has all its ops of these names; ``None`` if there are several or none.

    For compiled kernels whose graph names no line of the user's (a module of torch, such as ``nn.Sequential``).
    """
    eager = program.get("eager")
    wanted = {".".join(name.split(".")[:2]) for name in op_names}
    found = {op.location for op in (eager.ops if eager is not None else ()) if op.base_name in wanted}
    return found.pop() if len(found) == 1 else None


def short_place(location: Location) -> str:
    """``model.py:12``."""
    return f"{location.file.rsplit('/', 1)[-1]}:{location.line}"


def short(ops: Iterable[str]) -> str:
    """Op names for a message: ``abs, sum``; repeats folded, at most eight names."""
    out: list[str] = []
    counts: list[int] = []
    for op in ops:
        name = op.split(".")[1] if "." in op else op
        if out and out[-1] == name:
            counts[-1] += 1
        else:
            out.append(name)
            counts.append(1)
    texts = [n if c == 1 else f"{n} x{c}" for n, c in zip(out, counts, strict=True)]
    return ", ".join(texts) if len(texts) <= 8 else ", ".join(texts[:7]) + f" and {len(texts) - 7} more"
