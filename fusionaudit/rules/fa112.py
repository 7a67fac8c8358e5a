"""Graph break splits a chain.

What: torch.compile stops tracing between two ops that one kernel could hold, so what flows between them goes through
memory, and two graphs run instead of one. The same where a script compiles two functions each on its own and one
takes up what the other made, or where part of a chain runs outside what is compiled.

Why it costs: each break adds launches, guard checks and Python between the graphs (tens of us), and the bytes of
every tensor that crosses.

How it is measured: breaks come from Dynamo's log. Each chain of the eager pass's dataflow is laid over the compiled
graphs by the lines of its ops; what goes from the graph before the break to another is the price: its bytes, and one
launch for each chain. Where the log does not say which graph broke, a chain with ops on lines on both sides of the
break is the one that is split. A break that no chain crosses is information, and so is one where the host reads a
value (that splits the chain by itself: FA204), and so is what runs outside what the script compiles: where that ends
is its author's choice, and what crosses there is no break's price.

When it is wrong: ops on a line that several compiled functions share are not placed, so a chain through them can be
missed.

What to do: move the print, the Python branch or the unsupported call out of the compiled region, or hide it behind
torch._dynamo.disable on a function of its own; use torch.where for branches on data; compile the caller of both
functions.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from fusionaudit.config import Config
from fusionaudit.figures import counted
from fusionaudit.findings import Finding
from fusionaudit.inductor.model import GraphBreak
from fusionaudit.program.chains import Chain
from fusionaudit.program.costs import sum_known
from fusionaudit.program.model import Pass, Program
from fusionaudit.rules.chain_findings import saving_of
from fusionaudit.rules.judging import compiles_itself, human_bytes, short, worth
from fusionaudit.rules.split_chains import OUTSIDE, Crossing, crossings, kernels_at, of_break, split_at, units_of

CODE = "FA112"
TITLE = "graph break splits a chain"


def check(program: Program, config: Config) -> Iterator[Finding]:
    """One finding for each place where tracing stopped, and for each where one compiled function takes up another's."""
    eager = program.get("eager")
    for p in program.passes:
        if p.name != "compiled" and not p.name.startswith("imported"):
            continue
        units = units_of(p)
        left = crossings(eager, units) if eager is not None and p.name == "compiled" else []
        seen: set[tuple[str, int, str]] = set()
        for broken in p.log.breaks:
            place = broken.location
            mark = (place.file if place else "", place.line if place else 0, broken.reason)
            if mark in seen:
                continue
            seen.add(mark)
            mine = of_break(left, broken)
            left = [c for c in left if c not in mine]
            if not mine and eager is not None and place is not None:
                mine = [_by_line(c) for c in split_at(eager, place, units)]
            yield _finding(program, p, eager, broken, mine, config)
        if eager is not None and compiles_itself(program):
            yield from _apart(program, p, eager, left, config)


def _by_line(chain: Chain) -> Crossing:
    """At least one value of the chain's size is written on one side and read on the other."""
    sizes = [t.nbytes for t in (*chain.inputs, *chain.outputs)]
    known = None if not sizes or any(s is None for s in sizes) else 2 * max(s for s in sizes if s is not None)
    return Crossing(chain=chain, first=OUTSIDE, second=OUTSIDE, nbytes=known, at=chain.location)


def _price(program: Program, eager: Pass, split: Sequence[Crossing]) -> tuple[int | None, int | None]:
    """(bytes, time) that the crossings cost; no more than the chains as one kernel would save."""
    whole = {c.chain.op_ids: c.chain for c in split}.values()
    saving = sum_known(saving_of(program, eager, c) for c in whole)
    moved = sum_known(c.nbytes for c in split)
    # Each side is fused by itself already: what is left to save is what crosses, not the whole chain.
    if program.device is not None:
        launches = program.device.launch_ns * len(split)
        saving = min(saving or launches, launches + (program.device.transfer_ns(moved) or 0))
    return moved, saving


def _finding(
    program: Program, p: Pass, eager: Pass | None, broken: GraphBreak, split: Sequence[Crossing], config: Config
) -> Finding:
    moved, saving = _price(program, eager, split) if split and eager is not None else (None, None)
    judged = worth(program, p, config, saving_ns=saving, avoidable_bytes=moved)
    ops = split[0].chain.ops if split else ()
    chains = len({c.chain.op_ids for c in split})
    text = "graph break that no chain crosses"
    if split:
        text = f"graph break: it splits {counted(chains, 'chain')} ({short(ops)}); about {human_bytes(moved)}"
        text += f" a step cross it, in {counted(len(split), 'more launch', 'more launches')}"
    return Finding(
        rule=CODE,
        pass_name=p.name,
        severity=judged.severity if split else "info",
        message=text,
        ops=ops,
        op_ids=(),
        kernel_ids=kernels_at(p, eager, list(split)) if eager is not None else (),
        location=broken.location,
        avoidable_bytes=moved,
        saving_ns=saving,
        basis=judged.basis if saving is not None else None,
        reason=broken.reason,
        remedy="move what cannot be traced out of the compiled function",
        confidence="medium",
        evidence={
            "chains": chains,
            "launches": len(split),
            "share_of_step": judged.share,
        },
        key=broken.reason,
    )


def _apart(program: Program, p: Pass, eager: Pass, left: Sequence[Crossing], config: Config) -> Iterator[Finding]:
    """What crosses with no break: functions that are compiled each on its own, or eager ops beside a graph."""
    groups: dict[tuple[object, ...], list[Crossing]] = defaultdict(list)
    for c in left:
        where = c.at and (c.at.file, c.at.line)
        groups[c.chain.ops, where, OUTSIDE in (c.first, c.second)].append(c)
    for (_, _, outside), split in groups.items():
        first = split[0]
        moved, saving = _price(program, eager, split)
        judged = worth(program, p, config, saving_ns=saving, avoidable_bytes=moved)
        sides = "partly outside the compiled graphs" if outside else "in graphs that are compiled apart"
        yield Finding(
            rule=CODE,
            pass_name=p.name,
            severity="info" if outside else judged.severity,
            message=f"a chain ({short(first.chain.ops)}) runs {sides}: about {human_bytes(moved)} a step cross "
            f"between them, in {counted(len(split), 'more launch', 'more launches')}",
            ops=first.chain.ops,
            kernel_ids=kernels_at(p, eager, split),
            location=first.at,
            avoidable_bytes=moved,
            saving_ns=saving,
            basis=judged.basis if saving is not None else None,
            reason="part of it is not compiled" if outside else "no graph break: each function is compiled on its own",
            remedy="move it into the compiled function" if outside else "compile the function that calls both",
            confidence="medium",
            evidence={"chains": len(split), "launches": len(split), "share_of_step": judged.share},
            key="apart",
        )
