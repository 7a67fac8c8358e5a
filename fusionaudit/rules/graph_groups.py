"""Generated kernels of one graph that one kernel could have been: by shared data and iteration space, not by name."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from typing import Literal

from fusionaudit.findings import Location
from fusionaudit.inductor.model import CompiledGraph, GeneratedCall, GeneratedKernel
from fusionaudit.program.chip import Chip
from fusionaudit.program.costs import sum_known
from fusionaudit.program.kept import kept
from fusionaudit.program.model import Pass
from fusionaudit.program.rows import FEW_ROWS, ONE_BLOCK_ROW
from fusionaudit.rules.touched import View, by_storage, shared_bytes, touched
from fusionaudit.tensors import Tensor, overlap

Why = Literal["split", "same", "rows", "size", "fill", "small", "prologue"]
"""Why a pair fits: second stage of a split reduction, same iteration space, same row length with other row counts
(combo kernel), pad or cat of another size, the padding of the other's buffer, so small that one block does both,
expansion into a matmul's operand."""

Value = tuple[str, int]

EXPANSION = 2.0
"""A producer that writes this many times what it reads (dequantisation) is worth taking into the matmul itself."""
ONE_BLOCK = 4096
"""Elements that one block of 1024 threads handles at four each: two kernels below that could be one block."""
_STAGE_RATIO = 8
"""A first stage reduces at least that many elements to one partial result (Inductor's splits reduce hundreds)."""
_RESIZING = ("constant_pad_nd", "cat", "slice", "pad")


@dataclass(frozen=True, kw_only=True)
class CallFlow:
    """Values (storage, version) that each call of a graph reads and writes, and the dependences between calls."""

    uses: tuple[tuple[tuple[Value, Tensor], ...], ...]
    makes: tuple[tuple[tuple[Value, Tensor], ...], ...]
    maker: dict[Value, int]
    readers: dict[Value, tuple[int, ...]]
    upstream: tuple[int, ...]
    final: frozenset[Value]


@dataclass(frozen=True, kw_only=True)
class CallGroup:
    """Positions (into ``graph.calls``) of generated kernels that one kernel could have been, and why."""

    calls: tuple[int, ...]
    why: tuple[Why, ...]
    avoidable_bytes: int | None


@kept
def generated_lines(p: Pass) -> dict[tuple[str | None, str], Location]:
    """{(graph, kernel name): line}: a generated kernel that a graph launches again has its first launch's line."""
    return {(g.id, k.name): k.location for g in p.log.graphs for k in g.kernels if k.location is not None}


def call_flow(graph: CompiledGraph) -> CallFlow:
    """Dataflow over the calls of a graph; reused buffers are told apart by versions."""
    version: dict[str, int] = defaultdict(int)
    uses: list[tuple[tuple[Value, Tensor], ...]] = []
    makes: list[tuple[tuple[Value, Tensor], ...]] = []
    upstream: list[int] = []
    maker: dict[Value, int] = {}
    readers: dict[Value, list[int]] = defaultdict(list)
    for position, call in enumerate(graph.calls):
        mask = 0
        if call.kind == "cpu" and call.read_bytes == 0 and call.write_bytes == 0:
            # Only another view of its input.
            uses.append(())
            makes.append(())
            upstream.append(0)
            continue
        mine: list[tuple[Value, Tensor]] = []
        for tensor in call.reads:
            if tensor.storage is None:
                continue
            value = (tensor.storage, version[tensor.storage])
            mine.append((value, tensor))
            readers[value].append(position)
            if value in maker:
                mask |= upstream[maker[value]] | 1 << maker[value]
        made: list[tuple[Value, Tensor]] = []
        written: set[str] = set()
        for tensor in call.writes:
            if tensor.storage is None:
                continue
            if tensor.storage in written:
                made.append(((tensor.storage, version[tensor.storage]), tensor))
                continue
            written.add(tensor.storage)
            old = (tensor.storage, version[tensor.storage])
            for reader in readers.get(old, ()):
                if reader < position:
                    mask |= upstream[reader] | 1 << reader
            if old in maker:
                mask |= upstream[maker[old]] | 1 << maker[old]
            version[tensor.storage] += 1
            value = (tensor.storage, version[tensor.storage])
            maker[value] = position
            made.append((value, tensor))
        uses.append(tuple(mine))
        makes.append(tuple(made))
        upstream.append(mask)
    kept = set(graph.outputs) | {t.storage for t in graph.inputs if t.storage}
    return CallFlow(
        uses=tuple(uses),
        makes=tuple(makes),
        maker=maker,
        readers={v: tuple(r) for v, r in readers.items()},
        upstream=tuple(upstream),
        final=frozenset((s, n) for s, n in version.items() if s in kept),
    )


