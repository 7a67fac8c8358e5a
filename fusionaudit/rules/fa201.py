"""Launch-bound: the GPU waits between short kernels; CUDA graph candidate.

What: the step has many short kernels, and the host cannot launch them as fast as the GPU finishes them.

Why it costs: a launch takes the host 2 to 3 us (more in eager PyTorch, 5 to 10 with dispatch); kernels of 1 to 2 us
leave the GPU idle in between. A CUDA graph launches the whole step at once.

How it is measured: where there is a clean pass (no recorder; an import with op ranges is not clean), from the gaps
between its kernels: what a graph would save is the idle time of the step less 1 us for each launch, with the host
waits left in. Without a GPU it is predicted: launches times the launch cost against the modelled time of the kernels.
Steps of fewer than 50 launches never count; where the GPU is idle in one all the same, a note says so.

When it is wrong: if the data loader or Python between steps is the slow part, a graph of the step does not help.
Shapes that change each step need one graph each.

What to do: torch.compile(mode="reduce-overhead"), or torch.cuda.graph around the step; use foreach and fused forms;
fuse (FA101, FA106).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from fusionaudit.config import Config
from fusionaudit.figures import counted, launched
from fusionaudit.findings import Basis, Finding, Note
from fusionaudit.program.model import Kernel, Pass, Program
from fusionaudit.rules.judging import compiles_itself, human_time, step_ns

CODE = "FA201"
TITLE = "launch-bound: the GPU waits between short kernels"

_GRAPH_NODE_NS = 1000
"""What a node of a replayed CUDA graph still costs between kernels (tiny_graph on the H200: 0.9 to 1.1 us)."""
_IDLE_SHARE = 0.4
"""Part of the step in which the GPU has nothing to do, from which on the step counts as bound by launches."""


def check(program: Program, config: Config) -> Iterator[Finding]:
    """At most one finding for the eager and one for the compiled pass; clean passes speak for them where there are."""
    for name, measured_name in (("eager", "clean_eager"), ("compiled", "clean"), ("imported", "imported")):
        p = program.get(name)
        if p is None or len(p.kernels) < config.thresholds.many_launches:
            continue
        clean = program.get(measured_name)
        saving, idle, step, basis = _measured(clean) if clean is not None else (None, None, None, None)
        if saving is None and p.engine == "deviceless":
            saving, idle, step, basis = _predicted(program, p)
        if saving is None or not step or idle is None or idle < _IDLE_SHARE * step:
            continue
        away = name == "eager" and compiles_itself(program)
        # A step that the host reads from in the middle cannot be one graph: FA204 comes first.
        synced = name != "imported" and len(p.syncs) > 1
        whole = p.steps == 0
        ranged = name == "imported" and bool(p.ops)
        replayed = sum(k.replayed for k in p.kernels) * 2 > len(p.kernels)
        copies = sum(k.category in ("memcpy", "memset") for k in p.kernels)
        place = Counter(k.location for k in p.kernels if k.location is not None).most_common(1)
        yield Finding(
            rule=CODE,
            pass_name=p.name,
            severity="info" if away or replayed or ranged or synced or whole else "warning",
            message=f"{launched(len(p.kernels) - copies, copies)} a step keep the GPU busy for "
            f"{human_time(step - idle)} of {human_time(step)}; a CUDA graph would save about {human_time(saving)}",
            kernel_ids=tuple(k.id for k in p.kernels),
            location=place[0][0] if place else None,
            saving_ns=saving,
            basis=basis,
            reason=_reason(away, ranged, synced, whole),
            remedy='torch.compile(mode="reduce-overhead") or torch.cuda.graph around the step; fuse small kernels',
            confidence="low" if ranged else "high" if basis == "modelled" else "medium",
            evidence={"launches": len(p.kernels), "idle_ns": idle, "step_ns": step},
        )


def graph_saving(program: Program, p: Pass, kernels: Sequence[Kernel]) -> tuple[int | None, Basis | None]:
    """What these launches of the compiled pass would cost less in a CUDA graph: by the gaps of the clean pass, each
    launch its share; without one, by the model."""
    clean = program.get("clean")
    if clean is not None and p.kernels:
        saving, _, _, basis = _measured(clean)
        return (None, None) if saving is None else (saving * len(kernels) // len(p.kernels), basis)
    if p.engine != "deviceless":
        return None, None
    saving, _, _, basis = _predicted(program, replace(p, kernels=tuple(kernels)))
    return saving, basis


def idle_notes(program: Program, config: Config) -> tuple[Note, ...]:
    """Notes on passes that ran undisturbed and left the GPU idle with too few launches to be bound by them."""
    out = []
    for p in program.passes:
        undisturbed = p.name.startswith("clean") or (p.name.startswith("imported") and not p.ops)
        few = 0 < len(p.kernels) < config.thresholds.many_launches
        _, idle, step, _ = _measured(p)
        if not undisturbed or not few or not p.steps or not step or idle is None or idle < _IDLE_SHARE * step:
            continue
        text = (
            f"{p.name}: the GPU has nothing to do for {human_time(idle)} of the {human_time(step)} of a step, with "
            f"{counted(len(p.kernels), 'launch', 'launches')} in it: too few to be bound by them (FA201 counts from "
            f"{config.thresholds.many_launches}), so the host is busy with something that is not recorded here"
        )
        remedy = (
            f"seen in {counted(p.steps, 'step')}: run more, since the first ones still warm up; then profile Python"
        )
        out.append(Note(kind="idle", text=text, remedy=remedy, pass_name=p.name))
    return tuple(out)


def _reason(away: bool, ranged: bool, synced: bool, whole: bool) -> str | None:
    if away:
        return "the step is compiled in the script; this is its eager form"
    if synced:
        return "the host reads from the device within the step (FA204): as it is, it cannot be one graph"
    if whole:
        return "no repeating step was found: what comes before the steps is counted in"
    return "op ranges were recorded, which slow the host down: gaps are too long" if ranged else None


def _measured(p: Pass) -> tuple[int | None, int | None, int | None, Basis | None]:
    """(saving, idle, step) from gaps; waits of the host for the GPU are no launch cost and stay."""
    if p.idle_ns is None or not p.step_ns:
        return None, None, None, None
    waits = sum(1 for s in p.syncs)
    idle = max(0, p.idle_ns - waits * 2 * _GRAPH_NODE_NS)
    return max(0, idle - _GRAPH_NODE_NS * len(p.kernels)), idle, p.step_ns, "modelled"


def _predicted(program: Program, p: Pass) -> tuple[int | None, int | None, int | None, Basis | None]:
    """The same from a model: the device needs the kernels' bytes, the host one launch for each."""
    device = program.device
    if device is None:
        return None, None, None, None
    total = step_ns(p, device)
    busy = sum(device.transfer_ns(k.global_bytes) or 0 for k in p.kernels)
    long = sum(1 for k in p.kernels if (device.transfer_ns(k.global_bytes) or 0) > device.launch_ns)
    if total is None or long * 2 > len(p.kernels):
        return None, None, None, None
    # Matmuls: step_ns has their modelled time, bytes alone would call them short.
    busy = max(busy, total - device.launch_ns * len(p.kernels))
    step = max(device.launch_ns * len(p.kernels), busy)
    return max(0, step - busy - _GRAPH_NODE_NS * len(p.kernels)), step - busy, step, "predicted"
