"""The same thing computed again each step or call: hoist it.

What: kernels whose result cannot change from call to call: index tables, position ids and masks made from constants,
and casts of one parameter that each call of a compiled function makes again.

Why it costs: the kernel's whole time, each time. A linear layer compiled by itself under autocast casts its weight in
every call: 64 calls a step over a 4M weight are 1.6 GB.

How it is measured: dataflow. A kernel that reads no memory at all (or only what such kernels wrote), is not random
and not a plain fill, computes a constant, if all recorded steps give its op the same scalars and sizes (at least two
steps; an import does not tell, so nothing is said of its ops). Of compiled kernels: if they take no scalar of the
caller, and their graph ran in other steps too (not compiled anew for another scalar). A kernel that only casts
parameters and runs several times in a step with no write to them in between is needed once; without a backward pass
in the step it is not needed each step either.
Where no step repeats (the recording is one step), nothing is said. Chains (FA101 to FA105) do not count these again.

When it is wrong: a table whose size changes from step to step has to be made again (keep the largest and slice it).
From a measured compiled pass the tool cannot always tell a parameter from another graph input; confidence is medium
then.

What to do: make it once, in __init__ or with functools.lru_cache, and register it as a buffer; cast the weight before
the loop; compile the loop and not its body.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace

from fusionaudit.config import Config
from fusionaudit.figures import counted, times
from fusionaudit.findings import Finding, Severity
from fusionaudit.program.costs import sum_known
from fusionaudit.program.dataflow import Step
from fusionaudit.program.model import Kernel, Pass, Program
from fusionaudit.rules.chain_findings import eager_like
from fusionaudit.rules.constants import PLAIN_FILLS, constant_steps
from fusionaudit.rules.fa105 import only_moves
from fusionaudit.rules.judging import compiled_away, human_bytes, human_time, kernel_ns, short, worth
from fusionaudit.rules.library_ops import roots

CODE = "FA108"
TITLE = "the same thing computed again each step or call"

_HOIST_SHARE = 0.01
"""Part of the step's time or launches: a third of the usual limit, since hoisting costs no code and no accuracy."""
_RANDOM_WORDS = ("rand", "bernoulli", "dropout", "seed", "normal", "uniform")
_MANY_CALLS = 4


def check(program: Program, config: Config) -> Iterator[Finding]:
    """Constant kernels (eager and compiled) and repeated casts of parameters (compiled)."""
    for p in eager_like(program):
        yield from _eager(program, p, config)
    compiled = program.get("compiled")
    if compiled is not None and compiled.steps:
        yield from _compiled_constants(program, compiled, config)
        yield from _compiled_casts(program, compiled, config)


def _severity(saved: Sequence[Kernel], p: Pass, share: float | None) -> Severity:
    launches = len(saved) / max(1, len(p.kernels))
    return "warning" if (share or 0) >= _HOIST_SHARE or launches >= 2 * _HOIST_SHARE else "info"


def _eager(program: Program, p: Pass, config: Config) -> Iterator[Finding]:
    groups: dict[tuple[object, ...], list[Step]] = defaultdict(list)
    for step in constant_steps(p):
        groups[(step.op.location and (step.op.location.file, step.op.location.line), step.op.phase)].append(step)
    kernels = {k.id: k for k in p.kernels}
    for group in groups.values():
        mine = [kernels[k] for s in group for k in s.kernels if k in kernels]
        names = tuple(dict.fromkeys(s.op.name for s in group))
        away = compiled_away(program, p, [s.op for s in group])
        finding = _finding(program, p, config, mine, names, "depend on constants only and are computed in every step")
        yield _with(finding, group, away)


def _with(finding: Finding, group: list[Step], away: bool) -> Finding:
    return replace(
        finding,
        op_ids=tuple(s.op.id for s in group),
        location=group[0].op.location,
        severity="info" if away else finding.severity,
        reason="judged in the compiled pass: torch.compile in the script takes these ops in" if away else None,
        key=group[0].op.phase,
    )


def _finding(
    program: Program, p: Pass, config: Config, saved: list[Kernel], names: tuple[str, ...], what: str
) -> Finding:
    avoidable = sum_known(k.global_bytes for k in saved)
    saving = sum_known(kernel_ns(k, program.device) for k in saved)
    judged = worth(program, p, config, saving_ns=saving, avoidable_bytes=avoidable)
    return Finding(
        rule=CODE,
        pass_name=p.name,
        severity=_severity(saved, p, judged.share),
        message=f"{counted(len(saved), 'kernel')} a step ({short(names)}) {what}: {human_bytes(avoidable)}"
        + (f", about {human_time(saving)}" if saving else ""),
        ops=names,
        kernel_ids=tuple(k.id for k in saved),
        location=saved[0].location if saved else None,
        avoidable_bytes=avoidable,
        saving_ns=saving,
        basis=judged.basis,
        remedy="compute it once outside the step and keep it (register_buffer, functools.lru_cache)",
        confidence="medium",
        evidence={"share_of_step": judged.share},
        graph=saved[0].graph if saved else None,
    )


