"""Per-parameter loop with a foreach or fused form.

What: an optimizer, a gradient clip or a moving average that goes through the tensors one by one, with one launch for
each op and tensor; or an optimizer of torch in its foreach form (the default on CUDA) that has a fused form too, or
several foreach calls by hand over the same tensors.

Why it costs: launches. AdamW over 12 tensors with foreach=False is about 140 launches, the foreach form about 15, the
fused form one; with small tensors the host cannot launch as fast as the GPU finishes. And bytes: the foreach form is
still one kernel for each op, so that AdamW moves 20 values a parameter where the fused kernel moves
7 (parameter, gradient and both moments read, all but the gradient written).

How it is measured: ops of the optimizer phase, or in-place ops and norms from one line, over at least 4 (outside an
optimizer: 8) different tensors; lines that run in turns are one loop. The saving is their time less that of one launch
for each op over all tensors, at the bytes that they move anyway, or less that of one pass over the tensors where one
call does it all (SGD, Adam, a moving average: told by the ops and their scalars). The foreach form: bytes of its
kernels against what enters and leaves all of them together (dataflow), and their time against that of the fused
launches at those bytes; nothing is said below the floor of bytes (thresholds.min_bytes). Clipping by foreach needs the
norm before it scales, so it has no form with less.

When it is wrong: foreach needs memory for its intermediates (about one copy of the parameters); with few large
tensors a loop is as fast. fused=True cannot be differentiated through, and rounds once where foreach rounds after
each op.

What to do: fused=True (or foreach=True) for the optimizer; torch.nn.utils.clip_grad_norm_(..., foreach=True);
torch._foreach_lerp_ for a moving average; or torch.compile(optimizer.step).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from fusionaudit.config import Config
from fusionaudit.device import Device
from fusionaudit.figures import counted
from fusionaudit.findings import Finding
from fusionaudit.program.chains import moved_bytes
from fusionaudit.program.costs import op_bytes, sum_known
from fusionaudit.program.dataflow import dataflow
from fusionaudit.program.model import Pass, Program
from fusionaudit.rules.chain_findings import eager_like
from fusionaudit.rules.fused_optimizers import ForeachStep, foreach_steps
from fusionaudit.rules.judging import (
    compiled_away,
    compiles_itself,
    human_bytes,
    human_time,
    kernel_ns,
    merged_ns,
    pass_basis,
    short,
    worth,
)
from fusionaudit.rules.repeats import Loop, loops
from fusionaudit.rules.update_calls import UpdateCall, update_call

CODE = "FA106"
TITLE = "per-parameter loop with a foreach or fused form"

_FUSED = "make the optimizer with fused=True (instead of foreach=True, if it says that)"
_BY_HAND = (
    "torch.compile the function that updates, or use the optimizer of torch.optim that does the same (fused=True)"
)


def check(program: Program, config: Config) -> Iterator[Finding]:
    """One finding for each loop, and for each optimizer whose foreach kernels one fused kernel does."""
    for p in eager_like(program):
        found = [loop for loop in loops(program, p, config) if loop.kind == "parameters"]
        for loop in found:
            yield _finding(program, p, config, loop, update_call(loop, found))
        for step in foreach_steps(program, p):
            # A compiled optimizer is fused already.
            if not compiled_away(program, p, step.ops):
                yield from _foreach_finding(program, p, config, step)


def _foreach_finding(program: Program, p: Pass, config: Config, step: ForeachStep) -> Iterator[Finding]:
    if step.global_bytes is None or step.minimum_bytes is None:
        return
    avoidable = step.global_bytes - step.minimum_bytes
    if avoidable < config.thresholds.min_bytes:
        return
    wanted = {op.id for op in step.ops}
    mine = [k for k in p.kernels if wanted.intersection(k.ops)]
    now = sum_known(kernel_ns(k, program.device) for k in mine)
    after = merged_ns(p, program.device, mine, step.minimum_bytes)
    least = merged_ns(p, program.device, mine, 0)
    saving = None
    if now is not None and after is not None and least is not None:
        # Counting the steps of each group of parameters stays a launch of its own.
        saving = max(0, now - max(after, least * step.launches) - least * step.calls)
    judged = worth(program, p, config, saving_ns=saving, avoidable_bytes=avoidable)
    ops = tuple(dict.fromkeys(op.name for op in step.ops))
    names = short(name.replace("_foreach_", "") for name in ops)
    message = f"{counted(len(mine), 'foreach kernel')} a step ({names}) update {counted(step.tensors, 'tensor')}, "
    message += f"which {counted(step.launches, 'fused kernel')} would: "
    message += f"{human_bytes(avoidable)} of {human_bytes(step.global_bytes)} a step need not move"
    if saving:
        message += f", about {human_time(saving)}"
    yield Finding(
        rule=CODE,
        pass_name=p.name,
        severity=judged.severity if (saving or 0) >= config.thresholds.min_saving_ns else "info",
        message=message,
        ops=ops,
        op_ids=tuple(op.id for op in step.ops),
        kernel_ids=tuple(k.id for k in mine),
        location=step.location,
        avoidable_bytes=avoidable,
        saving_ns=saving,
        basis=judged.basis,
        reason=f"foreach{'' if step.by_hand else ', the default on CUDA,'} is one kernel for each operation",
        remedy=_BY_HAND if step.by_hand else _FUSED,
        evidence={
            "tensors": step.tensors,
            "launches": len(mine),
            "fused_launches": step.launches,
            "global_bytes": step.global_bytes,
            "minimum_bytes": step.minimum_bytes,
            "share_of_step": judged.share,
        },
        key="foreach",
    )


def _calls_ns(device: Device, loop: Loop) -> list[int]:
    """Time of each op over all tensors at once, at the bytes that it moves anyway."""
    by_name: dict[str, list[int | None]] = defaultdict(list)
    for op in loop.ops:
        by_name[op.name] += op_bytes(op)
    return [max(device.transfer_ns(sum_known(moved)) or 0, device.launch_ns) for moved in by_name.values()]


def _finding(program: Program, p: Pass, config: Config, loop: Loop, update: UpdateCall) -> Finding:
    kernels = {k: kernel for kernel in p.kernels for k in kernel.ops}
    mine = [kernels[op.id] for op in loop.ops if op.id in kernels]
    now = sum_known(kernel_ns(k, program.device) for k in mine)
    saving, avoidable = None, None
    if now is not None and program.device is not None:
        saving = max(0, now - sum(_calls_ns(program.device, loop)))
    if update.whole:
        flow = dataflow(p)
        wanted = {op.id for op in loop.ops}
        moved, least = moved_bytes(flow, [s.index for s in flow.steps if s.op.id in wanted])
        avoidable = None if moved is None or least is None else max(0, moved - least)
        after = merged_ns(p, program.device, mine, least)
        if now is not None and after is not None:
            saving = max(saving or 0, now - after)
    judged = worth(program, p, config, saving_ns=saving, avoidable_bytes=avoidable)
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
    message = f"{launches} launches a step go through {loop.turns} tensors one by one ({short(loop.names)})"
    if saving:
        message += (
            f"; together they would save about {human_time(saving)} on the GPU and {launches} launches on the host"
        )
        message += f" ({human_bytes(avoidable)} a step need not move)" if avoidable else ""
    return Finding(
        rule=CODE,
        pass_name=p.name,
        severity="info" if away or outside else severity,
        message=message,
        ops=loop.names,
        op_ids=tuple(op.id for op in loop.ops),
        kernel_ids=tuple(k.id for k in mine),
        location=loop.location,
        avoidable_bytes=avoidable or None,
        saving_ns=saving,
        basis=None if saving is None else pass_basis(p),
        reason=reason,
        remedy=f"use {update.call}",
        evidence={"tensors": loop.turns, "launches": launches, "share_of_launches": round(share, 4)},
        key=loop.phase,
    )
