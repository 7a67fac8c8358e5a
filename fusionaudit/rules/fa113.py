"""Recompilation changed the kernels.

What: torch.compile compiled a function again because a guard failed: another value of a Python number, another
object, another size.

Why it costs: each compilation takes seconds, every variant keeps its own kernels, and after 8 of them the function
runs eagerly, unfused. A graph made for "any size" can also fuse less than one for a fixed size (FA117).

How it is measured: Dynamo's recompile log, by function and guard. A guard on a value (number, attribute, object) is a
warning: it will fail again. A guard on a tensor's size is normal once or twice (the second graph takes any size) and
a warning from the third on.

When it is wrong: a value that really takes two settings only (train and eval) is no trouble.

What to do: pass numbers that change as tensors; mark sizes with torch._dynamo.mark_dynamic; for counters on modules
set torch._dynamo.config.allow_unspec_int_on_nn_module = True; the guard in the message names the variable.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator

from fusionaudit.config import Config
from fusionaudit.figures import times
from fusionaudit.findings import Finding, Severity
from fusionaudit.inductor.model import Recompile
from fusionaudit.program.model import Pass, Program

CODE = "FA113"
TITLE = "recompilation changed the kernels"

_SIZE = re.compile(r"(size|stride|rank|dim\w*) mismatch|\.size\(\)|\.stride\(\)|\.shape|Eq\(|Ne\(|tensor\.\w*size")
_ONCE = re.compile(r"GLOBAL_STATE|___check_global_state|grad_mode|is_grad_enabled|requires_grad mismatch|dispatch key")
_HINT = re.compile(r"torch\._dynamo\.config\.(\w+)")


def check(program: Program, config: Config) -> Iterator[Finding]:
    """One finding for each function that was compiled again."""
    for p in program.passes:
        if p.name != "compiled" and not p.name.startswith("imported"):
            continue
        groups: dict[tuple[object, ...], list[Recompile]] = defaultdict(list)
        for again in p.log.recompiles:
            where = again.location and (again.location.file, again.location.line)
            groups[(again.function, where)].append(again)
        for group in groups.values():
            yield _finding(p, group, config)


def guard_kind(guard: str) -> str:
    """``size``, ``once`` (a global state that settles) or ``value``."""
    if _SIZE.search(guard):
        return "size"
    return "once" if _ONCE.search(guard) else "value"


def _finding(p: Pass, group: list[Recompile], config: Config) -> Finding:
    kinds = [guard_kind(r.guard) for r in group]
    severity: Severity = "info"
    if "value" in kinds or kinds.count("size") >= config.thresholds.expired_recompiles:
        severity = "warning"
    first = next((r for r in group if guard_kind(r.guard) == "value"), group[0])
    guard = first.guard.split("#")[0].strip()
    hint = _HINT.search(first.guard)
    remedy = "pass the value as a tensor, or keep it constant"
    if "size" in kinds and "value" not in kinds:
        remedy = "mark the size with torch._dynamo.mark_dynamic, or pad to a few sizes"
    if hint is not None:
        remedy += f"; or set torch._dynamo.config.{hint.group(1)} = True"
    return Finding(
        rule=CODE,
        pass_name=p.name,
        severity=severity,
        message=f"{first.function} was compiled {times(len(group))} more; guard that failed: {guard}",
        location=first.location,
        reason=guard,
        remedy=remedy,
        evidence={
            "recompilations": len(group),
            "guards": list(dict.fromkeys(r.guard.split("#")[0].strip() for r in group)),
        },
        key=first.function,
    )
