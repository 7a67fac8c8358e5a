"""From chains to findings: equal chains of one line become one finding, with their bytes and times added up."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fusionaudit.config import Config
from fusionaudit.figures import counted, times
from fusionaudit.findings import Finding, Severity
from fusionaudit.program.chains import Chain, LibraryCall, chains, narrowed
from fusionaudit.program.costs import sum_known
from fusionaudit.program.kept import kept
from fusionaudit.program.model import Pass, Program
from fusionaudit.rules.constants import constant_steps
from fusionaudit.rules.judging import (
    between_ns,
    compiled_away,
    compiles_itself,
    fused_saving_ns,
    human_bytes,
    human_time,
    short,
    worth,
)
from fusionaudit.rules.library_ops import library_call, only_library
from fusionaudit.rules.repeats import claimed_ops
from fusionaudit.rules.seams import undivided, with_calls
from fusionaudit.rules.spelled_out import spelled_out
from fusionaudit.rules.update_calls import tensor_call
from fusionaudit.trace.schema import Op


@kept
def chains_of(p: Pass) -> tuple[Chain, ...]:
    """The chains of a pass, worked out once for all rules that ask.

    What FA108 would have made once is not in them: it saves all that those ops move. What a library has as one call
    (``library``) is a chain of its own, and counts as that call in the chain that one kernel could make of it and the
    ops around it (``calls``).
    """
    spelled = spelled_out(p)
    return _beside(p, spelled, _without(p, spelled), seams=True)


@kept
def whole_chains(p: Pass) -> tuple[Chain, ...]:
    """The chains as one kernel could do them, a library's pattern with what goes before and after it.

    A pattern that no such chain holds whole (attention) stays one of its own.
    """
    spelled = spelled_out(p)
    if not spelled:
        return chains_of(p)
    whole = undivided(p)
    holds = {i: number for number, chain in enumerate(whole) for i in chain.op_ids}
    apart = [c for c in spelled if len({holds.get(i) for i in c.op_ids}) > 1]
    return _beside(p, apart, _without(p, apart) if apart else whole)


def _without(p: Pass, own: Sequence[Chain]) -> tuple[Chain, ...]:
    return chains(p, without=frozenset(i for c in own for i in c.op_ids))


def _beside(p: Pass, own: Sequence[Chain], others: Sequence[Chain], *, seams: bool = False) -> tuple[Chain, ...]:
    """The patterns ``own`` and the other chains without what FA108 makes once, in order of execution."""
    constant = frozenset(s.op.id for s in constant_steps(p))
    rest = [c for chain in others if (c := narrowed(p, chain, constant)) is not None]
    found = [*own, *(with_calls(p, rest, constant) if seams and own else rest)]
    return tuple(sorted(found, key=lambda c: c.op_ids[0]))


def eager_like(program: Program) -> list[Pass]:
    """The passes whose own ops chains are looked for in: what was recorded eagerly, or an import."""
    return [p for p in program.passes if p.name == "eager" or p.name.startswith("imported")]


def grouped(found: Sequence[Chain]) -> list[list[Chain]]:
    """Chains with the same ops at the same line together, in order of first execution."""
    out: dict[tuple[object, ...], list[Chain]] = {}
    for chain in found:
        where = chain.location and (chain.location.file, chain.location.line)
        calls = tuple(c.ops for c in chain.calls)
        out.setdefault((chain.kind, chain.ops, where, chain.phase, calls), []).append(chain)
    return list(out.values())


def _together(op: Op, chain: Chain) -> bool:
    return op.location == chain.location and op.phase == chain.phase


def saving_of(program: Program, p: Pass, chain: Chain) -> int | None:
    """The time that one kernel for the chain saves; of what is a library's call in it, not what the call saves."""
    inner = [saving_of(program, p, c) for c in chain.calls]
    avoidable = sum_known((chain.avoidable_bytes, *(c.avoidable_bytes for c in chain.calls)))
    kernels = (*chain.kernel_ids, *(k for c in chain.calls for k in c.kernel_ids))
    whole = fused_saving_ns(program, p, kernels, chain.minimum_bytes, avoidable, chain.kernels)
    left = sum_known((whole, *(None if ns is None else -ns for ns in inner)))
    return None if left is None else max(0, left)


