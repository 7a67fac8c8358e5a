"""Recompilation changed the kernels.

What: torch.compile compiled a function again because a guard failed: another value of a Python number, another
object, another size.

Why it costs: each compilation takes seconds, every variant keeps its own kernels, and after 8 of them the function
runs eagerly, unfused. A graph made for "any size" can also fuse less than one for a fixed size (FA117).

How it is measured: Dynamo's recompile log, by function and guard. A guard on a value (number, attribute, object) is a
warning: it will fail again. A guard on a tensor's size is normal once or twice (the second graph takes any size) and
a warning from the third on. Priced is what the newest version that ran launches more than the first; where Dynamo gave
up at its limit, what the function's chains launch and move more as eager ops.

When it is wrong: a value that really takes two settings only (train and eval) is no trouble.

What to do: pass numbers that change as tensors; mark sizes with torch._dynamo.mark_dynamic; for counters on modules
set torch._dynamo.config.allow_unspec_int_on_nn_module = True; the guard in the message names the variable.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from fusionaudit.config import Config
from fusionaudit.figures import counted, times
from fusionaudit.findings import Finding, Severity
from fusionaudit.inductor.model import Recompile
from fusionaudit.program.costs import sum_known
from fusionaudit.program.model import Pass, Program
from fusionaudit.rules.chain_findings import chains_of, saving_of
from fusionaudit.rules.judging import human_bytes, pass_basis
from fusionaudit.rules.split_chains import frame, lines_of

CODE = "FA113"
TITLE = "recompilation changed the kernels"

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
            yield _finding(program, p, group, config)


@dataclass(frozen=True, kw_only=True)
class _Price:
    """What a step pays, in words and figures; bytes and time only where the function ended up eager."""

    text: str = ""
    launches: int | None = None
    nbytes: int | None = None
    saving_ns: int | None = None


def _price(program: Program, p: Pass, group: list[Recompile]) -> _Price:
    units = {unit for r in group if (unit := frame(r.compile_id)) is not None}
    limit = next((r.limit for r in group if r.limit is not None), None)
    if limit is not None:
        return _eager_price(program, p, units, limit)
    ran = {k.graph for k in p.kernels}
    versions = [g for g in p.log.graphs if frame(g.compile_id) in units and g.kind != "backward"]
    newest = [g for g in versions if g.id in ran]
    if not newest:
        return _Price()
    first, last = (len([c for c in g.calls if c.kind != "cpu"]) for g in (versions[0], newest[-1]))
    if last <= first:
        return _Price(launches=last - first)
    text = f"; its newest version makes {counted(last, 'launch', 'launches')} where the first made {first}"
    return _Price(text=text, launches=last - first)


def _eager_price(program: Program, p: Pass, units: set[str], limit: int) -> _Price:
    """What the chains on the lines of these functions cost as eager ops, which is how they run past the limit."""
    text = f"; at {limit} versions torch.compile gave up, and calls that fit none of them run eagerly"
    eager = program.get("eager")
    lines = {place for g in p.log.graphs if frame(g.compile_id) in units for place in lines_of(g)}
    if eager is None or not lines:
        return _Price(text=text)
    by_id = {op.id: op for op in eager.ops}
    places = {i: (op.location.file, op.location.line) for i, op in by_id.items() if op.location is not None}
    mine = [c for c in chains_of(eager) if all(places.get(i) in lines for i in c.op_ids)]
    launches = sum(c.launches - c.kernels for c in mine)
    nbytes = sum_known(c.avoidable_bytes for c in mine)
    saving = sum_known(saving_of(program, eager, c) for c in mine)
    if mine:
        text += f": up to {counted(launches, 'more launch', 'more launches')} and {human_bytes(nbytes)} more a step"
    return _Price(text=text, launches=launches, nbytes=nbytes, saving_ns=saving)


def _finding(program: Program, p: Pass, group: list[Recompile], config: Config) -> Finding:
    kinds = [r.kind for r in group]
    limit = max((r.limit or 0 for r in group), default=0)
    again = min(len(group), limit - 1) if limit else len(group)  # what came after was given up
    severity: Severity = "info"
    if "value" in kinds or kinds.count("size") >= config.thresholds.expired_recompiles:
        severity = "warning"
    price = _price(program, p, group)
    # Small launches do not make compiling again and again a small matter.
    worthwhile = price.saving_ns is not None and price.saving_ns >= config.thresholds.min_saving_ns
    saving = price.saving_ns if worthwhile else None
    first = next((r for r in group if r.kind == "value"), group[0])
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
        message=f"{first.function} was compiled {times(again)} more; guard that failed: {guard}{price.text}",
        location=first.location,
        avoidable_bytes=price.nbytes,
        saving_ns=saving,
        basis=None if saving is None else pass_basis(p),
        reason=guard,
        remedy=remedy,
        evidence={
            "recompilations": again,
            "more_launches": price.launches,
            "guards": list(dict.fromkeys(r.guard.split("#")[0].strip() for r in group)),
        },
        key=first.function,
    )
