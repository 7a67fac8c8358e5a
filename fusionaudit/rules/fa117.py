"""Fusion depends on dtype, shape, dynamic dims or an option.

What: ``fusionaudit sweep`` audits the script in several variants, and one variant has other fusion groups than the
first.

Why it costs: a program that fuses in float32 can fall apart in bfloat16 (casts), with dynamic sizes (split reductions)
or under an Inductor option, and only one of the variants is ever looked at.

How it is measured: groups of the compiled pass of each variant against those of the first, matched as FA115 does, with
dtypes and symbolic sizes set aside: a dtype that was asked for is no change.

When it is wrong: ops that a variant itself adds (casts) count as changes; the figures say what they cost.

What to do: use the variant that fuses, or rewrite the lines so that all do.
"""

from __future__ import annotations

from collections.abc import Iterator

from fusionaudit.config import Config
from fusionaudit.findings import Finding
from fusionaudit.program.model import Program

CODE = "FA117"
TITLE = "fusion depends on dtype, shape, dynamic dims or an option"


def check(program: Program, config: Config) -> Iterator[Finding]:
    """Nothing: one audit alone is one variant. ``fusionaudit.sweep`` makes these findings."""
    return iter(())
