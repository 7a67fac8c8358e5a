"""Check and time one finding: its recorded ops against a generated fused kernel, torch.compile and a CUDA graph."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from fusionaudit.errors import AuditError
from fusionaudit.findings import Verdict, Verification
from fusionaudit.program.dataflow import dataflow
from fusionaudit.program.model import Pass
from fusionaudit.tensors import Tensor
from fusionaudit.trace.schema import Op
from fusionaudit.verify.chain import ChainProgram
from fusionaudit.verify.chain_ops import build_chain
from fusionaudit.verify.chain_source import GeneratedKernel, generate
from fusionaudit.verify.check import Check, compare
from fusionaudit.verify.generated import prepare
from fusionaudit.verify.replay import Replay, build_replay, call, draw_buffers, view
from fusionaudit.verify.timing import CLEAR_GAIN, Run, Timing, capture_graph, first_line, interleaved


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


def make_subject(all_ops: Sequence[Op], op_ids: Sequence[int], *, sm_count: int) -> Subject:
    """The subject of a finding; ``problem`` says why there is no fused kernel, if there is none."""
    wanted = set(op_ids)
    chosen = [op for op in all_ops if op.id in wanted]
    if not chosen:
        raise AuditError("the finding names no recorded op", remedy="verify needs a pass with a recorder")
    flow = dataflow(Pass(name="eager", engine="verify", ops=tuple(all_ops)))
    group = frozenset(step.index for step in flow.steps if step.op.id in wanted)
    last: dict[str, tuple[Tensor, bool]] = {}
    for index in sorted(group):
        for value, tensor in flow.steps[index].makes:
            last[value[0]] = (tensor, flow.leaves(value, group))
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


def check_kernel(subject: Subject, launch: Any, device: torch.device) -> tuple[Check, dict[str, torch.Tensor], Replay]:
    """Run the fused kernel on fresh random inputs with poisoned outputs and compare with the ops in fp64."""
    assert subject.kernel is not None
    replay = build_replay(subject.ops, subject.outputs, device)
    exact = build_replay(subject.ops, subject.outputs, device, wide=torch.float64)
    check, buffers = Check(ok=False, error=math.nan, tolerance=0.0, text="not run"), {}
    for positive in (False, True):
        buffers = draw_buffers(replay.inputs, device, positive=positive)
        reference = call(exact, buffers, wide=torch.float64)
        bad = max((float(r.double().isnan().double().mean()) for r in reference if r.numel()), default=0.0)
        if bad > 1e-3 and not positive:
            continue  # a logarithm or root of negative numbers: draw positive ones
        launch.poison = True
        try:
            run, outputs = prepare(launch, subject.kernel, buffers)
        finally:
            launch.poison = False
        run()
        eager = call(replay, buffers)
        check = compare(outputs, reference, eager, length=subject.reduction_length)
        break
    return check, buffers, replay


def time_versions(
    subject: Subject, launch: Any, buffers: dict[str, torch.Tensor], replay: Replay
) -> tuple[dict[str, dict[str, Timing]], dict[str, str]]:
    """Timings by state (cold, warm) and version, and why a version is missing."""
    missing: dict[str, str] = {}
    inputs = tuple(view(buffers, t) for t in replay.inputs)
    versions: dict[str, Run] = {"eager": lambda: replay.module(*inputs)}
    if subject.kernel is not None:
        run, _ = prepare(launch, subject.kernel, buffers)
        versions["reference"] = run
    compiled = torch.compile(replay.module, dynamic=False)
    try:
        with torch.no_grad():
            compiled(*inputs)
        versions["compile"] = lambda: compiled(*inputs)
    except Exception as error:  # whatever dynamo and Inductor raise, the audit goes on
        missing["compile"] = f"{type(error).__name__}: {first_line(error)}"
    kept: Any = None
    try:
        versions["cuda_graph"], kept = capture_graph(versions["eager"])
    except RuntimeError as error:
        missing["cuda_graph"] = first_line(error)
    with torch.no_grad():
        timings = {state: interleaved(versions, cold=state == "cold", budget_s=0.5) for state in ("cold", "warm")}
    del kept
    return timings, missing


def verify_ops(all_ops: Sequence[Op], op_ids: Sequence[int], launch: Any) -> Verification:
    """Verification of the ops on the current device. Never raises for what a finding's ops can cause."""
    try:
        return _verify(all_ops, op_ids, launch)
    except torch.OutOfMemoryError:
        torch.cuda.empty_cache()
        return Verification(verdict="inconclusive", reason="out of memory on this GPU")
    except AuditError as error:
        return Verification(verdict="inconclusive", reason=str(error))
    except Exception as error:  # the driver's errors and torch's: said on the finding, the audit goes on
        return Verification(verdict="inconclusive", reason=f"{type(error).__name__}: {first_line(error)}")


