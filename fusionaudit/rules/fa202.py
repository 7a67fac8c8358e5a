"""The same small kernel relaunched in a loop: persistent-kernel or graph candidate.

What: a recurrence written as a Python loop: the same few small ops from the same lines again and again, each turn
waiting for the one before.

Why it costs: no turn can overlap with the next, so each pays its launches in full. 128 turns of 12 small ops took
1686 us eager and 21 us compiled into 2 kernels on an H200.

How it is measured: dataflow. The same op, at the same line and shape, depends on itself at least 16 times in a row,
and its kernels are shorter than 5 us. Loops over layers or parameters, which do not wait for each other at one line
and shape, are none.

When it is wrong: where each turn needs the host in between (a stop condition on a value).

What to do: a persistent kernel that keeps the state on the chip; torch.compile over the whole loop; a scan if the
recurrence is linear; a CUDA graph of the loop.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from fusionaudit.config import Config
from fusionaudit.findings import Finding
from fusionaudit.program.costs import sum_known
from fusionaudit.program.model import Pass, Program
from fusionaudit.rules.chain_findings import eager_like
from fusionaudit.rules.judging import compiled_away, human_time, kernel_ns, pass_basis, short
from fusionaudit.rules.repeats import Loop, loops

CODE = "FA202"
TITLE = "the same small kernel relaunched in a loop"

_TURN_NS = 700
"""One turn of a persistent kernel that exchanges its state through shared memory or L2 (grid sync on an H200)."""


def check(program: Program, config: Config) -> Iterator[Finding]:
    """One finding for each recurrence."""
    for p in eager_like(program):
        for loop in loops(program, p, config):
            if loop.kind != "recurrence":
                continue
            finding = _finding(program, p, loop)
            if compiled_away(program, p, loop.ops):
                reason = "torch.compile in the script already takes this loop into one graph"
                finding = replace(finding, severity="info", reason=reason, remedy="nothing to do in the eager form")
            yield finding


def _finding(program: Program, p: Pass, loop: Loop) -> Finding:
    ids = {op.id for op in loop.ops}
    mine = [k for k in p.kernels if any(i in ids for i in k.ops)]
    now = sum_known(kernel_ns(k, program.device) for k in mine)
    saving = None if now is None else max(0, now - _TURN_NS * loop.turns)
    per_turn = len(mine) / max(1, loop.turns)
    return Finding(
        rule=CODE,
        pass_name=p.name,
        severity="warning",
        message=f"a loop of {loop.turns} dependent turns launches {len(mine)} small kernels, {per_turn:.0f} a turn "
        f"({short(loop.names)})" + (f"; one persistent kernel would save about {human_time(saving)}" if saving else ""),
        ops=loop.names,
        op_ids=tuple(op.id for op in loop.ops),
        kernel_ids=tuple(k.id for k in mine),
        location=loop.location,
        saving_ns=saving,
        basis=None if saving is None else pass_basis(p),
        remedy="torch.compile the whole loop, write a scan or a persistent kernel, or capture it in a CUDA graph",
        evidence={"turns": loop.turns, "launches": len(mine)},
        key=loop.phase,
    )
