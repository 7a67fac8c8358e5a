"""CUDA graph requested and skipped (or recorded again and again).

What: mode="reduce-overhead" or "max-autotune" asked for CUDA graphs and the log says why a graph, or a part of it,
runs without, or that one is recorded anew for each size.

Why it costs: the launches that the user thinks are gone are there; re-recording costs more than it saves.

How it is measured: the cudagraphs log of the compiled pass, one finding for each reason. Where the log names none (no
GPU): graphs with symbolic sizes, and forwards with gradients whose backward never runs, foreseen from the output
code. The price is the launches that stay and, by the gaps of the clean pass (FA201), the time that a graph would save.

When it is wrong: a partition without a graph can be tiny; compare the launches.

What to do: what the reason asks for: move CPU scalars to the GPU, leave data-dependent sizes outside, pad to a few
sizes or mark them static, run inference under torch.no_grad(), call torch.compiler.cudagraph_mark_step_begin().
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator

from fusionaudit.config import Config
from fusionaudit.figures import counted
from fusionaudit.findings import Finding
from fusionaudit.inductor.model import CudagraphSkip
from fusionaudit.program.model import Pass, Program
from fusionaudit.rules.fa201 import graph_saving
from fusionaudit.rules.judging import human_time

CODE = "FA203"
TITLE = "CUDA graph requested and skipped"

_REMEDIES: tuple[tuple[str, str], ...] = (
    (r"cpu|DeviceCopy", "keep scalars and inputs on the GPU, or pass Python numbers"),
    (r"dynamic|unbacked|symint|distinct sizes|sizes", "pad to a few sizes, or torch._dynamo.mark_static"),
    (r"pending|backward|no_grad|fast path", "run inference under torch.no_grad(), or call "
     "torch.compiler.cudagraph_mark_step_begin() before each step"),
    (r"mutat", "do not write into inputs; return new tensors"),
    (r"nonzero|data.dependent|incompatible", "move the op with a size from data out of the compiled function"),
)  # fmt: skip
_NUMBERS = re.compile(r"\b(op|buf|arg)?\d+(_\d+)*\b")


def _foreseen(p: Pass) -> list[CudagraphSkip]:
    """What a run on a GPU would say about graphs that CUDA graphs were asked for (their code is partitioned for them).

    A graph for any size is recorded once for each size; a forward whose backward never runs keeps the next call off the
    fast path.
    """
    asked = [g for g in p.log.graphs if g.asks_for_cuda_graph]
    out = []
    for graph in asked:
        place = next((c.location for c in graph.calls if c.location is not None), None)
        if graph.symbols:
            reason = f"dynamic sizes ({', '.join(sorted(graph.symbols))}): a graph is recorded for each distinct size"
            out.append(CudagraphSkip(reason=reason, location=place, compile_id=graph.compile_id))
    backward = any(g.kind == "backward" for g in p.log.graphs)
    for graph in asked:
        if graph.kind == "forward" and not backward:
            place = next((c.location for c in graph.calls if c.location is not None), None)
            reason = "gradients are on and no backward follows: pending backwards keep calls off the fast path"
            out.append(CudagraphSkip(reason=reason, location=place, compile_id=graph.compile_id))
    return out


def check(program: Program, config: Config) -> Iterator[Finding]:
    """One finding for each reason and place."""
    for p in program.passes:
        if p.name != "compiled" and not p.name.startswith("imported"):
            continue
        groups: dict[tuple[object, ...], list[CudagraphSkip]] = defaultdict(list)
        for skip in p.log.cudagraph_skips or _foreseen(p):
            where = skip.location and (skip.location.file, skip.location.line)
            groups[(_NUMBERS.sub("N", skip.reason), where)].append(skip)
        for (reason, _), group in groups.items():
            first = group[0]
            remedy = next(
                (text for pattern, text in _REMEDIES if re.search(pattern, first.reason, re.I)), "see the reason"
            )
            graphs = {s.compile_id for s in group}
            mine = [k for k in p.kernels if k.graph is not None and k.graph.rsplit("/", 1)[0] in graphs]
            saving, basis = graph_saving(program, p, mine) if mine else (None, None)
            saving = saving if saving is not None and saving >= config.thresholds.min_saving_ns else None
            cost = f"; its {counted(len(mine), 'launch stays', 'launches stay')}" if mine else ""
            cost += f", which cost about {human_time(saving)} a step" if saving is not None else ""
            yield Finding(
                rule=CODE,
                pass_name=p.name,
                severity="warning",
                message=f"a CUDA graph was asked for and not used as asked: {first.reason}{cost}",
                kernel_ids=tuple(k.id for k in mine),
                saving_ns=saving,
                basis=None if saving is None else basis,
                location=first.location,
                reason=first.reason,
                remedy=remedy,
                evidence={"times": len(group), "launches": len(mine)},
                key=str(reason),
            )
