"""A kernel computes in a wider dtype than its data asks for.

What: an elementwise op whose result is wider than its large input, because a small tensor (a mask, a scale, a
position table) was wider: float64 from a NumPy constant, float32 where the data is bfloat16. Or a generated kernel
that uses float64 though no tensor of it is.

Why it costs: the result and everything after it take twice (or four times) the bytes; float64 arithmetic runs at half
to a sixty-fourth of the float32 rate.

How it is measured: from the recorder's dtypes: elementwise ops, no explicit cast, result wider than the widest input
of the result's size. Generated kernels: float64 in the source, none in the signature.

When it is wrong: where the wider result is wanted (accumulating in float32 on purpose through a float32 operand).

What to do: give the small tensor the data's dtype (torch.tensor(..., dtype=x.dtype)), or cast it once.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator

from fusionaudit.config import Config
from fusionaudit.figures import times
from fusionaudit.findings import Finding, Severity
from fusionaudit.program.costs import op_kind, sum_known
from fusionaudit.program.model import Kernel, Pass, Program
from fusionaudit.rules.chain_findings import eager_like
from fusionaudit.rules.judging import compiled_away, human_bytes, short, worth
from fusionaudit.tensors import DTYPE_BYTES, Tensor
from fusionaudit.trace.schema import Op

CODE = "FA307"
TITLE = "a kernel computes in a wider dtype than its data asks for"

_FLOATS = ("float8_e4m3fn", "float8_e5m2", "bfloat16", "float16", "float32", "float64")
_WIDE = re.compile(r"tl\.float64|\.to\(tl\.float64\)|libdevice\.\w+_f64")


def promoted(op: Op) -> tuple[Tensor, Tensor] | None:
    """(large input, result) of an elementwise op that widens its data because of a small operand."""
    if op_kind(op) != "pointwise" or op.mutated or not op.outputs or len(op.inputs) < 2:
        return None
    result = op.outputs[0]
    if result.dtype not in _FLOATS or result.numel <= 1:
        return None
    large = [t for t in op.inputs if t.numel == result.numel and t.stored_elements == t.numel and t.dtype in _FLOATS]
    small = [t for t in op.inputs if t.stored_elements * 2 <= result.numel and t.shape]
    if not large:
        return None
    widest = max(large, key=lambda t: DTYPE_BYTES[t.dtype])
    wider = DTYPE_BYTES[result.dtype] > DTYPE_BYTES[widest.dtype]
    if wider and any(t.dtype == result.dtype for t in small):
        return widest, result
    return None


def check(program: Program, config: Config) -> Iterator[Finding]:
    """One finding for each line that widens, and each generated kernel that computes in float64 unasked."""
    for p in eager_like(program):
        groups: dict[tuple[object, ...], list[Op]] = defaultdict(list)
        for op in p.ops:
            found = promoted(op)
            if found is not None:
                where = op.location and (op.location.file, op.location.line)
                groups[(op.name, where, found[0].dtype, found[1].dtype, op.phase)].append(op)
        for (_, _, narrow, wide, _), group in groups.items():
            yield _finding(program, p, config, group, str(narrow), str(wide))
    for p in program.passes:
        if p.name == "compiled" or p.name.startswith("imported"):
            yield from _generated(p)


def _finding(program: Program, p: Pass, config: Config, group: list[Op], narrow: str, wide: str) -> Finding:
    extra = sum_known(
        None if t.nbytes is None else 2 * (t.nbytes - t.stored_elements * DTYPE_BYTES[narrow])
        for op in group
        for t in op.outputs[:1]
    )
    saving = None if program.device is None else program.device.transfer_ns(extra)
    judged = worth(program, p, config, saving_ns=saving, avoidable_bytes=extra)
    away = compiled_away(program, p, group)
    severity: Severity = "info" if away and wide != "float64" else judged.severity
    ids = {op.id for op in group}
    return Finding(
        rule=CODE,
        pass_name=p.name,
        severity=severity,
        message=f"{short([group[0].name])} turns {narrow} data into {wide} because of a small {wide} operand "
        f"({times(len(group))} a step): {human_bytes(extra)} more",
        ops=(group[0].name,),
        op_ids=tuple(sorted(ids)),
        kernel_ids=tuple(k.id for k in p.kernels if ids & set(k.ops)),
        location=group[0].location,
        avoidable_bytes=extra,
        saving_ns=saving,
        basis=judged.basis,
        remedy=f"give the small operand dtype torch.{narrow}",
        confidence="medium",
        evidence={"from": narrow, "to": wide, "share_of_step": judged.share},
        key=group[0].phase,
    )


def _generated(p: Pass) -> Iterator[Finding]:
    ran: dict[tuple[str, str], list[Kernel]] = defaultdict(list)
    for kernel in p.kernels:
        if kernel.graph is not None:
            ran[(kernel.graph, kernel.name)].append(kernel)
    for graph in p.log.graphs:
        for made in graph.kernels:
            kernels = ran.get((graph.id, made.name))
            if not kernels or "float64" in made.dtypes or not _WIDE.search(made.source):
                continue
            if any(n.tensor is not None and n.tensor.dtype == "float64" for n in graph.nodes if n.name in made.nodes):
                continue
            yield Finding(
                rule=CODE,
                pass_name=p.name,
                severity="info",
                message=f"{made.name} computes in float64 though none of its tensors is: {short(made.aten)}",
                ops=made.aten,
                kernel_ids=tuple(k.id for k in kernels),
                location=made.location,
                remedy="look for a float64 scalar or constant on these lines",
                confidence="low",
                graph=graph.id,
                key=f"{graph.kind} generated",
            )
