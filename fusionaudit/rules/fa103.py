"""Reduction followed by elementwise work that one kernel does.

What: a row statistic (max, sum, mean, variance) goes straight back into elementwise work on the same rows: softmax,
layer norm, RMS norm or a loss written out by hand, or a library softmax or norm with elementwise work after it.

Why it costs: each step reads the rows again. A softmax by hand is five kernels and moves the rows eight times, the
library's moves them twice.

How it is measured: from dataflow, as FA101; rows have to be many or short enough for one block each (32 rows, or
65536 elements), else the statistic needs a kernel of its own and nothing is reported.

When it is wrong: very long rows do not stay on the chip, so one kernel reads them twice; the saving is then less.

What to do: use the library call that the message names, or torch.compile.
"""

from __future__ import annotations

from collections.abc import Iterator

from fusionaudit.config import Config
from fusionaudit.findings import Finding
from fusionaudit.program.model import Program
from fusionaudit.rules.chain_findings import chain_findings, chains_of, eager_like

CODE = "FA103"
TITLE = "reduction followed by elementwise work that one kernel does"


def check(program: Program, config: Config) -> Iterator[Finding]:
    """One finding for each reduction with its epilogue."""
    wanted = [(p, [c for c in chains_of(p) if c.kind == "reduction_epilogue"]) for p in eager_like(program)]
    return chain_findings(
        CODE,
        program,
        config,
        wanted,
        "reduce rows and go over the same rows again, which one kernel would do",
        "torch.compile the expression: a row stays on the chip between its reduction and its use",
    )
