"""Unfused elementwise chain.

What: elementwise ops follow each other over the same elements, each as a kernel of its own, so every value in between
is written to global memory and read again.

Why it costs: elementwise kernels do nothing but move memory. Three of them over x move six times x where one moves it
twice: relu(x * s + b) over 2^28 floats took 1527 us as three kernels and 508 us as one on an H200.

How it is measured: chains come from dataflow (same storage, same elements, one stream, no host read between). Bytes
now are the sum of what each op must move; the minimum is what enters and leaves the chain. The saving is the kernels'
time less that of one kernel with the minimum bytes at the device's attainable bandwidth.

What a library has as one call is told by what the ops compute, in whatever way it is written: activations by hand
(GELU by erf or tanh, SiLU, Mish, ...), SwiGLU and GLU, rotary embeddings, dropout by hand, dropout with the residual
behind it. Such a group is a finding of its own, behind a matmul too; its minimum is what the call moves, and values
that autograd keeps for the backward of the single ops are not among that. The backward has a finding of its own. The
chain around such a group has one too, in which the group counts as that call: what both save adds up to what one kernel
for the whole chain saves.

When it is wrong: a value that the script keeps for later (in a list, as a return value) without reading it again in
the step counts as an intermediate. Values that stay in L2 between two kernels cost less than their bytes say.

What to do: put the lines under torch.compile; use the library's call where the message names one; or write one kernel
(fusionaudit verify shows what a hand-written one would take at these shapes).
"""

from __future__ import annotations

from collections.abc import Iterator

from fusionaudit.config import Config
from fusionaudit.findings import Finding
from fusionaudit.program.model import Program
from fusionaudit.rules.chain_findings import chain_findings, chains_of, eager_like
from fusionaudit.rules.fa105 import is_copying

CODE = "FA101"
TITLE = "unfused elementwise chain"


def check(program: Program, config: Config) -> Iterator[Finding]:
    """One finding for each chain (equal chains of one line together)."""
    wanted = [
        (p, [c for c in chains_of(p) if c.kind == "elementwise" and not is_copying(c)]) for p in eager_like(program)
    ]
    return chain_findings(
        CODE,
        program,
        config,
        wanted,
        "follow each other over the same elements, which one kernel would do",
        "torch.compile the function these lines are in, or write one kernel for them",
    )
