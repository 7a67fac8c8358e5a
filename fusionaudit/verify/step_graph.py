"""What a CUDA graph makes of a whole step (FA201): the recorded ops of the step, captured and replayed."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fusionaudit.errors import AuditError
from fusionaudit.findings import Verification
from fusionaudit.trace.schema import Op
from fusionaudit.verify.replay import build_replay, draw_buffers, on_device, view
from fusionaudit.verify.timing import CLEAR_GAIN, capture_graph, first_line, interleaved


def verify_step(ops: Sequence[Op], step_ns: int, device: torch.device) -> Verification:
    """The step as one CUDA graph against ``step_ns``, which it took in the script without a recorder.

    The ops run on fresh random values of the recorded shapes. Never raises for what the ops can cause: a step that
    cannot be captured (a host sync, an op that sizes its result by data) is inconclusive, with the reason.
    """
    try:
        ops = on_device(ops)
        graph_ns = _graph_ns(ops, device)
    except torch.OutOfMemoryError:
        torch.cuda.empty_cache()
        return Verification(verdict="inconclusive", reason="out of memory on this GPU", baseline_ns=step_ns)
    except (AuditError, RuntimeError) as error:
        reason = f"the step cannot be captured in a CUDA graph: {first_line(error)}"
        return Verification(verdict="inconclusive", reason=reason, baseline_ns=step_ns)
    return Verification(
        verdict="confirmed" if graph_ns < step_ns * (1 - CLEAR_GAIN) else "refuted",
        reason=f"the step's {len(ops)} recorded ops take {graph_ns / 1e3:.1f} us as one CUDA graph, "
        f"{step_ns / 1e3:.1f} us as the script runs them",
        baseline_ns=step_ns,
        cuda_graph_ns=graph_ns,
        saving_ns=step_ns - graph_ns,
    )


def _graph_ns(ops: Sequence[Op], device: torch.device) -> int:
    last = next((op.outputs[0] for op in reversed(ops) if op.outputs and op.outputs[0].storage is not None), None)
    if last is None:
        raise AuditError("no op of the step gives a tensor", remedy="verify needs a pass with a recorder")
    replay = build_replay(ops, [last], device, random=True)
    buffers = draw_buffers(replay.inputs, device)
    values = [view(buffers, tensor) for tensor in replay.inputs]
    with torch.no_grad():
        graph, kept = capture_graph(lambda: replay.module(*values))
        timing = interleaved({"cuda_graph": graph}, cold=False, budget_s=0.5)["cuda_graph"]
    del kept
    return timing.median_ns
