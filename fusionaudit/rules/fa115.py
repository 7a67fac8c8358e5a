"""Fusion changed against the baseline: which group split, which edge was lost.

What: ``fusionaudit check`` compares the audit with ``fusion.lock``, and a fusion group (ops that share a kernel, over
their shapes and dtypes, at their lines) is no longer what the lock says.

Why it costs: a tensor that stayed inside a kernel goes through global memory again, with one launch more; nothing fails
and nobody is told.

How it is measured: groups are matched exactly, then by ops and lines, then by likeness; launches and bytes of each
matched region before and after. Kernel names, line numbers, paths and times are never compared.

When it is wrong: under another key (target, SM count, torch, Triton) nothing is compared: "cannot judge". An edit that
renames variables on the very lines it changes can be put down to a neighbouring line.

What to do: undo the edit, or accept it with ``fusionaudit check --update`` and let the lock's diff be reviewed.
"""

from __future__ import annotations

from collections.abc import Iterator

from fusionaudit.config import Config
from fusionaudit.findings import Finding
from fusionaudit.program.model import Program

CODE = "FA115"
TITLE = "fusion changed against the baseline"


def check(program: Program, config: Config) -> Iterator[Finding]:
    """Nothing: one audit alone has no baseline. ``fusionaudit.check.check`` makes these findings."""
    return iter(())
