"""Host sync or copy inside the step.

What: the host reads a value from the device (.item(), float(tensor), .cpu(), printing, an `if` on a tensor, indexing
with a mask) or waits for it, in the middle of a step.

Why it costs: the host stops until everything launched so far is done, and the GPU then waits for the next launches:
some 10 to 50 us each time, more where the queue was deep. Nothing is fused across it and no CUDA graph can hold it.

How it is measured: the recorder sees the reads of device tensors, with their lines; CPU tensors do not count. One
read a step (a loss that is logged) is information; from two on each line that reads is a warning. The saving is a
model, 10 us for each wait: so long the GPU has nothing to do until new launches arrive (8 to 12 us in the H200
captures). What the host loses while it waits is not counted.

When it is wrong: a value that decides what is launched next has to be read; then one read for all decisions is best.

What to do: keep values on the device and read them every N steps; compare on the device and read once; use
torch.where instead of `if`; non_blocking=True copies to pinned memory.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import replace

from fusionaudit.config import Config
from fusionaudit.figures import times
from fusionaudit.findings import Finding
from fusionaudit.program.costs import sum_known
from fusionaudit.program.model import HostSync, Pass, Program
from fusionaudit.rules.judging import compiles_itself

CODE = "FA204"
TITLE = "host sync or copy inside the step"

_WAIT_NS = 10_000
"""Launch latency that the GPU waits after a sync until new work arrives: 8 to 12 us in the H200 captures."""

_WORDS = {
    "aten._local_scalar_dense": ".item(), or a tensor in a condition or a print",
    "aten._to_copy": "a copy to the host: .cpu(), .tolist() or .numpy()",
    "aten.copy_": "a copy to the host",
    "aten.index": "a mask as an index",
    "aten.index_put_": "a mask as an index",
    "aten.index_put": "a mask as an index",
    "aten.nonzero": "nonzero or argwhere",
    "aten._unique2": "unique",
    "aten.equal": "torch.equal",
    "cudaMemcpyAsync": "a copy",
    "cudaStreamSynchronize": "a wait for a stream",
    "cudaDeviceSynchronize": "a wait for the device",
}
"""What a script writes for the ops and calls that make the host wait."""


def check(program: Program, config: Config) -> Iterator[Finding]:
    """One finding for each line that syncs, in the pass that shows what the script itself does."""
    p = program.get("eager") or program.get("compiled") or program.get("clean") or program.get("imported")
    if p is None:
        return
    groups: dict[tuple[object, ...], list[HostSync]] = defaultdict(list)
    for sync in p.syncs:
        groups[(sync.location and (sync.location.file, sync.location.line),)].append(sync)
    total = sum(waits(g) for g in groups.values())
    compiled = program.get("compiled")
    left = (
        {s.location and (s.location.file, s.location.line) for s in compiled.syncs} if compiled is not None else set()
    )
    for (where,), group in groups.items():
        finding = _finding(p, group, total, where is not None)
        if p.name == "eager" and compiles_itself(program) and where not in left:
            reason = "gone in the compiled pass, which is what the script runs"
            finding = replace(finding, severity="info", reason=reason)
        yield finding


def waits(group: list[HostSync]) -> int:
    """How often the host waits: each op that reads is a wait; a trace of the runtime's calls (``cuda...``) shows one
    read as a copy and a synchronisation."""
    calls = Counter(s.name for s in group if s.name.startswith("cu"))
    return len(group) - calls.total() + max(calls.values(), default=0)


def _word(name: str) -> str:
    return _WORDS.get(".".join(name.split(".")[:2]), name.removeprefix("aten."))


def _finding(p: Pass, group: list[HostSync], total: int, located: bool) -> Finding:
    first = group[0]
    measured = sum_known(s.duration_ns for s in group)
    names = tuple(dict.fromkeys(s.name for s in group))
    moved = sum_known(s.bytes for s in group)
    many = total > 1 if located else total > 2
    what = ", ".join(dict.fromkeys(_word(n) for n in names[:3]))
    return Finding(
        rule=CODE,
        pass_name=p.name,
        severity="warning" if many and (located or p.name.startswith("imported")) else "info",
        message=f"the host waits for the GPU {times(waits(group))} a step here ({what}), {total} in the step",
        ops=names,
        location=first.location,
        saving_ns=_WAIT_NS * waits(group),
        basis="predicted" if p.engine == "deviceless" else "modelled",
        remedy="keep the value on the GPU, or read once every N steps",
        confidence="high" if located else "low",
        evidence={"syncs": waits(group), "wait_ns": measured, "bytes": moved},
    )
