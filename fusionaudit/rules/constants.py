"""What a step makes from constants alone, so that it could be made once."""

from __future__ import annotations

from fusionaudit.program.costs import op_root
from fusionaudit.program.dataflow import Step, dataflow
from fusionaudit.program.kept import kept
from fusionaudit.program.model import Pass

PLAIN_FILLS = {"full", "zeros", "ones", "empty", "zeros_like", "full_like", "ones_like", "fill", "zero", "new_zeros",
               "new_full", "scalar_tensor", "clone", "view", "expand", "_to_copy", "copy",
               "embedding_dense_backward", "nll_loss_backward", "constant_pad_nd", "cat", "slice_backward",
               "select_backward", "index_put", "scatter", "scatter_add", "index_add"}  # fmt: skip
"""Ops that are no computation worth keeping, where nothing but a constant goes into them."""


@kept
def constant_steps(p: Pass) -> list[Step]:
    """Eager steps that depend on no input: made from constants that no step changes, beyond a plain fill. None where
    no other step's arguments are known."""
    if not p.steps or not p.repeated:
        return []
    flow = dataflow(p)
    constant: set[int] = set()
    computed: set[int] = set()
    out: list[Step] = []
    for step in flow.steps:
        made_here = all(flow.maker.get(v) in constant for v, _ in step.uses)
        if step.op.id not in p.repeated or any(t.device.startswith("cpu") for t in step.op.inputs):
            continue
        if not made_here or step.kind not in ("fill", "pointwise", "cast", "copy", "join", "scan"):
            continue
        if any(v[0] in flow.carried for v, _ in step.makes) or not step.makes:
            continue
        if any(t.storage is None for t in step.op.inputs):
            continue
        constant.add(step.index)
        # What autograd makes of a loss's first gradient is not the script's to keep.
        if step.op.phase == "backward":
            continue
        # A cast or a copy of a table is kept with it, one of a plain fill is a plain fill.
        if op_root(step.op) not in PLAIN_FILLS or any(flow.maker.get(v) in computed for v, _ in step.uses):
            computed.add(step.index)
            out.append(step)
    return out