def space(kernel: GeneratedKernel | None, call: GeneratedCall) -> tuple[int, int] | None:
    """(elements, reduction length) of a kernel's iteration space; ``None`` where a size is not known."""
    if kernel is None or not kernel.numels:
        return None
    names = list(kernel.numels)
    sizes = dict(kernel.numels)
    if len(call.numels) == len(names):
        sizes = dict(zip(names, call.numels, strict=True))
    if any(v is None for v in sizes.values()):
        return None
    outer = math.prod(v for n, v in sizes.items() if v is not None and not n.startswith("r"))
    inner = math.prod(v for n, v in sizes.items() if v is not None and n.startswith("r"))
    return outer, inner


@dataclass(frozen=True, kw_only=True)
class _Touches:
    """What each call touches of the buffers that it reads and writes, by buffer."""

    reads: tuple[dict[str, list[View]], ...]
    writes: tuple[dict[str, list[View]], ...]


def _touches(graph: CompiledGraph, kernels: dict[str, GeneratedKernel]) -> _Touches:
    both = [(call, touched(kernels.get(call.target), call)) for call in graph.calls]
    return _Touches(
        reads=tuple(by_storage(loads, call.reads) for call, (loads, _) in both),
        writes=tuple(by_storage(stores, call.writes) for call, (_, stores) in both),
    )


def _shared(some: list[View], others: list[View]) -> int:
    return sum(max((shared_bytes(a, b) for b in others), default=0) for a in some)


def _feeds(some: list[View], others: list[View]) -> bool:
    """What one writes the other reads, or may read."""
    return any(a is None or b is None or overlap(a, b) for a in some for b in others)


def _fits(
    graph: CompiledGraph,
    kernels: dict[str, GeneratedKernel],
    flow: CallFlow,
    touches: _Touches,
    first: int,
    second: int,
    chip: Chip,
) -> Why | None:
    """Why these two generated kernels could be one; ``None`` where they could not."""
    a, b = graph.calls[first], graph.calls[second]
    ka, kb = kernels.get(a.target), kernels.get(b.target)
    sa, sb = space(ka, a), space(kb, b)
    if ka is None or kb is None or sa is None or sb is None:
        return None
    fed = {v for v, _ in flow.makes[first]} & {v for v, _ in flow.uses[second]}
    fed = {v for v in fed if _feeds(touches.writes[first][v[0]], touches.reads[second][v[0]])}
    both = {v for v, _ in flow.uses[first]} & {v for v, _ in flow.uses[second]}
    common = sum(_shared(touches.reads[first][v[0]], touches.reads[second][v[0]]) for v in both)
    if _scatters(flow, ka, first, second) or _scatters(flow, kb, second, first):
        return None
    if _fills_rest(flow, first, second) or _fills_rest(flow, second, first):
        return "fill"
    if not fed and not common:
        # Parts of one buffer (q and k of a joint projection) can share a launch, though no bytes.
        return "rows" if both and _rows(sa, sb) else None
    if common > chip.l2_bytes and _waits_for_all(graph, kernels, flow, first, second):
        return None
    if fed and _second_stage(flow, ka, sa, sb, first, second):
        return "split"
    if sa == sb or (sa[0] * sa[1] == sb[0] * sb[1] and 1 in (sa[1], sb[1])):
        return "same"
    if not fed and _rows(sa, sb):
        return "rows"
    if fed and any(op.split(".")[-1] in _RESIZING or op in _RESIZING for op in b.aten) and sb[1] == 1:
        ratio = sb[0] / max(1, sa[0] * sa[1])
        return "size" if 0.5 <= ratio <= 2 and sb[0] != sa[0] * sa[1] else None
    if fed and max(sa[0] * sa[1], sb[0] * sb[1]) <= ONE_BLOCK:
        return "small"
    return None


def _rows(sa: tuple[int, int], sb: tuple[int, int]) -> bool:
    """Rows of one length, of different counts."""
    return sa[1] == sb[1] > 1 and sa[0] != sb[0]


def _scattering(kernel: GeneratedKernel | None) -> bool:
    return kernel is not None and any(a.store and (a.atomic or a.indirect) for a in kernel.accesses)


def _scatters(flow: CallFlow, kernel: GeneratedKernel, one: int, other: int) -> bool:
    """The kernel writes to places that its data tell, in a buffer of the other: that waits for all of either."""
    if not _scattering(kernel):
        return False
    touched = {v[0] for v, _ in (*flow.uses[other], *flow.makes[other])}
    return any(v[0] in touched for v, _ in flow.makes[one])


def _waits_for_all(
    graph: CompiledGraph, kernels: dict[str, GeneratedKernel], flow: CallFlow, first: int, second: int
) -> bool:
    """The second call needs a reduction over all SMs that has read what both read: it reads it from memory again."""
    for middle in range(first, second):
        between = middle == first or flow.upstream[middle] >> first & 1
        if not between or not flow.upstream[second] >> middle & 1:
            continue
        size = space(kernels.get(graph.calls[middle].target), graph.calls[middle])
        if size is None or size[1] <= 1 or size[0] >= FEW_ROWS:
            continue
        source = space(kernels.get(graph.calls[first].target), graph.calls[first])
        reduced = source if source is not None and source[1] > 1 else size
        if reduced[0] * reduced[1] > ONE_BLOCK_ROW:
            return True
    return False


