"""Per-parameter loop with a foreach or fused form.

What: an optimizer, a gradient clip or a moving average that goes through the tensors one by one, with one launch for
each op and tensor.

Why it costs: launches. AdamW over 12 tensors with foreach=False is about 140 launches, the foreach form about 15, the
fused form one; with small tensors the host cannot launch as fast as the GPU finishes.

How it is measured: ops of the optimizer phase, or in-place ops and norms from one line, over at least 4 (outside an
optimizer: 8) different tensors. The saving is their time less that of one launch for each op over all tensors, at the
bytes that they move anyway.

When it is wrong: foreach needs memory for its intermediates (about one copy of the parameters); with few large
tensors a loop is as fast.

What to do: fused=True (or foreach=True) for the optimizer; torch.nn.utils.clip_grad_norm_(..., foreach=True);
torch._foreach_lerp_ for a moving average; or torch.compile(optimizer.step).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from fusionaudit.config import Config
from fusionaudit.findings import Finding
from fusionaudit.program.costs import op_bytes, sum_known
from fusionaudit.program.model import Pass, Program
from fusionaudit.rules.chain_findings import eager_like
from fusionaudit.rules.judging import compiled_away, compiles_itself, human_time, kernel_ns, pass_basis, short, worth
from fusionaudit.rules.library_ops import CLIP, FOREACH_OPTIMIZER, roots
from fusionaudit.rules.repeats import Loop, loops

CODE = "FA106"
TITLE = "per-parameter loop with a foreach or fused form"


def check(program: Program, config: Config) -> Iterator[Finding]:
    """One finding for each loop."""
    for p in eager_like(program):
        for loop in loops(program, p, config):
            if loop.kind == "parameters":
                yield _finding(program, p, config, loop)


def replacement(loop: Loop) -> str:
    """The call that does the whole loop in a few launches."""
    names = set(roots(loop.names))
    if loop.phase == "optimizer":
        return FOREACH_OPTIMIZER
    if names & {"norm", "linalg_vector_norm"}:
        return CLIP
    if "lerp" in names or {"mul", "add"} <= names:
        return "torch._foreach_lerp_(averages, values, 1 - decay)"
    return "torch._foreach_* over the list of tensors"


def _finding(program: Program, p: Pass, config: Config, loop: Loop) -> Finding:
    kernels = {k: kernel for kernel in p.kernels for k in kernel.ops}
    mine = [kernels[op.id] for op in loop.ops if op.id in kernels]
    now = sum_known(kernel_ns(k, program.device) for k in mine)
    by_name: dict[str, list[int | None]] = defaultdict(list)
    for op in loop.ops:
        by_name[op.name] += op_bytes(op)
    saving = None
    if now is not None and program.device is not None:
        device = program.device
        after = [max(device.transfer_ns(sum_known(moved)) or 0, device.launch_ns) for moved in by_name.values()]
        saving = max(0, now - sum(after))
    judged = worth(program, p, config, saving_ns=saving, avoidable_bytes=None)
    launches = len(loop.ops)
    share = launches / max(1, len(p.kernels))
    severity = judged.severity
    if saving is None or severity == "info":
        severity = "warning" if share >= 0.2 and launches >= config.thresholds.many_launches else "info"
    away = compiled_away(program, p, loop.ops)
    outside = not away and loop.phase != "optimizer" and p.name == "eager" and compiles_itself(program)
    reason = None
    if away:
        reason = "torch.compile in the script already takes this loop into one graph"
    elif outside:
        reason = "outside what the script compiles"
    call = replacement(loop)
    message = f"{launches} launches a step go through {loop.turns} tensors one by one ({short(loop.names)})"
    if saving:
        message += (
            f"; together they would save about {human_time(saving)} on the GPU and {launches} launches on the host"
        )
    return Finding(
        rule=CODE,
        pass_name=p.name,
        severity="info" if away or outside else severity,
        message=message,
        ops=loop.names,
        op_ids=tuple(op.id for op in loop.ops),
        kernel_ids=tuple(k.id for k in mine),
        location=loop.location,
        avoidable_bytes=None,
        saving_ns=saving,
        basis=None if saving is None else pass_basis(p),
        reason=reason,
        remedy=f"use {call}",
        evidence={"tensors": loop.turns, "launches": launches, "share_of_launches": round(share, 4)},
        key=loop.phase,
    )