def _computes(kernel: Kernel) -> bool:
    """More than a fill, and not random."""
    names = set(roots(kernel.op_names))
    if any(word in name for name in names for word in _RANDOM_WORDS):
        return False
    return kernel.category in ("pointwise", "copy", "scan") and bool(names - PLAIN_FILLS)


_INDEXED_VALUE = re.compile(r"tmp\d+ = .*\b(?:[xyz]\d+|[xyz]index|r\d*_\d+|r\d+)\b")
"""A value that is computed from the element's index; a kernel that reads nothing and has none is a fill."""


def _fills(p: Pass) -> set[tuple[str, str]]:
    """(graph, kernel name) of generated kernels whose source stores a constant only (op names list more)."""
    return {
        (graph.id, kernel.name)
        for graph in p.log.graphs
        for kernel in graph.kernels
        if kernel.source and not _INDEXED_VALUE.search(kernel.source) and not any(not a.store for a in kernel.accesses)
    }


_SCALAR_OF_CALLER = re.compile(r"\bks\d+\b|'in_ptr\d+': '[a-z]")
"""A size or number that the graph is called with: another call may give another one."""


def _told(p: Pass) -> set[tuple[str, str]]:
    """(graph, kernel name) of generated kernels that a scalar of the caller goes into."""
    return {(g.id, k.name) for g in p.log.graphs for k in g.kernels if _SCALAR_OF_CALLER.search(k.source)}


def _compiled_constants(program: Program, p: Pass, config: Config) -> Iterator[Finding]:
    fills, told = _fills(p), _told(p)
    constant: dict[tuple[str, int], bool] = {}
    version: dict[str, int] = defaultdict(int)
    groups: dict[tuple[object, ...], list[Kernel]] = defaultdict(list)
    for kernel in p.kernels:
        values = [(t.storage or "", version[t.storage or ""]) for t in kernel.reads]
        known = all(constant.get(v, False) for v in values)
        again = kernel.graph in p.repeated_graphs and (kernel.graph, kernel.name) not in told
        is_constant = again and known and bool(kernel.writes) and _reads_nothing_else(kernel)
        for tensor in kernel.writes:
            if tensor.storage is not None:
                version[tensor.storage] += 1
                constant[(tensor.storage, version[tensor.storage])] = is_constant
        if is_constant and _computes(kernel) and (kernel.graph, kernel.name) not in fills:
            groups[(kernel.graph, kernel.call)].append(kernel)
    for group in groups.values():
        names = group[0].op_names
        yield _finding(program, p, config, group, names, "depend on constants only and are computed in every step")


def _reads_nothing_else(kernel: Kernel) -> bool:
    """The byte model agrees that nothing but its listed reads comes in."""
    return bool(kernel.reads) or kernel.read_bytes in (0, None)


def _compiled_casts(program: Program, p: Pass, config: Config) -> Iterator[Finding]:
    groups: dict[tuple[object, ...], list[Kernel]] = defaultdict(list)
    written: dict[str, int] = defaultdict(int)
    trains = any(k.phase == "backward" for k in p.kernels) or any(o.phase == "backward" for o in p.ops)
    parameters_known = any(t.is_parameter for k in p.kernels for t in k.reads)
    inputs = {g.id: {t.storage for t in g.inputs} for g in p.log.graphs}
    for kernel in p.kernels:
        if only_moves(kernel) and kernel.reads and kernel.phase == "forward":
            sure = all(t.is_parameter for t in kernel.reads)
            maybe = not parameters_known and all(t.storage in inputs.get(kernel.graph or "", ()) for t in kernel.reads)
            if sure or maybe:
                values = tuple((t.storage, written[t.storage or ""]) for t in kernel.reads)
                groups[(kernel.graph, kernel.op_names, values, sure)].append(kernel)
        for tensor in kernel.writes:
            written[tensor.storage or ""] += 1
    for key, group in groups.items():
        own = bool(key[3])
        least = 2 if own else _MANY_CALLS
        saved = group[1:] if trains else group
        if (len(group) < least and trains) or (not own and len(group) < least) or not saved:
            continue
        where = "parameter" if own else "graph input"
        what = f"cast the same {where} again, {times(len(group))} a step"
        yield _finding(program, p, config, list(saved), saved[0].op_names, what)