def _second_stage(
    flow: CallFlow, ka: GeneratedKernel, sa: tuple[int, int], sb: tuple[int, int], first: int, second: int
) -> bool:
    """The second kernel reduces just the partial results of the first."""
    if sa[1] <= 1 or sb[1] <= 1 or ka.category not in ("reduction", "persistent_reduction"):
        return False
    uses = {v for v, _ in flow.uses[second]}
    partial = [t.numel for v, t in flow.makes[first] if v in uses]
    return any(sb[0] * sb[1] == n and n * _STAGE_RATIO <= sa[0] * sa[1] for n in partial)


def _fills_rest(flow: CallFlow, first: int, second: int) -> bool:
    """The second kernel reads nothing and fills a smaller part of the buffer that the first writes (padding)."""
    if flow.uses[second] or not flow.makes[second]:
        return False
    mine = {t.storage: t.numel for _, t in flow.makes[first]}
    return all(mine.get(t.storage, 0) > t.numel for _, t in flow.makes[second])


def _convex(mask: int, upstream: tuple[int, ...]) -> bool:
    for position, above in enumerate(upstream):
        if mask >> position & 1:
            continue
        if above & mask and any(
            mask >> later & 1 and upstream[later] >> position & 1 for later in range(len(upstream))
        ):
            return False
    return True


def _avoidable(graph: CompiledGraph, flow: CallFlow, touches: _Touches, members: tuple[int, ...]) -> int | None:
    """Bytes that one kernel would not move: values that only the group needs, and elements that several calls read."""
    inside = set(members)
    if any(tensor.nbytes is None for member in members for _, tensor in flow.uses[member]):
        return None
    total = 0
    seen: dict[Value, list[View]] = {}
    for member in members:
        for value in dict.fromkeys(v for v, _ in flow.uses[member]):
            maker = flow.maker.get(value)
            if value not in seen:
                seen[value] = []
                if maker is not None and maker in inside:
                    made = touches.writes[maker][value[0]]
                    seen[value] += made
                    if value not in flow.final and all(r in inside for r in flow.readers.get(value, ())):
                        total += sum(view.nbytes or 0 for view in made if view is not None)
            mine = touches.reads[member][value[0]]
            total += _shared(mine, seen[value])
            seen[value] += mine
    moved = sum_known(n for i in members for n in (graph.calls[i].read_bytes, graph.calls[i].write_bytes))
    return total if moved is None else min(total, moved)


def groups(graph: CompiledGraph, chip: Chip | None = None) -> list[CallGroup]:
    """Groups of two or more generated kernels that could be one, and expansions into a matmul's operand."""
    flow = call_flow(graph)
    kernels = {k.name: k for k in graph.kernels}
    touches = _touches(graph, kernels)
    # Kernels that only copy are FA105's, unless they fill padding.
    generated = [i for i, c in enumerate(graph.calls) if c.kind == "triton" and (c.category != "copy" or not c.reads)]
    home = {i: i for i in generated}
    masks = {i: 1 << i for i in generated}
    why: dict[int, list[Why]] = {i: [] for i in generated}
    pairs = [
        (first, second, found)
        for n, second in enumerate(generated)
        for first in reversed(generated[:n])
        if (found := _fits(graph, kernels, flow, touches, first, second, chip or Chip())) is not None
    ]
    # A split reduction's two stages first: what follows the second stage then sees them as one.
    for first, second, found in sorted(pairs, key=lambda p: (p[2] != "split", p[1], -p[0])):
        a, b = home[first], home[second]
        if a == b or not _convex(masks[a] | masks[b], flow.upstream):
            continue
        masks[a] |= masks[b]
        why[a] += [*why.pop(b), found]
        for member in [m for m, root in home.items() if root == b]:
            home[member] = a
        masks.pop(b)
    out = []
    for root, mask in masks.items():
        members = tuple(i for i in generated if mask >> i & 1)
        if len(members) > 1:
            out.append(
                CallGroup(
                    calls=members, why=tuple(why[root]), avoidable_bytes=_avoidable(graph, flow, touches, members)
                )
            )
    return out + _prologues(graph, kernels, flow)


def _prologues(graph: CompiledGraph, kernels: dict[str, GeneratedKernel], flow: CallFlow) -> list[CallGroup]:
    out = []
    for position, call in enumerate(graph.calls):
        if call.kind != "triton" or len(flow.makes[position]) != 1 or call.category != "pointwise":
            continue
        value, tensor = flow.makes[position][0]
        readers = flow.readers.get(value, ())
        if len(readers) != 1 or value in flow.final or graph.calls[readers[0]].category != "matmul":
            continue
        if _scattering(kernels.get(call.target)):
            continue  # what a scatter writes is complete only when all of it has run, like a reduction
        if tensor.nbytes is None or not call.read_bytes or tensor.nbytes < EXPANSION * call.read_bytes:
            continue
        out.append(CallGroup(calls=(position, readers[0]), why=("prologue",), avoidable_bytes=2 * tensor.nbytes))
    return out
