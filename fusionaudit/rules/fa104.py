"""Matmul epilogue (bias, activation, residual, cast) left as kernels of its own.

What: elementwise work on just what a matmul or convolution wrote, as further kernels.

Why it costs: the result is written, read and written again. For small inner sizes that is as much traffic as the
matmul itself; for large ones it disappears beside the FLOPs.

How it is measured: from dataflow; avoidable are the matmul's result written and read in between. What feeds the matmul
(a prologue), and what spreads its result over more elements, is no part of it. Only a separate bias
add is a warning, because one library call takes it in; activations and residuals are information, since cuBLAS fuses
few of them and Inductor only tries under max-autotune. An activation that is written out by hand is FA101's, with its
own bytes; what is left here is the matmul's result in between.

When it is wrong: a fused epilogue can slow the matmul down (registers); measure both.

What to do: torch.addmm or nn.Linear(bias=True) for the bias; torch._addmm_activation for bias with ReLU or GELU, where
no gradient is wanted (it has none); torch.compile(mode="max-autotune") for others.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace

from fusionaudit.config import Config
from fusionaudit.figures import times
from fusionaudit.findings import Finding, Location
from fusionaudit.inductor.model import CompiledGraph
from fusionaudit.program.chains import Chain, adds_bias
from fusionaudit.program.costs import op_bytes, sum_known
from fusionaudit.program.dataflow import dataflow
from fusionaudit.program.model import Kernel, Pass, Program
from fusionaudit.rules.chain_findings import chain_findings, chains_of, eager_like
from fusionaudit.rules.fa105 import is_copying
from fusionaudit.rules.graph_groups import call_flow, generated_lines
from fusionaudit.rules.judging import eager_line, human_bytes, short, short_place, worth
from fusionaudit.rules.library_ops import roots
from fusionaudit.tensors import Tensor
from fusionaudit.trace.schema import Op

CODE = "FA104"
TITLE = "matmul epilogue left as kernels of its own"

_REMEDY = 'torch.compile(mode="max-autotune") can fuse it into a Triton matmul; compare the times'
_BIAS = "use torch.addmm or nn.Linear(bias=True): the bias is then part of the matmul"
_TEXT = "work on a matmul's result just after it, which its epilogue could do"


def has_loose_bias(by_id: dict[int, Op], chain: Chain) -> bool:
    """A matmul without bias, then an add of one row (what is added to scores of heads is no bias of theirs)."""
    names = roots(chain.ops)
    if not names or names[0] not in ("mm", "bmm", "matmul"):
        return False
    adds = [by_id[op_id] for op_id in chain.op_ids[1:2]]
    return any(adds_bias(op) and min(t.stored_elements for t in op.inputs) in op.outputs[0].shape[-1:] for op in adds)


def _activation(by_id: dict[int, Op], chain: Chain) -> str | None:
    """The call for a matmul, its bias and an activation in one kernel, where the chain is just that."""
    names = roots(chain.ops)
    biased = names[:1] == ("addmm",) or (has_loose_bias(by_id, chain) and names[0] == "mm")
    after = names[1:] if names[:1] == ("addmm",) else names[2:]
    if not biased or after not in (("relu",), ("gelu",)):
        return None
    gelu = ", use_gelu=True" if after == ("gelu",) else ""
    exact = " (GELU by tanh)" if gelu else ""
    return f"torch._addmm_activation(bias, x, weight.t(){gelu}){exact}, one kernel that has no gradient"


def _spelled(p: Pass) -> Iterator[Chain]:
    """Activations by hand on just what a matmul wrote, or its bias: the edge between the two."""
    flow = dataflow(p)
    of_op = {step.op.id: step for step in flow.steps}
    behind = {i: c for c in chains_of(p) if c.kind == "matmul_epilogue" for i in c.op_ids}
    for chain in chains_of(p):
        if chain.library is None or chain.kind != "elementwise" or chain.phase != "forward":
            continue
        steps = [of_op[i] for i in chain.op_ids]
        inside = frozenset(s.index for s in steps)
        for value, tensor in dict(u for s in steps for u in s.uses).items():
            made = flow.made_by(value)
            if made is None or made.index in inside:
                continue
            before = behind.get(made.op.id)
            if before is None and made.kind not in ("matmul", "convolution"):
                continue
            if tensor.nbytes is None or made.makes[0][1].stored_elements != tensor.stored_elements:
                continue
            head = [made] if before is None else [of_op[i] for i in before.op_ids]
            moved = op_bytes(made.op) if before is None else [before.minimum_bytes]
            known = sum_known((*moved, chain.minimum_bytes))
            saved = tensor.nbytes * (1 if flow.leaves(value, inside) else 2)
            yield replace(
                chain,
                kind="matmul_epilogue",
                library=None,
                op_ids=(*(s.op.id for s in head), *chain.op_ids),
                ops=(*(s.op.name for s in head), *chain.ops),
                kernel_ids=(*head[0].kernels, *steps[-1].kernels),
                global_bytes=known,
                minimum_bytes=None if known is None else known - saved,
            )
            break


def check(program: Program, config: Config) -> Iterator[Finding]:
    """Eager matmul-epilogue groups; Triton kernels that read just an extern matmul's result (compiled, information)."""
    for p in eager_like(program):
        found = [c for c in chains_of(p) if c.kind == "matmul_epilogue" and not is_copying(c)]
        by_id = {op.id: op for op in p.ops}
        trained = any(op.phase == "backward" for op in p.ops)
        groups: dict[tuple[bool, str | None], list[Chain]] = defaultdict(list)
        for chain in found:
            groups[has_loose_bias(by_id, chain), None if trained else _activation(by_id, chain)].append(chain)
        for (biased, call), mine in groups.items():
            remedy = _BIAS if biased else _REMEDY
            remedy = remedy if call is None else f"{'use ' if not biased else _BIAS + '; or '}{call}"
            for finding in chain_findings(CODE, program, config, [(p, mine)], _TEXT, remedy):
                yield finding if biased else replace(finding, severity="info")
        text = "work on a matmul's result just after it; beside what FA101 says of them its epilogue could take them in"
        for finding in chain_findings(CODE, program, config, [(p, list(_spelled(p)))], text, _REMEDY):
            yield replace(finding, severity="info")
    compiled = program.get("compiled")
    if compiled is not None:
        yield from _compiled(program, compiled, config)


