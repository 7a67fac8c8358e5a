"""Fusion depends on dtype, shape, dynamic dims or an option.

What: ``fusionaudit sweep`` audits the script in several variants, and one variant has other fusion groups than the
first.

Why it costs: a program that fuses in float32 can fall apart in bfloat16 (casts), with dynamic sizes (split reductions)
or under an Inductor option, and only one of the variants is ever looked at.

How it is measured: groups of the compiled pass of each variant against those of the first, matched as FA115 does, with
dtypes and symbolic sizes set aside: a dtype that was asked for is no change.

In one audit alone: generated kernels that share data and loop over equal sizes, which a graph with symbolic sizes
cannot prove equal.

When it is wrong: ops that a variant itself adds (casts) count as changes; the figures say what they cost.

What to do: use the variant that fuses, or rewrite the lines so that all do.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from fusionaudit.config import Config
from fusionaudit.findings import Finding
from fusionaudit.program.chip import chip_of
from fusionaudit.program.model import Program
from fusionaudit.rules.fa111 import group_finding, is_dynamic
from fusionaudit.rules.graph_groups import groups

CODE = "FA117"
TITLE = "fusion depends on dtype, shape, dynamic dims or an option"


def check(program: Program, config: Config) -> Iterator[Finding]:
    """Kernels that a graph for any size keeps apart; ``fusionaudit.sweep`` makes the other findings."""
    for p in program.passes:
        if p.name != "compiled" and not p.name.startswith("imported"):
            continue
        ran = {k.graph for k in p.kernels if k.graph is not None}
        for graph in p.log.graphs:
            for group in groups(graph, chip_of(p.device)) if graph.id in ran else ():
                if is_dynamic(graph, group):
                    found = group_finding(program, p, config, [(graph, group)])
                    sizes = ", ".join(f"{name}={value}" for name, value in sorted(graph.symbols.items()))
                    yield replace(
                        found,
                        rule=CODE,
                        message=f"with dynamic sizes {found.message} ({sizes})",
                        remedy="compare `fusionaudit sweep --dynamic on,off`; mark fewer sizes dynamic",
                    )
