"""Reduction followed by elementwise work that one kernel does.

What: a row statistic (max, sum, mean, variance) goes straight back into elementwise work on the same rows: softmax,
log_softmax, layer norm, RMS norm or cross-entropy written out by hand, attention as two products with a softmax in
between, or a library softmax or norm with elementwise work after it.

Why it costs: each step reads the rows again. A softmax by hand is five kernels and moves the rows eight times, the
library's moves them twice.

How it is measured: from dataflow, as FA101. Rows that are many or short enough for one block each (32 rows, or 65536
elements) are one kernel's work; a statistic of fewer and longer ones needs all SMs, so its use is a second kernel that
reads the input again. So does one kernel whose rows stay neither in a block's shared memory (227 KB) nor, those of all
SMs together, in the L2 cache (50 MB): the input then counts twice. Rows and columns of one matrix never share a kernel:
sums over columns are groups of their own, and a norm's backward that has weights takes two kernels.

What a library has as one call is told by what the ops make of a row (and for attention by who reads whom); then the
minimum is what the call moves: the rows once in and once out, queries, keys, values, mask and result of attention, not
the scores; for cross-entropy also the log-probabilities that the library's own keeps.

When it is wrong: on a device with another size of L2 cache, near that limit. Attention whose weights the script keeps
without reading them again (a module that returns them) cannot be replaced, and heads or dtypes that no fused kernel
takes gain nothing.

What to do: use the library call that the message names, or torch.compile.
"""

from __future__ import annotations

from collections.abc import Iterator

from fusionaudit.config import Config
from fusionaudit.findings import Finding
from fusionaudit.program.chains import Chain
from fusionaudit.program.costs import op_kind
from fusionaudit.program.model import Program
from fusionaudit.rules.chain_findings import chain_findings, chains_of, eager_like
from fusionaudit.trace.schema import Op

CODE = "FA103"
TITLE = "reduction followed by elementwise work that one kernel does"

_REMEDY = "torch.compile the expression: a row stays on the chip between its reduction and its use"
_AGAIN = "torch.compile the expression: what lies between the input and the reduction is computed again, not kept"
_TEXTS = {
    "once": ("reduce rows and go over the same rows again, which one kernel would do", _REMEDY),
    "twice": ("reduce rows and go over them again, which two kernels that each read the input would do", _AGAIN),
    "results": (
        "reduce rows and work on the results, which one kernel would do",
        "torch.compile the expression: the results are worked on before they are written",
    ),
}


def _form(by_id: dict[int, Op], chain: Chain) -> str:
    """Whether its kernels go over the rows again, and how often they read them."""
    first, *rest = (by_id[i] for i in chain.op_ids)
    made = max((t.numel for t in first.outputs), default=0)
    if op_kind(first) == "reduction" and all(t.numel <= made for op in rest for t in (*op.inputs, *op.outputs)):
        return "results"
    return "once" if chain.kernels == 1 else "twice"


def check(program: Program, config: Config) -> Iterator[Finding]:
    """One finding for each reduction with its epilogue."""
    for p in eager_like(program):
        by_id = {op.id: op for op in p.ops}
        found = [(_form(by_id, c), c) for c in chains_of(p) if c.kind == "reduction_epilogue"]
        for form, (text, remedy) in _TEXTS.items():
            wanted = [(p, [c for f, c in found if f == form])]
            yield from chain_findings(CODE, program, config, wanted, text, remedy)
