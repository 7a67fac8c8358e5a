"""The chain of a finding as a small drawing: ops from top to bottom, tensors on the edges, kernels as frames.

Only positions and texts are made here; the template draws them, so that escaping is the template's.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from fusionaudit.report import wording as w
from fusionaudit.report.private import scrub_text

WIDTH = 560
_BOX_X, _BOX_WIDTH, _BOX_HEIGHT = 190, 180, 40
_GAP, _TOP = 44, 12
_MOST_NODES = 8
_FEW_NODES = 6
"""Ops that are drawn where not all fit: a loop over parameters looks the same after a few turns."""
_MOST_SIDE = 2
_LABEL, _LABEL_X, _CHARACTER = 22, 32, 7.2
"""Characters of a label at most, how far from its box it starts, and a character's width at the page's 12 px."""
_MOST_KERNELS = 24
"""A finding about more kernels than that is about the step, not about a chain."""


@dataclass(frozen=True, kw_only=True)
class Box:
    """An op (or a kernel) with the kernel that runs it."""

    y: int
    title: str
    subtitle: str
    full: str
    x: int = _BOX_X
    width: int = _BOX_WIDTH
    height: int = _BOX_HEIGHT


@dataclass(frozen=True, kw_only=True)
class Edge:
    """A tensor from one box to another. ``through_memory``: written by one kernel, read by another.

    From ``start`` to ``end`` it is drawn ``reach`` beside the boxes (0: between two of them).
    """

    path: str
    text: str
    size: str
    x: int
    y: int
    through_memory: bool
    labelled: bool
    start: int = 0
    end: int = 0
    reach: int = 0


@dataclass(frozen=True, kw_only=True)
class Side:
    """A tensor that comes from, or goes to, outside of the chain."""

    x1: int
    x2: int
    y: int
    text_x: int
    text: str
    size: str
    incoming: bool


@dataclass(frozen=True, kw_only=True)
class Frame:
    """Ops that one kernel runs together."""

    y: int
    height: int
    label: str
    x: int = _BOX_X - 8
    width: int = _BOX_WIDTH + 16


@dataclass(kw_only=True)
class _Node:
    title: str
    full: str
    reads: list[dict[str, Any]]
    writes: list[dict[str, Any]]
    kernels: tuple[int, ...]
    time_ns: int | None
    leaves: bool = False


@dataclass(frozen=True, kw_only=True)
class ChainGraph:
    """A drawing of ``width`` x ``height``; ``more`` nodes did not fit; ``summary`` says it in words."""

    boxes: list[Box] = field(default_factory=list)
    edges: list[Edge] = field(default_factory=list)
    sides: list[Side] = field(default_factory=list)
    frames: list[Frame] = field(default_factory=list)
    height: int = 0
    more: int = 0
    note: str = ""
    summary: str = ""
    width: int = WIDTH


class PassIndex:
    """Look-ups in one pass that every chain of it needs."""

    def __init__(self, p: dict[str, Any]) -> None:
        self.kernels = {k["id"]: k for k in p["kernels"]}
        self.ops = {o["id"]: o for o in p["ops"]}
        self.kernels_of_op: dict[int, list[int]] = {}
        for k in p["kernels"]:
            for op in k["op_ids"]:
                self.kernels_of_op.setdefault(op, []).append(k["id"])
        self.readers: dict[str, list[int]] = {}
        for o in p["ops"]:
            for t in o["inputs"]:
                if t.get("storage") is not None:
                    self.readers.setdefault(t["storage"], []).append(o["id"])


def chain_graph(finding: dict[str, Any], index: PassIndex) -> ChainGraph | None:
    """The drawing of a finding: its ops where they were recorded, else its kernels; ``None`` where there is nothing."""
    ids, kernel_ids = finding["op_ids"], finding["kernels"]
    times = finding["evidence"].get("times")
    if not isinstance(times, int) or times < 2:
        times = 1
    elif finding["ops"]:
        # The same chain several times: the ids of all are there, the names of one; one is drawn.
        ids, kernel_ids = ids[: len(finding["ops"])], kernel_ids[: max(len(kernel_ids) // times, 1)]
    ops = [index.ops[i] for i in ids if i in index.ops]
    kernels = [index.kernels[i] for i in kernel_ids if i in index.kernels]
    if len(ops) >= 2:
        inside = {o["id"] for o in ops}
        nodes = [_op_node(o, index, inside) for o in _drawn(ops)]
        more = len(ops) - len(nodes)
    elif kernels and len(kernels) <= _MOST_KERNELS:
        nodes = [_kernel_node(k) for k in _drawn(kernels)]
        more = len(kernels) - len(nodes)
    else:
        return None
    nodes[-1].leaves = nodes[-1].leaves or not more
    return _draw(nodes, more, times)


def _drawn(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return items if len(items) <= _MOST_NODES else items[:_FEW_NODES]


def _op_node(op: dict[str, Any], index: PassIndex, inside: set[int]) -> _Node:
    kernels = tuple(index.kernels_of_op.get(op["id"], ()))
    times = [index.kernels[k]["duration_ns"] for k in kernels]
    mutated = [op["inputs"][i] for i in op["mutated"] if i < len(op["inputs"])]
    written = {t.get("storage") for t in op["outputs"]}
    leaves = any(
        reader > op["id"] and reader not in inside
        for s in written
        if s is not None
        for reader in index.readers.get(s, ())
    )
    return _Node(
        title=w.short_op(op["name"]),
        full=w.plain(scrub_text(op["name"])),
        reads=op["inputs"],
        writes=[*op["outputs"], *(t for t in mutated if t.get("storage") not in written)],
        kernels=kernels,
        time_ns=sum(times) if times and None not in times else None,
        leaves=leaves,
    )


def _kernel_node(kernel: dict[str, Any]) -> _Node:
    return _Node(
        title=w.op_list(kernel["ops"], 5) or w.kernel_label(kernel["name"]),
        full=w.plain(scrub_text(kernel["name"])),
        reads=kernel["reads"],
        writes=kernel["writes"],
        kernels=(kernel["id"],),
        time_ns=kernel["duration_ns"],
    )


def _size(tensor: dict[str, Any]) -> str:
    size = w.tensor_bytes(tensor)
    return "" if size is None else w.format_bytes(size)


def _draw(nodes: list[_Node], more: int, times: int) -> ChainGraph:
    tops = [_TOP + i * (_BOX_HEIGHT + _GAP) for i in range(len(nodes))]
    boxes, edges, sides, words = [], [], [], []
    writer: dict[str, int] = {}
    for i, node in enumerate(nodes):
        kernel = f"kernel {node.kernels[0]}" if len(node.kernels) == 1 else f"{len(node.kernels)} kernels"
        subtitle = (kernel if node.kernels else "no kernel") + (
            f", {w.format_ns(node.time_ns)}" if node.time_ns else ""
        )
        boxes.append(Box(y=tops[i], title=w.shorten(node.title, 23), subtitle=subtitle, full=node.full))
        incoming, seen = [], set()
        for tensor in node.reads:
            source = writer.get(tensor.get("storage") or "")
            if source is None:
                incoming.append(tensor)
            elif source not in seen:
                seen.add(source)
                edge = _edge(tops, source, i, tensor, nodes[source], node)
                edges.append(edge)
                through = "through global memory" if edge.through_memory else "inside the kernel"
                words.append(f"{nodes[source].title} to {node.title}: {edge.text} {edge.size} {through}")
        sides += _sides(incoming, tops[i], incoming_side=True)
        for tensor in node.writes:
            if tensor.get("storage") is not None:
                writer[tensor["storage"]] = i
    for i, node in enumerate(nodes):
        if node.leaves:
            sides += _sides(node.writes, tops[i], incoming_side=False, beside=_reach(edges, tops[i]))
    note = ", ".join([f"+ {more} more"] * bool(more) + [f"one of {times} such chains"] * (times > 1))
    return ChainGraph(
        boxes=boxes,
        edges=edges,
        sides=sides,
        frames=_frames(nodes, tops),
        height=tops[-1] + _BOX_HEIGHT + (34 if note else _TOP),
        more=more,
        note=note,
        summary="; ".join(words) or " then ".join(n.title for n in nodes),
    )


def _bend(span: int) -> int:
    """How far beside the boxes the curve of an edge over so many of them is drawn towards."""
    return 14 + 8 * min(span, 6)


def _reach(edges: list[Edge], top: int) -> int:
    """How far beside a box the curves come that pass it."""
    return max((e.reach for e in edges if e.reach and e.start < top + _BOX_HEIGHT and top < e.end), default=0)


def _edge(tops: list[int], source: int, target: int, tensor: dict[str, Any], a: _Node, b: _Node) -> Edge:
    y1, y2 = tops[source] + _BOX_HEIGHT, tops[target]
    middle = _BOX_X + _BOX_WIDTH // 2
    direct, reach = target == source + 1, 0
    if direct:
        path, x, y = f"M{middle} {y1}V{y2 - 3}", middle - 12, (y1 + y2) // 2
    else:
        right = _BOX_X + _BOX_WIDTH
        bend = right + _bend(target - source)
        reach = 3 * _bend(target - source) // 4  # a curve comes so near to its two control points
        start, end = y1 - _BOX_HEIGHT // 2 + 8, y2 + _BOX_HEIGHT // 2 - 8
        path, x, y = f"M{right} {start}C{bend} {start} {bend} {end} {right + 3} {end}", bend, (start + end) // 2
    return Edge(
        path=path,
        text=w.shorten(w.tensor_text(tensor["shape"], tensor["dtype"]), 24),
        size=_size(tensor),
        x=x,
        y=y,
        through_memory=not (set(a.kernels) & set(b.kernels)),
        labelled=direct,
        start=y1,
        end=y2,
        reach=reach,
    )


def _sides(tensors: list[dict[str, Any]], top: int, *, incoming_side: bool, beside: int = 0) -> list[Side]:
    """``beside``: how far curves come that labels have to leave free."""
    counts: dict[str, tuple[int, dict[str, Any]]] = {}
    for t in tensors:
        text = w.tensor_text(t["shape"], t["dtype"])
        counts[text] = (counts.get(text, (0, t))[0] + 1, t)
    shown = list(counts.items())[:_MOST_SIDE]
    left = len(counts) - len(shown)
    out = []
    for i, (text, (count, tensor)) in enumerate(shown):
        y = top + _BOX_HEIGHT // 2 + (0 if len(shown) == 1 else (-13 if i == 0 else 15))
        size = ", ".join(filter(None, (_size(tensor), f"+{left} more" if left and i == len(shown) - 1 else "")))
        right = _BOX_X + _BOX_WIDTH
        text_x = 156 if incoming_side else right + max(_LABEL_X, beside + 12)
        room = _LABEL if incoming_side else min(_LABEL, int((WIDTH - text_x) / _CHARACTER))
        label = w.shorten(f"{count}x {text}" if count > 1 else text, room)
        if incoming_side:
            out.append(Side(x1=162, x2=_BOX_X - 4, y=y, text_x=text_x, text=label, size=size, incoming=True))
        else:
            out.append(Side(x1=right, x2=text_x - 8, y=y, text_x=text_x, text=label, size=size, incoming=False))
    return out


def _frames(nodes: list[_Node], tops: list[int]) -> list[Frame]:
    out, start = [], 0
    for i in range(1, len(nodes) + 1):
        if i == len(nodes) or len(nodes[i].kernels) != 1 or nodes[i].kernels != nodes[start].kernels:
            if i - start > 1 and len(nodes[start].kernels) == 1:
                label = f"one kernel ({nodes[start].kernels[0]})"
                out.append(Frame(y=tops[start] - 8, height=tops[i - 1] - tops[start] + _BOX_HEIGHT + 16, label=label))
            start = i
    return out
