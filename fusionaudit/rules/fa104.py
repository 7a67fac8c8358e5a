"""Matmul epilogue (bias, activation, residual, cast) left as kernels of its own.

What: elementwise work on just what a matmul or convolution wrote, as further kernels.

Why it costs: the result is written, read and written again. For small inner sizes that is as much traffic as the
matmul itself; for large ones it disappears beside the FLOPs.

How it is measured: from dataflow; avoidable are the matmul's result written and read in between. Only a separate bias
add is a warning, because one library call takes it in; activations and residuals are information, since cuBLAS fuses
few of them and Inductor only tries under max-autotune.

When it is wrong: a fused epilogue can slow the matmul down (registers); measure both.

What to do: torch.addmm or nn.Linear(bias=True) for the bias; torch._addmm_activation for bias with ReLU or GELU;
torch.compile(mode="max-autotune") for others.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from fusionaudit.config import Config
from fusionaudit.findings import Finding
from fusionaudit.program.chains import Chain
from fusionaudit.program.model import Pass, Program
from fusionaudit.rules.chain_findings import chain_findings, chains_of, eager_like
from fusionaudit.rules.fa105 import is_copying
from fusionaudit.rules.judging import human_bytes, worth
from fusionaudit.rules.library_ops import roots
from fusionaudit.trace.schema import Op

CODE = "FA104"
TITLE = "matmul epilogue left as kernels of its own"

_REMEDY = 'torch.compile(mode="max-autotune") can fuse it into a Triton matmul; compare the times'


def has_loose_bias(by_id: dict[int, Op], chain: Chain) -> bool:
    """A matmul without bias, then an add of a small (broadcast) tensor."""
    names = roots(chain.ops)
    if not names or names[0] not in ("mm", "bmm", "matmul"):
        return False
    for op_id, name in zip(chain.op_ids[1:2], names[1:2], strict=True):
        op = by_id[op_id]
        sizes = sorted(t.stored_elements for t in op.inputs)
        if name == "add" and len(sizes) == 2 and sizes[0] * 2 <= sizes[1] and sizes[0] > 1:
            return True
    return False


def check(program: Program, config: Config) -> Iterator[Finding]:
    """Eager matmul-epilogue groups; Triton kernels that read just an extern matmul's result (compiled, information)."""
    for p in eager_like(program):
        found = [c for c in chains_of(p) if c.kind == "matmul_epilogue" and not is_copying(c)]
        by_id = {op.id: op for op in p.ops}
        biased = {c.op_ids for c in found if has_loose_bias(by_id, c)}
        text = "work on a matmul's result just after it, which its epilogue could do"
        wanted = [(p, [c for c in found if c.op_ids in biased])]
        remedy = "use torch.addmm or nn.Linear(bias=True): the bias is then part of the matmul"
        yield from chain_findings(CODE, program, config, wanted, text, remedy)
        wanted = [(p, [c for c in found if c.op_ids not in biased])]
        for finding in chain_findings(CODE, program, config, wanted, text, _REMEDY):
            yield replace(finding, severity="info")
    compiled = program.get("compiled")
    if compiled is not None:
        yield from _compiled(program, compiled, config)


def _compiled(program: Program, p: Pass, config: Config) -> Iterator[Finding]:
    """Information: results of extern matmuls that one pointwise kernel reads, once a line."""
    maker: dict[str, int] = {}
    seen: set[tuple[object, ...]] = set()
    for kernel in p.kernels:
        if kernel.graph is not None and kernel.category in ("pointwise", "copy"):
            for tensor in kernel.reads:
                head = maker.get(tensor.storage or "")
                if head is None or not any(t.numel == tensor.numel for t in kernel.writes):
                    continue
                where = (kernel.graph, kernel.op_names, kernel.location and kernel.location.line)
                if where in seen:
                    continue
                seen.add(where)
                avoidable = None if tensor.nbytes is None else 2 * tensor.nbytes
                saving = None if program.device is None else program.device.transfer_ns(avoidable)
                judged = worth(program, p, config, saving_ns=saving, avoidable_bytes=avoidable)
                yield Finding(
                    rule=CODE,
                    pass_name=p.name,
                    severity="info",
                    message=f"a generated kernel works on what {p.kernels[head].name} wrote just before: "
                    f"{human_bytes(avoidable)} go through memory in between",
                    ops=kernel.op_names,
                    kernel_ids=(head, kernel.id),
                    location=kernel.location,
                    avoidable_bytes=avoidable,
                    saving_ns=saving,
                    basis=judged.basis,
                    reason="Inductor calls the library for this matmul, and library calls take no epilogue",
                    remedy=_REMEDY,
                    graph=kernel.graph,
                )
        for tensor in kernel.writes:
            if tensor.storage is not None:
                maker.pop(tensor.storage, None)
                if kernel.category in ("matmul", "convolution") and kernel.graph is not None:
                    maker[tensor.storage] = kernel.id