def _shown(chain: Chain) -> str:
    """``2 kernels (mul, and SiLU as one call)``."""
    spelled = chain.called
    names = short(name for i, name in zip(chain.op_ids, chain.ops, strict=True) if i not in spelled)
    called = list(dict.fromkeys(c.library.name for c in chain.calls if c.library is not None))
    and_calls = f", and {' and '.join(called)} as one call" if called else ""
    and_calls += " each" if len(chain.calls) > 1 else ""
    return f"{counted(chain.launches, 'kernel')} ({names}{and_calls})"


def _use(pattern: LibraryCall) -> str:
    """The remedy: the call, with torch.compile as the other way where the call does not say so."""
    return f"use {pattern.call}" + ("" if "torch.compile" in pattern.call else "; or torch.compile")


def chain_findings(
    rule: str, program: Program, config: Config, wanted: Sequence[tuple[Pass, Sequence[Chain]]], what: str, remedy: str
) -> Iterator[Finding]:
    """One finding for each group of equal chains; ``what`` ends the message's first part (``one kernel would ...``).

    A library's call is named for what one kernel does.
    """
    for p, found in wanted:
        claimed = claimed_ops(program, p, config)
        by_id = {op.id: op for op in p.ops}
        for group in grouped(found):
            first = group[0]
            ids = [i for c in group for i in c.op_ids]
            avoidable = sum_known(c.avoidable_bytes for c in group)
            saving = sum_known(saving_of(program, p, c) for c in group)
            judged = worth(program, p, config, saving_ns=saving, avoidable_bytes=avoidable)
            if saving is not None:  # the share is one of kernel times; the time also holds the gaps between them
                saving += sum(between_ns(p, c.kernel_ids, left=c.kernels + len(c.op_ids) - c.launches) for c in group)
            ops = [by_id[i] for i in ids if i in by_id]
            pattern = first.library
            library = only_library(ops)
            reason, call = None, remedy if pattern is None else _use(pattern)
            if sum(i in claimed for i in ids) * 2 >= len(ids):
                reason = "part of a loop over parameters or time steps that FA106 or FA202 reports"
                call = tensor_call(first, ops)
            elif compiled_away(program, p, ops):
                reason = "torch.compile in the script already takes these ops into its graphs"
                call = "nothing to do in the eager form; what is left is judged in the compiled pass"
            elif library is not None and library_call(library, (o.name for o in p.ops if _together(o, first))) is None:
                reason = f"inside {library}, which takes all tensors at once already"
                call = f"nothing to edit here; torch.compile around {library} can fuse it"
            elif p.name == "eager" and compiles_itself(program):
                reason = "outside what the script compiles"
                call = "move it into the compiled function"
            elif library is not None:
                call = f"use {library_call(library, first.ops)}"
            severity: Severity = judged.severity if reason is None else "info"
            where = f" in {library}" if library is not None else ""
            if first.phase == "backward" and first.location is not None:
                where += f" in the backward of line {first.location.line}"
            often = f" ({times(len(group))} a step)" if len(group) > 1 else ""
            do = what if pattern is None else f"spell out {pattern.name}"
            message = f"{_shown(first)}{where}{often} {do}: "
            message += f"{human_bytes(avoidable)} a step need not move"
            if saving:
                message += f", about {human_time(saving)}"
            yield Finding(
                rule=rule,
                pass_name=p.name,
                severity=severity,
                message=message,
                ops=first.ops,
                op_ids=tuple(ids),
                kernel_ids=tuple(k for c in group for k in c.kernel_ids),
                location=first.location,
                avoidable_bytes=avoidable,
                saving_ns=saving,
                basis=judged.basis,
                reason=reason,
                remedy=call,
                confidence="high" if p.name == "eager" else "medium",
                evidence={
                    "launches": first.launches,
                    "times": len(group),
                    "global_bytes": sum_known(c.global_bytes for c in group),
                    "minimum_bytes": sum_known(c.minimum_bytes for c in group),
                    "share_of_step": judged.share,
                    **({"library": pattern.name} if pattern is not None else {}),
                    **({"beside": [c.library.name for c in first.calls if c.library]} if first.calls else {}),
                },
                key=first.phase,
            )
