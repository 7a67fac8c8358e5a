"""Check and time one finding: its recorded ops against every fused form of them there is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from fusionaudit.errors import AuditError
from fusionaudit.findings import Verdict, Verification
from fusionaudit.program.dataflow import Flow, Version, dataflow
from fusionaudit.program.model import Pass
from fusionaudit.tensors import Tensor
from fusionaudit.trace.schema import Op
from fusionaudit.verify.candidates import Versions, make_versions, words
from fusionaudit.verify.chain import ChainProgram
from fusionaudit.verify.chain_ops import build_chain
from fusionaudit.verify.chain_source import GeneratedKernel, generate
from fusionaudit.verify.check import Check, compare
from fusionaudit.verify.draws import with_given_draws
from fusionaudit.verify.epilogue import has_matmul
from fusionaudit.verify.generated import prepare
from fusionaudit.verify.op_words import SHAPE_ONLY, short_name
from fusionaudit.verify.replay import Replay, build_replay, call, draw_buffers, draws_anew
from fusionaudit.verify.timing import CLEAR_GAIN, Timing, first_line, interleaved


@dataclass(kw_only=True)
class Subject:
    """The ops of one finding with the tensors that leave them, and (if one could be made) their fused kernel."""

    ops: list[Op]
    outputs: list[Tensor]
    program: ChainProgram | None = None
    kernel: GeneratedKernel | None = None
    problem: str = ""
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def reduction_length(self) -> int:
        """Elements that one sum runs over, 1 without reductions."""
        if self.program is None or not self.program.reduced:
            return 1
        return math.prod(self.program.space[len(self.program.space) - self.program.reduced :])


def make_subject(all_ops: Sequence[Op], op_ids: Sequence[int], *, sm_count: int, saved: bool = True) -> Subject:
    """The subject of a finding; ``problem`` says why there is no fused kernel, if there is none.

    ``saved``: what only the backward reads is a result too. A library's call keeps what it needs itself.
    """
    wanted = set(op_ids)
    chosen = [op for op in all_ops if op.id in wanted]
    if not chosen:
        raise AuditError("the finding names no recorded op", remedy="verify needs a pass with a recorder")
    flow = dataflow(Pass(name="eager", engine="verify", ops=tuple(all_ops)))
    group = frozenset(step.index for step in flow.steps if step.op.id in wanted)
    last: dict[str, tuple[Tensor, bool]] = {}
    for index in sorted(group):
        for value, tensor in flow.steps[index].makes:
            leaves = flow.leaves(value, group) and (saved or not _is_only_saved(flow, value, group))
            last[value[0]] = (tensor, leaves or _is_only_measured(flow, value))
    outputs = [tensor for tensor, leaves in last.values() if leaves]
    if not outputs:
        outputs = [tensor for tensor, _ in last.values()][-1:]
    names = {t.storage for t in outputs}
    subject = Subject(ops=chosen, outputs=outputs)
    try:
        subject.program = build_chain(subject.ops, lambda storage: storage in names)
        subject.kernel = generate(subject.program, sm_count=sm_count)
        subject.outputs = [port.tensor for port in subject.program.outputs]
    except AuditError as error:
        subject.problem = str(error)
    return subject


def _is_only_saved(flow: Flow, value: Version, group: frozenset[int]) -> bool:
    """Outside the group, the backward alone reads it."""
    outside = [flow.steps[i].op.phase for i in flow.readers.get(value, ()) if i not in group]
    return bool(outside) and all(phase == "backward" for phase in outside)


def _is_only_measured(flow: Flow, value: Version) -> bool:
    """Read for its shape alone (``ones_like``): what the script has of the value is a result, nobody may drop it."""
    return all(short_name(flow.steps[i].op) in SHAPE_ONLY for i in flow.readers.get(value, ()))


def check_kernel(subject: Subject, launch: Any, device: torch.device) -> tuple[Check, dict[str, torch.Tensor], Replay]:
    """Run the fused kernel on fresh random inputs with poisoned outputs and compare with the ops in fp64."""
    replay, buffers, exact = draw_case(subject, device)
    assert exact is not None
    return compare_kernel(subject, launch, replay, buffers, exact), buffers, replay


def draw_case(
    subject: Subject, device: torch.device
) -> tuple[Replay, dict[str, torch.Tensor], tuple[torch.Tensor, ...] | None]:
    """The ops to run again, fresh random inputs for them, and their result in fp64.

    What the ops draw is among the inputs, with the numbers that a fused kernel draws. The result is ``None`` where an
    op takes no fp64 and no kernel is to be checked.
    """
    ops, drawn = with_given_draws(subject.ops, device)
    replay = build_replay(ops, subject.outputs, device)
    buffers: dict[str, torch.Tensor] = {}
    exact: tuple[torch.Tensor, ...] | None = None
    for positive in (False, True):
        rest = [tensor for tensor in replay.inputs if tensor.storage not in drawn]
        buffers = {**draw_buffers(rest, device, positive=positive), **drawn}
        try:
            wide = build_replay(ops, subject.outputs, device, wide=torch.float64)
            exact = call(wide, buffers, wide=torch.float64)
        except (AuditError, TypeError, ValueError):
            if subject.kernel is not None:
                raise
            break
        bad = max((float(r.double().isnan().double().mean()) for r in exact if r.numel()), default=0.0)
        if bad <= 1e-3:
            break  # else a logarithm or root of negative numbers: draw positive ones
    return replay, buffers, exact


def compare_kernel(
    subject: Subject,
    launch: Any,
    replay: Replay,
    buffers: dict[str, torch.Tensor],
    exact: Sequence[torch.Tensor],
) -> Check:
    """The fused kernel's result, written over poison, against the exact one."""
    assert subject.kernel is not None
    launch.poison = True
    try:
        run, outputs = prepare(launch, subject.kernel, buffers)
    finally:
        launch.poison = False
    run()
    return compare(outputs, exact, call(replay, buffers), length=subject.reduction_length)