@dataclass(frozen=True, kw_only=True)
class _Epilogue:
    """One launch that works on just what a library matmul of its graph wrote, with the tensor between the two."""

    head: Kernel
    kernel: Kernel
    tensor: Tensor
    alone: bool
    location: Location | None

    @property
    def avoidable_bytes(self) -> int | None:
        """The result read, and written where nobody else needs it."""
        return None if self.tensor.nbytes is None else (2 if self.alone else 1) * self.tensor.nbytes


def _epilogues(p: Pass, graph: CompiledGraph) -> Iterator[_Epilogue]:
    flow = call_flow(graph)
    launches: dict[int, list[Kernel]] = defaultdict(list)
    for kernel in p.kernels:
        if kernel.graph == graph.id and kernel.call is not None:
            launches[kernel.call].append(kernel)
    for position, call in enumerate(graph.calls):
        if call.kind != "triton" or call.category not in ("pointwise", "copy"):
            continue
        found = [(flow.maker[v], v, t) for v, t in flow.uses[position] if v in flow.maker]
        heads = [
            (maker, value, tensor)
            for maker, value, tensor in found
            if graph.calls[maker].category in ("matmul", "convolution") and graph.calls[maker].kind == "extern"
        ]
        if not heads:
            continue
        # One matmul can take the kernel in: the last one that it waits for.
        maker, value, tensor = max(heads, key=lambda h: h[0])
        head = graph.calls[maker]
        alone = flow.readers[value] == (position,) and value not in flow.final
        # Several launches of the library call (split-K) end with the one that writes the result.
        ends = launches[head.index][-len(launches[call.index]) :]
        for made, kernel in zip(ends, launches[call.index], strict=False):
            read = next((t for m, t in zip(call.reads, kernel.reads, strict=False) if m == tensor), tensor)
            if any(t.numel == read.numel for t in kernel.writes):
                place = kernel.location or generated_lines(p).get((graph.id, call.target)) or made.location
                yield _Epilogue(head=made, kernel=kernel, tensor=read, alone=alone, location=place)


def _compiled(program: Program, p: Pass, config: Config) -> Iterator[Finding]:
    """Information: results of extern matmuls that a generated elementwise kernel reads, all of one line together."""
    groups: dict[tuple[object, ...], list[_Epilogue]] = defaultdict(list)
    for graph in p.log.graphs:
        for found in _epilogues(p, graph):
            where = found.location and (found.location.file, found.location.line)
            groups[(found.kernel.phase, found.head.op_names, found.kernel.op_names, where)].append(found)
    for group in groups.values():
        first = group[0]
        place = first.location or eager_line(program, first.kernel.op_names)
        avoidable = sum_known(e.avoidable_bytes for e in group)
        saving = None if program.device is None else program.device.transfer_ns(avoidable)
        judged = worth(program, p, config, saving_ns=saving, avoidable_bytes=avoidable)
        made_at = first.head.location
        head = short(first.head.op_names) + (f" ({short_place(made_at)})" if made_at is not None else "")
        often = f" {times(len(group))} a step" if len(group) > 1 else ""
        yield Finding(
            rule=CODE,
            pass_name=p.name,
            severity="info",
            message=f"a generated kernel ({short(first.kernel.op_names)}) works{often} on what the library's "
            f"{head} wrote: {human_bytes(avoidable)} a step go through memory in between",
            ops=first.kernel.op_names,
            kernel_ids=tuple(dict.fromkeys(k.id for e in group for k in (e.head, e.kernel))),
            location=place,
            avoidable_bytes=avoidable,
            saving_ns=saving,
            basis=judged.basis,
            reason="Inductor calls the library for this matmul, and library calls take no epilogue",
            remedy=_REMEDY,
            evidence={"times": len(group), "share_of_step": judged.share},
            graph=first.kernel.graph,
            key=f"{first.kernel.phase} {','.join(first.head.op_names)}",
        )