def _verify(all_ops: Sequence[Op], op_ids: Sequence[int], launch: Any) -> Verification:
    subject = make_subject(all_ops, op_ids, sm_count=launch.sm_count)
    error: float | None = None
    details: dict[str, Any] = {}
    if subject.kernel is not None:
        check, buffers, replay = check_kernel(subject, launch, launch.device)
        error = None if math.isnan(check.error) else check.error
        details |= {"form": subject.kernel.form, "tolerance": check.tolerance}
        if not check.ok:
            return Verification(
                verdict="inconclusive", reason=f"wrong result: {check.text}", reference=subject.kernel.form,
                max_error=error, details=details,
            )  # fmt: skip
    else:
        replay = build_replay(subject.ops, subject.outputs, launch.device)
        buffers = draw_buffers(replay.inputs, launch.device)
    timings, missing = time_versions(subject, launch, buffers, replay)
    moved = sum(b.numel() * b.element_size() for b in buffers.values())
    state = "cold" if moved > launch.l2_bytes else "warm"
    details |= {
        "cache": state,
        "missing": missing,
        "timings": {s: {name: t.to_json() for name, t in found.items()} for s, found in timings.items()},
    }
    if subject.problem:
        details["no_reference"] = subject.problem
    verdict, reason, saving = judge(timings[state], subject.problem)
    median = {name: t.median_ns for name, t in timings[state].items()}
    return Verification(
        verdict=verdict, reason=reason, reference=subject.kernel.form if subject.kernel else None,
        baseline_ns=median["eager"], reference_ns=median.get("reference"), compile_ns=median.get("compile"),
        cuda_graph_ns=median.get("cuda_graph"), saving_ns=saving, max_error=error, details=details,
    )  # fmt: skip


def judge(timings: dict[str, Timing], problem: str = "") -> tuple[Verdict, str, int | None]:
    """Verdict, reason and measured saving from one state's timings. Pure."""
    eager = timings["eager"]
    fused = {name: timings[name] for name in ("reference", "compile") if name in timings}
    if not fused:
        return "inconclusive", f"nothing fused could be run: {problem}", None
    name, best = min(fused.items(), key=lambda item: item[1].median_ns)
    saving = eager.median_ns - best.median_ns
    what = "the reference kernel" if name == "reference" else "torch.compile"
    if best.median_ns > eager.median_ns * (1 - CLEAR_GAIN):
        if "reference" not in timings:
            return "inconclusive", f"no reference kernel ({problem}), and torch.compile is not faster", None
        return (
            "refuted",
            f"fusing is not faster here: {best.median_ns / 1e3:.1f} us against {eager.median_ns / 1e3:.1f} us",
            saving,
        )
    if best.high_ns > eager.low_ns and saving < 2 * (best.high_ns - best.low_ns):
        return "inconclusive", "the times scatter more than they differ", saving
    return "confirmed", f"{what} takes {best.median_ns / 1e3:.1f} us, the ops {eager.median_ns / 1e3:.1f} us", saving