def time_versions(versions: Versions, big: bool) -> dict[str, dict[str, Timing]]:
    """Timings by state of the L2 cache (cold, warm) and version; longer where the first ones leave the verdict open.

    ``big``: the data does not fit in the L2, so the verdict comes from the cold state.
    """
    with torch.no_grad():
        found = {state: interleaved(versions.runs, cold=state == "cold", budget_s=0.5) for state in ("cold", "warm")}
        state = "cold" if big else "warm"
        if not settled(found[state]):
            found[state] = interleaved(versions.runs, cold=big, rounds=100, budget_s=3.0)
    return found


def verify_ops(all_ops: Sequence[Op], op_ids: Sequence[int], launch: Any, *, saved: bool = True) -> Verification:
    """Verification of the ops on the current device. Never raises for what a finding's ops can cause.

    ``saved`` as in :func:`make_subject`.
    """
    try:
        return _verify(all_ops, op_ids, launch, saved)
    except torch.OutOfMemoryError:
        torch.cuda.empty_cache()
        return Verification(verdict="inconclusive", reason="out of memory on this GPU")
    except AuditError as error:
        return Verification(verdict="inconclusive", reason=str(error))
    except Exception as error:  # the driver's errors and torch's: said on the finding, the audit goes on
        return Verification(verdict="inconclusive", reason=f"{type(error).__name__}: {first_line(error)}")


