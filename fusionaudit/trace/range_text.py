"""What a range's text says: an op, a compiled graph's call, a step, a region, or compilation.

Texts come from ``torch.autograd.profiler.emit_nvtx``, torch.compile, our recorder and, as names, from torch.profiler.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal
from urllib.parse import unquote

from fusionaudit.trace.schema import RangeOp

RangeKind = Literal["op", "node", "graph", "step", "region", "compile"]

_RECORDED = re.compile(r"^fusionaudit:op (\d+) (\S+)")
_STEP = re.compile(r"^fusionaudit:step (\d+)")
_GRAPH = re.compile(r"^## Call CompiledFxGraph (\S+) ##")
_EMITTED = re.compile(
    r"^(?P<name>[^,]+?)(?:, seq = (?P<seq>-?\d+))?(?:, op_id = (?P<id>\d+))?"
    r"(?:, sizes = (?P<sizes>\[.*?\]))?(?:, input_op_ids = (?P<inputs>\[.*))?$"
)
_SHAPE = re.compile(r"\[([\d, ]*)\]")
_SOURCE = re.compile(r"\((\d+),\s*(-?\d+)\)")
_DISPATCHED = re.compile(r"^[A-Za-z_]\w*::[\w.]+$")
_IDENTIFIER = re.compile(r"^[A-Za-z_]\w*$")
_REGION, _COMPILE = "fusionaudit:region ", "fusionaudit:compile"
_TRITON = "triton_"
_GRAPH_NODES = ("CompiledFunction",)
"""Autograd nodes that stand for a whole compiled graph: what runs in them is the graph's, not one op's."""

UNNUMBERED = 1 << 40
"""First id given to op ranges whose text has no number; far above any counter of torch."""


@dataclass(frozen=True, kw_only=True)
class Meaning:
    """A text understood. ``value`` is the graph's key, the region's name or the step's number as text.

    ``node`` is an op only where nothing better encloses a launch: an autograd node, a kernel's own name.
    """

    kind: RangeKind
    op: RangeOp | None = None
    value: str = ""


def _shapes(text: str | None) -> tuple[tuple[int, ...], ...]:
    if not text:
        return ()
    return tuple(tuple(int(n) for n in body.split(",") if n.strip()) for body in _SHAPE.findall(text[1:]))


def dotted(name: str) -> str:
    """``aten.add`` for ``aten::add``."""
    return name.replace("::", ".")


def is_op_name(name: str, *, numbered: bool) -> bool:
    """True for the name of a dispatched op or of a generated kernel's launch.

    Libraries open ranges such as ``cub::DeviceReduce::Sum`` too: other namespaces than aten count only where torch
    numbered the range.
    """
    if name.startswith(("autograd::", "profiler::")):
        return False
    if name.startswith("aten::"):
        return True
    return numbered and (bool(_DISPATCHED.match(name)) or name.startswith(_TRITON))


def understand(text: str, serial: int) -> Meaning | None:
    """The meaning of a text; ``None`` for texts that say nothing of use. ``serial`` numbers ops without an id."""
    if text.startswith("fusionaudit:"):
        recorded = _RECORDED.match(text)
        if recorded:
            return Meaning(kind="op", op=RangeOp(name=recorded[2], op_id=int(recorded[1]), recorded=True))
        step = _STEP.match(text)
        if step:
            return Meaning(kind="step", value=step[1])
        if text.startswith(_REGION):
            return Meaning(kind="region", value=unquote(text[len(_REGION) :]))
        return Meaning(kind="compile") if text.startswith(_COMPILE) else None
    graph = _GRAPH.match(text)
    if graph:
        return Meaning(kind="graph", value=graph[1])
    found = _EMITTED.match(text)
    if found is None:
        return None
    name, numbered = found["name"], found["id"] is not None or found["seq"] is not None
    is_op = is_op_name(name, numbered=numbered)
    is_node = bool(_IDENTIFIER.match(name)) and found["sizes"] is not None and not name.startswith(_GRAPH_NODES)
    if not is_op and not is_node:
        return None
    op = RangeOp(
        name=dotted(name),
        op_id=int(found["id"]) if found["id"] is not None else UNNUMBERED + serial,
        sequence=int(found["seq"]) if found["seq"] is not None else None,
        shapes=_shapes(found["sizes"]),
        input_ops=tuple((int(a), int(b)) for a, b in _SOURCE.findall(found["inputs"] or "")),
    )
    return Meaning(kind="op" if is_op else "node", op=op)
