"""Fusion changed numerics: a rounding step or cast that eager makes is gone.

What: inside a generated kernel values stay in float32 between ops, where eager rounds each result to bfloat16 or
float16.

Why it costs: no time; results differ from eager in the last bits, usually closer to the exact ones. It matters when a
test compares the two, or a training run is to be reproduced bit by bit.

How it is measured: nodes of a generated kernel whose result is 16 bits wide and is not stored: each is a rounding
that eager makes and the kernel does not. Information only.

When it is wrong: with torch._inductor.config.emulate_precision_casts = True the roundings are kept.

What to do: nothing, or compare with a tolerance of the dtype; emulate_precision_casts for bit equality.
"""

from __future__ import annotations

from collections.abc import Iterator

from fusionaudit.config import Config
from fusionaudit.figures import counted
from fusionaudit.findings import Finding
from fusionaudit.inductor.model import CompiledGraph
from fusionaudit.program.model import Program
from fusionaudit.rules.library_ops import roots

CODE = "FA306"
TITLE = "fusion changed numerics: a rounding step that eager makes is gone"

_HALF = {"bfloat16", "float16"}
_EXACT = {
    "view", "permute", "transpose", "t", "slice", "select", "unsqueeze", "squeeze", "expand", "clone", "neg", "abs",
    "relu", "where", "cat", "amax", "amin", "maximum", "minimum", "alias", "split", "full", "max", "min", "reshape",
    "getitem", "copy", "unbind", "split_with_sizes", "constant_pad_nd", "embedding", "index", "gather",
}  # fmt: skip
"""Ops whose result needs no rounding: they pick or move values that are rounded already."""


def lost_roundings(graph: CompiledGraph) -> dict[str, list[str]]:
    """Kernel name to the nodes in it whose 16-bit result is used in the kernel without being rounded."""
    nodes = {n.name: n for n in graph.nodes}
    users: dict[str, set[str]] = {}
    for node in graph.nodes:
        for source in node.inputs:
            users.setdefault(source, set()).add(node.name)
    out: dict[str, list[str]] = {}
    for kernel in graph.kernels:
        inside = set(kernel.nodes)
        for name in kernel.nodes:
            own = nodes.get(name)
            if own is None or own.tensor is None or own.tensor.dtype not in _HALF:
                continue
            readers = users.get(name, set())
            rounds = roots([own.op])[0] not in _EXACT
            if rounds and readers and readers <= inside:
                out.setdefault(kernel.name, []).append(name)
    return out


def check(program: Program, config: Config) -> Iterator[Finding]:
    """One finding for each graph that ran."""
    for p in program.passes:
        if p.name != "compiled" and not p.name.startswith("imported"):
            continue
        ran = {k.graph for k in p.kernels if k.graph is not None}
        for graph in p.log.graphs:
            lost = lost_roundings(graph) if graph.id in ran else {}
            if not lost:
                continue
            count = sum(len(names) for names in lost.values())
            nodes = {n.name: n for n in graph.nodes}
            first = nodes[next(iter(lost.values()))[0]]
            yield Finding(
                rule=CODE,
                pass_name=p.name,
                severity="info",
                message=f"graph {graph.id}: {counted(count, 'result')} in {counted(len(lost), 'kernel')} are not "
                "rounded to 16 bits as eager rounds them",
                ops=tuple(dict.fromkeys(nodes[n].op for names in lost.values() for n in names)),
                kernel_ids=tuple(k.id for k in p.kernels if k.graph == graph.id and k.name in lost),
                location=first.location,
                remedy="compare with a tolerance, or set torch._inductor.config.emulate_precision_casts = True",
                confidence="medium",
                evidence={"roundings": count, "kernels": sorted(lost)},
                graph=graph.id,
                key=graph.kind,
            )
