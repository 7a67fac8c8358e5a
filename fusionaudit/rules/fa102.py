"""Elementwise producer not fused into the reduction that reads it.

What: the elements that a sum, mean, max, softmax or norm reads were written by an elementwise kernel just before. Where
nobody else needs them they need not exist; where something does, one kernel still writes them but need not read them.

Why it costs: the whole tensor is written and read once more (or only read, where it is needed later).
x.abs().sum() over 2^28 floats moves 3.2 GB as two kernels and took 763 us on an H200; one kernel moves 1.07 GB and
took 250 us.

How it is measured: from dataflow, as FA101; the minimum is the producers' inputs and the reduction's output.

When it is wrong: where the script keeps the elementwise result without reading it again in the step. Reductions of a
few large rows need a second stage, which costs a small launch more than the model says.

What to do: torch.compile the expression; for sums of products use torch.dot, torch.linalg.vector_norm or einsum,
which do not write the product.
"""

from __future__ import annotations

from collections.abc import Iterator

from fusionaudit.config import Config
from fusionaudit.findings import Finding
from fusionaudit.program.model import Program
from fusionaudit.rules.chain_findings import chain_findings, chains_of, eager_like

CODE = "FA102"
TITLE = "elementwise producer not fused into the reduction that reads it"

_TEXTS = (
    (
        False,
        "write elements that only the reduction reads, which one kernel would do",
        "torch.compile the expression, or use one reduction that takes the elements as they are",
    ),
    (
        True,
        "write elements and read them again to reduce them; one kernel would reduce them as it writes them for others",
        "torch.compile the expression: the elements are still written, since others need them, but not read again",
    ),
)


def check(program: Program, config: Config) -> Iterator[Finding]:
    """One finding for each producer-reduction group."""
    for p in eager_like(program):
        found = [c for c in chains_of(p) if c.kind == "into_reduction"]
        for kept, text, remedy in _TEXTS:
            wanted = [(p, [c for c in found if c.keeps_rows == kept])]
            yield from chain_findings(CODE, program, config, wanted, text, remedy)