def _verify(all_ops: Sequence[Op], op_ids: Sequence[int], launch: Any, saved: bool) -> Verification:
    subject = make_subject(all_ops, op_ids, sm_count=launch.sm_count, saved=saved)
    error: float | None = None
    details: dict[str, Any] = {}
    replay, buffers, exact = draw_case(subject, launch.device)
    if subject.kernel is not None:
        assert exact is not None
        check = compare_kernel(subject, launch, replay, buffers, exact)
        error = None if math.isnan(check.error) else check.error
        details |= {"form": subject.kernel.form, "tolerance": check.tolerance}
        if not check.ok:
            return Verification(
                verdict="inconclusive", reason=f"wrong result: {check.text}", reference=subject.kernel.form,
                max_error=error, details=details,
            )  # fmt: skip
    random = any(map(draws_anew, subject.ops))
    if random:  # what is timed draws for itself
        replay = build_replay(subject.ops, subject.outputs, launch.device, random=True)
    versions = make_versions(
        subject.ops, subject.outputs, replay, buffers, None if random else exact,
        length=max(subject.reduction_length, summed(subject.ops)), random=random,
    )  # fmt: skip
    del exact
    if subject.kernel is not None:
        versions.runs["reference"], _ = prepare(launch, subject.kernel, buffers)
    moved = sum(b.numel() * b.element_size() for b in buffers.values())
    state = "cold" if moved > launch.l2_bytes else "warm"
    timings = time_versions(versions, state == "cold")
    details |= {
        "cache": state,
        "missing": versions.missing,
        "timings": {s: {name: t.to_json() for name, t in found.items()} for s, found in timings.items()},
    }
    if subject.problem:
        details["no_reference"] = subject.problem
    verdict, reason, saving = judge(timings[state], subject.problem)
    median = {name: t.median_ns for name, t in timings[state].items()}
    own = min((name for name in median if name in OWN_FORMS or name.startswith("aten.")), key=median.__getitem__,
              default=None)  # fmt: skip
    form = subject.kernel.form if subject.kernel is not None and own == "reference" else own and words(own)
    return Verification(
        verdict=verdict, reason=reason, reference=form,
        baseline_ns=baseline(timings[state]).median_ns, reference_ns=median.get(own or ""),
        compile_ns=median.get("compile"), cuda_graph_ns=median.get("cuda_graph"), saving_ns=saving, max_error=error,
        details=details,
    )  # fmt: skip


def summed(ops: Sequence[Op]) -> int:
    """The longest inner length of the matmuls among the ops, 1 without any."""
    inner = [op.inputs[-1].shape[-2] for op in ops if has_matmul([op]) and len(op.inputs[-1].shape) >= 2]
    return max(inner, default=1)


OWN_FORMS = ("reference", "template")
"""Fused forms that stand for "fused": if none of them (nor a library call) is faster, fusing does not help here."""

SCATTER = "the times scatter more than they differ"


def baseline(timings: dict[str, Timing]) -> Timing:
    """Device time of the ops as they are: a CUDA graph's where the host is too slow to keep the device busy."""
    eager, graph = timings["eager"], timings.get("cuda_graph")
    return graph if eager.waits and graph is not None and not graph.waits else eager


def settled(timings: dict[str, Timing]) -> bool:
    """False where more calls could change the verdict: with what is known the gain may be clear, and may not be."""
    eager = baseline(timings)
    fused = [timing for name, timing in timings.items() if name not in ("eager", "cuda_graph")]
    if not fused:
        return True
    best = min(fused, key=lambda t: t.median_ns)
    least, most = 1 - best.sure_high_ns / eager.sure_low_ns, 1 - best.sure_low_ns / eager.sure_high_ns
    return not least <= CLEAR_GAIN <= most


def judge(timings: dict[str, Timing], problem: str = "") -> tuple[Verdict, str, int | None]:
    """Verdict, reason and measured saving from one state's timings. Pure."""
    eager = baseline(timings)
    fused = {name: timing for name, timing in timings.items() if name not in ("eager", "cuda_graph")}
    if not fused:
        return "inconclusive", f"nothing fused could be run: {problem}", None
    name, best = min(fused.items(), key=lambda item: item[1].median_ns)
    saving = eager.median_ns - best.median_ns
    times = f"{words(name)} takes {best.median_ns / 1e3:.1f} us, the ops {eager.median_ns / 1e3:.1f} us"
    if best.median_ns > eager.median_ns * (1 - CLEAR_GAIN):
        if fused.keys() == {"compile"}:
            return "inconclusive", f"no reference kernel ({problem}), and torch.compile is not faster", None
        return "refuted", f"fusing is not faster here: {times}", saving
    if best.sure_high_ns >= eager.sure_low_ns:
        return "inconclusive", SCATTER, saving
    return "confirmed", times, saving
