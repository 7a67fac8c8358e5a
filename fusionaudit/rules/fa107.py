"""Chain already fused by torch.compile: hand-fusing it would be wasted.

What: a generated kernel holds several ops of the program. It is there so that nobody writes by hand what the compiler
makes already.

Why it costs: it does not; writing such a kernel costs days and saves nothing. relu(x * s + b) by hand took 507.5 us
and by torch.compile 509.8 us on an H200.

How it is measured: the ops in the output code of the graph that ran, not the comments or names of kernels.

When it is wrong: one kernel is not always a fast one: see FA304 (far under the bandwidth), FA305 (reads again),
FA301. It speaks of the ops of one kernel: FA111 has kernels beside it that could have joined.

What to do: nothing; keep these lines inside the compiled region, and guard it (fusionaudit baseline).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from fusionaudit.config import Config
from fusionaudit.figures import counted, times
from fusionaudit.findings import Finding, Location
from fusionaudit.program.costs import sum_known
from fusionaudit.program.model import Kernel, Pass, Program
from fusionaudit.rules import fa111
from fusionaudit.rules.graph_groups import call_flow, generated_lines
from fusionaudit.rules.judging import human_bytes, short
from fusionaudit.rules.library_ops import roots

CODE = "FA107"
TITLE = "chain already fused by torch.compile: hand-fusing it would be wasted"

_GENERATED = {"pointwise", "reduction", "persistent_reduction", "scan", "foreach", "template"}
_NO_WORK = {"view", "permute", "transpose", "t", "slice", "select", "unsqueeze", "squeeze", "expand", "split", "unbind",
            "split_with_sizes", "alias", "detach", "reshape", "_unsafe_view", "as_strided", "clone", "_to_copy",
            "copy"}  # fmt: skip


def check(program: Program, config: Config) -> Iterator[Finding]:
    """One finding for each line and set of ops that share a generated kernel."""
    for p in program.passes:
        if p.name != "compiled" and not p.name.startswith("imported"):
            continue
        handed = _handed_on(p)
        left_apart = _left_apart(p) if config.selects(fa111.CODE) and not config.ignores(fa111.CODE) else {}
        groups: dict[tuple[Location | None, tuple[str, ...]], list[Kernel]] = defaultdict(list)
        for kernel in p.kernels:
            working = [n for n in roots(kernel.op_names) if n not in _NO_WORK]
            if kernel.graph is None or kernel.category not in _GENERATED or len(working) < 2:
                continue
            place = kernel.location or generated_lines(p).get((kernel.graph, kernel.name))
            groups[(place, kernel.op_names)].append(kernel)
        for (place, ops), group in groups.items():
            moved = sum_known(k.global_bytes for k in group)
            often = f" ({times(len(group))} a step)" if len(group) > 1 else ""
            first = group[0]
            at = (first.graph, first.call)
            rest = left_apart.get(at) or handed.get(at)
            yield Finding(
                rule=CODE,
                pass_name=p.name,
                severity="info",
                message=f"torch.compile makes one kernel of {short(first.op_names)}{often}, moving "
                f"{human_bytes(moved)} a step: nothing to win by fusing these by hand" + (f"; {rest}" if rest else ""),
                ops=first.op_names,
                kernel_ids=tuple(k.id for k in group),
                location=place,
                remedy="nothing to do",
                evidence={"times": len(group), "global_bytes": moved},
                graph=first.graph,
                key=str(ops),
            )


def _handed_on(p: Pass) -> dict[tuple[str | None, int | None], str]:
    """{(graph, call): what goes through memory between this generated kernel and the only other one that needs it}."""
    out: dict[tuple[str | None, int | None], str] = {}
    launched = {(k.graph, k.call) for k in p.kernels if k.category in _GENERATED}
    for graph in p.log.graphs:
        flow = call_flow(graph)
        for position, made in enumerate(flow.makes):
            for value, tensor in made:
                readers = flow.readers.get(value, ())
                ends = [(graph.id, graph.calls[i].index) for i in (position, *readers)]
                if len(readers) != 1 or value in flow.final or not launched.issuperset(ends):
                    continue
                text = f"{human_bytes(tensor.nbytes)} still go through memory between it and the one kernel that "
                out.setdefault(ends[0], text + "reads them")
                out.setdefault(ends[1], text + "writes them")
    return out


def _left_apart(p: Pass) -> dict[tuple[str | None, int | None], str]:
    """{(graph, call): what FA111 says of this kernel and those beside it}, so that the two rules tell one story."""
    out: dict[tuple[str | None, int | None], str] = {}
    for graph, group in fa111.kept_apart(p):
        for i in group.calls:
            text = "FA111 names what runs beside it as a kernel of its own"
            if set(group.why) == {"split"}:
                text = f"its reduction runs in stages, {counted(len(group.calls), 'kernel')} by design (FA111)"
            out[graph.id, graph.calls[i].index] = text
    return out
