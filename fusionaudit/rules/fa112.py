"""Graph break splits a chain.

What: torch.compile stops tracing between two ops that one kernel could hold, so what flows between them goes through
memory, and two graphs run instead of one.

Why it costs: each break adds launches, guard checks and Python between the graphs (tens of us), and the bytes of
every tensor that crosses.

How it is measured: breaks come from Dynamo's log. In the eager pass's dataflow a chain that has ops on lines on both
sides of the break is the one that is split; its avoidable bytes are the price. A break that no chain crosses is
information, and so is one where the host reads a value (that splits the chain by itself: FA204).

When it is wrong: lines tell order only within one function; a chain that runs through another function between the
two sides can be missed.

What to do: move the print, the Python branch or the unsupported call out of the compiled region, or hide it behind
torch._dynamo.disable on a function of its own; use torch.where for branches on data.
"""

from __future__ import annotations

from collections.abc import Iterator

from fusionaudit.config import Config
from fusionaudit.figures import counted
from fusionaudit.findings import Finding, Location
from fusionaudit.inductor.model import GraphBreak
from fusionaudit.program.chains import Chain
from fusionaudit.program.costs import sum_known
from fusionaudit.program.model import Pass, Program
from fusionaudit.rules.chain_findings import chains_of
from fusionaudit.rules.judging import fused_saving_ns, human_bytes, short, worth

CODE = "FA112"
TITLE = "graph break splits a chain"


def check(program: Program, config: Config) -> Iterator[Finding]:
    """One finding for each place where tracing stopped."""
    eager = program.get("eager")
    for p in program.passes:
        if p.name != "compiled" and not p.name.startswith("imported"):
            continue
        seen: set[tuple[str, int, str]] = set()
        for broken in p.log.breaks:
            place = broken.location
            mark = (place.file if place else "", place.line if place else 0, broken.reason)
            if mark in seen:
                continue
            seen.add(mark)
            yield _finding(program, p, eager, broken, config)


def split_chains(p: Pass, place: Location) -> list[Chain]:
    """The chains that have ops both above and below the line, in that file."""
    by_id = {op.id: op for op in p.ops}
    out = []
    for chain in chains_of(p):
        lines = [
            op.location.line
            for op in (by_id[i] for i in chain.op_ids)
            if op.location is not None and op.location.file == place.file
        ]
        if lines and min(lines) < place.line <= max(lines):
            out.append(chain)
    return out


def _finding(program: Program, p: Pass, eager: Pass | None, broken: GraphBreak, config: Config) -> Finding:
    place = broken.location
    split = split_chains(eager, place) if eager is not None and place is not None else []
    avoidable = sum_known(c.avoidable_bytes for c in split)
    saving = None
    if split and eager is not None:
        saving = sum_known(
            fused_saving_ns(program, eager, c.kernel_ids, c.minimum_bytes, c.avoidable_bytes) for c in split
        )
        # Each side is fused by itself already: what is left to save is what crosses, not the whole chain.
        crossing = [_crossing(c) for c in split]
        avoidable = sum_known(crossing)
        if program.device is not None:
            launches = program.device.launch_ns * len(split)
            saving = min(saving or launches, launches + (program.device.transfer_ns(avoidable) or 0))
    judged = worth(program, p, config, saving_ns=saving, avoidable_bytes=avoidable)
    ops = split[0].ops if split else ()
    text = "graph break that no chain crosses"
    if split:
        text = f"graph break: it splits {counted(len(split), 'chain')} ({short(ops)}); about {human_bytes(avoidable)}"
        text += " a step cross it"
    return Finding(
        rule=CODE,
        pass_name=p.name,
        severity=judged.severity if split else "info",
        message=text,
        ops=ops,
        op_ids=(),
        location=place,
        avoidable_bytes=avoidable,
        saving_ns=saving,
        basis=judged.basis if saving is not None else None,
        reason=broken.reason,
        remedy="move what cannot be traced out of the compiled function",
        confidence="medium",
        evidence={"chains": len(split), "share_of_step": judged.share},
        key=broken.reason,
    )


def _crossing(chain: Chain) -> int | None:
    """At least one value of the chain's size is written on one side and read on the other."""
    if not chain.outputs and not chain.inputs:
        return None
    sizes = [t.nbytes for t in (*chain.inputs, *chain.outputs)]
    return None if any(s is None for s in sizes) else 2 * max(s for s in sizes if s is not None)
