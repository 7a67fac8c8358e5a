"""Whether a Program can support a verdict at all: silence about what nobody could look into is not "all fine"."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from fusionaudit.device import Device
from fusionaudit.findings import Note
from fusionaudit.inductor.model import InductorLog
from fusionaudit.program.costs import category
from fusionaudit.program.kernel_names import short_label
from fusionaudit.program.model import Kernel, Pass, Program

_MOST = 0.5
"""Above this share of the step in kernels that nobody can look into, no rule had anything to judge."""
_WORTH = 0.05
"""The share of a step from which a finding is worth a warning (``Thresholds.min_time_share``): Inductor's kernels
without their log may hide one."""
_FASTER_THAN_MEMORY = 1.5
"""No kernel moves more than the cache holds at 1.5 times the memory's peak: its bytes are those of another run."""

_LOG_REMEDY = "give --inductor-log FILE (stderr of the same run with TORCH_LOGS=output_code,fusion and cold caches)"
_LIBRARY = {"matmul", "convolution", "attention", "template", "sort", "collective"}
_COPIES = ("memcpy", "memset")
_MADE_FOR = re.compile(r"DeviceProperties\([^()]*?multi_processor_count=(?P<sms>\d+), cc=(?P<cc>\d+)")


def judging_notes(program: Program) -> tuple[Note, ...]:
    """Blocking notes where the kernels of a pass say too little; none where the capture says so already."""
    if any(n.blocks for n in (*program.notes, *(n for p in program.passes for n in p.notes))):
        return ()
    judged = [p for p in program.passes if not p.name.startswith("clean")]
    if not any(p.kernels for p in judged):
        text = "nothing to judge: no pass recorded a kernel"
        return (Note(kind="no-kernels", text=text, blocks=True, remedy="record a run that computes on the GPU"),)
    return tuple(note for p in judged for note in _pass_notes(p))


def _pass_notes(p: Pass) -> list[Note]:
    work = [k for k in p.kernels if k.category not in _COPIES]
    if p.kernels and not work:
        text = f"{p.name}: nothing but copies and fills ran ({len(p.kernels)}): there is no kernel to judge"
        remedy = "record a run that computes on the GPU"
        return [Note(kind="only-copies", text=text, blocks=True, remedy=remedy, pass_name=p.name)]
    kinds = {op.id: category(op) for op in p.ops}
    dark = [k for k in work if not _known(k, kinds)]
    share = _share(dark, work)
    if share <= _MOST:
        return _flow_notes(p, [k for k in work if k.graph is None and k.ops], work)
    names = sorted({k.name for k in dark})
    text = (
        f"{p.name}: {share:.0%} of the step is in kernels that cannot be looked into (bytes and ops not known): "
        + ", ".join(short_label(n, 40) for n in names[:3])
        + (" ..." if len(names) > 3 else "")
    )
    remedy = "custom and hand-written kernels are opaque: judge them with a profiler such as Nsight Compute"
    if p.name.startswith("imported"):
        remedy = "record it with op ranges and shapes (fusionaudit run, or emit_nvtx(record_shapes=True)) and its log"
    return [Note(kind="unknown-kernels", text=text, blocks=True, remedy=remedy, pass_name=p.name)]


def _flow_notes(p: Pass, loose: Sequence[Kernel], work: Sequence[Kernel]) -> list[Note]:
    """Shapes alone do not say which op reads what another wrote: torch.profiler's traces have no more than that."""
    if not p.name.startswith("imported") or len(loose) < 2 or _share(loose, work) <= _MOST:
        return []
    written = {t.storage: k.id for k in p.kernels for t in k.writes if t.storage is not None}
    if any(t.storage and written.get(t.storage, k.id) != k.id for k in p.kernels for t in k.reads):
        return []
    text = f"{p.name}: the recording does not say which op reads what another wrote: chains cannot be judged"
    remedy = "record it with fusionaudit run, or under nsys with emit_nvtx(record_shapes=True)"
    return [Note(kind="no-dataflow", text=text, blocks=True, remedy=remedy, pass_name=p.name)]


def _known(kernel: Kernel, kinds: Mapping[int, str | None]) -> bool:
    """Something can be said about this kernel: its bytes, its graph, or an op of a known kind."""
    if kernel.global_bytes is not None or kernel.graph is not None or kernel.category in _LIBRARY:
        return True
    return any(kinds.get(i) not in (None, "opaque") for i in kernel.ops)


def _share(some: Sequence[Kernel], of: Sequence[Kernel]) -> float:
    """Share of the time; of the launches where a time is not known."""
    if not of:
        return 0.0
    times = [k.duration_ns for k in of]
    total = sum(t for t in times if t is not None)
    if None in times or not total:
        return len(some) / len(of)
    return sum(k.duration_ns or 0 for k in some) / total


def _generated(kernel: Kernel) -> bool:
    return kernel.name.startswith("triton_")


def log_notes(p: Pass, log: InductorLog, file: str, device: Device | None) -> list[Note]:
    """How an imported pass and the log that was given with it (or none: no graphs) fit together."""
    work = [k for k in p.kernels if k.category not in _COPIES]
    generated = [k for k in work if _generated(k)]
    if not generated:
        return []
    if not log.graphs:
        share = _share(generated, work)
        text = f"{file}: kernels that torch.compile made take {share:.0%} of the step, and no Inductor log says what"
        text += " they hold"
        return [Note(kind="missing-log", text=text, remedy=_LOG_REMEDY, blocks=share >= _WORTH)]
    strange = sorted({k.name for k in generated} - {c.target for g in log.graphs for c in g.calls})
    problem = None
    if not any(k.graph for k in generated):
        problem = "no kernel fits any graph of the log"
    elif strange:
        problem = f"the log does not have {strange[0]}" + (f" and {len(strange) - 1} more" if len(strange) > 1 else "")
    elif device is not None:
        fast = next((k for k in generated if _impossible(k, device)), None)
        if fast is not None:
            problem = f"by the log's sizes {fast.name} would be faster than the GPU's memory"
    if problem is None and device is not None:
        problem = _other_gpu(log, device)
    if problem is None:
        return []
    text = f"{file}: the log is of another run: {problem}"
    return [Note(kind="log-mismatch", text=text, remedy=_LOG_REMEDY, blocks=True)]


def _other_gpu(log: InductorLog, device: Device) -> str | None:
    """Inductor writes into each kernel for what GPU it made it: which kernels, and what they hold, depends on it."""
    found = next((m for g in log.graphs for k in g.kernels if (m := _MADE_FOR.search(k.source))), None)
    if found is None:
        return None
    sms, capability = int(found["sms"]), (int(found["cc"]) // 10, int(found["cc"]) % 10)
    same = device.compute_capability in (None, capability) and device.sm_count in (None, sms)
    if same:
        return None
    words = "sm_{}{} with {} SMs"
    ran = words.format(*(device.compute_capability or ("?", "?")), device.sm_count or "?")
    return f"its kernels were made for {words.format(*capability, sms)}, and these ran on {device.name} ({ran})"


def _impossible(kernel: Kernel, device: Device) -> bool:
    moved, time, peak = kernel.global_bytes, kernel.duration_ns, device.peak_bandwidth_bytes_per_s
    if moved is None or not time or not peak or moved <= 2 * (device.l2_bytes or 0):
        return False
    return moved / time * 1e9 > _FASTER_THAN_MEMORY * peak
