"""Which tensors used to stay inside one kernel and now go through memory, named by the ops at their two ends.

A lock knows which ops share a kernel and not which op reads which. What reads what is taken from the ops of the new
side's eager pass where there is a document; between two locks it is guessed from the tensors' sizes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

from fusionaudit.groups import DTYPE_SHORT, FlowOp, Group, Ref
from fusionaudit.matching import line_id, stored
from fusionaudit.tensors import DTYPE_BYTES

_TENSOR = re.compile(r"(\w+)\[([\d,]*)\]")
_WIDTH = {DTYPE_SHORT.get(name, name): size for name, size in DTYPE_BYTES.items()}


@dataclass(frozen=True, kw_only=True)
class Edge:
    """A tensor that used to stay inside one kernel and now goes through memory between two.

    ``producer`` and ``consumer`` are ops, with their lines where known; ``through`` are new ops between them.
    """

    producer: str
    consumer: str
    tensor: str
    bytes: int | None
    producer_ref: Ref | None = None
    consumer_ref: Ref | None = None
    through: tuple[str, ...] = ()


def tensor_bytes(text: str) -> int | None:
    """Bytes of ``bf16[8,1024]``; ``None`` where it is not such a text."""
    match = _TENSOR.match(text)
    if match is None or match[1] not in _WIDTH:
        return None
    return prod(int(n) for n in match[2].split(",") if n) * _WIDTH[match[1]]


def lost_edges(old: Sequence[Group], new: Sequence[Group], flow: Sequence[FlowOp] = ()) -> tuple[Edge, ...]:
    """The tensors between the new groups whose two ends used to be in one old group."""
    if len(new) < 2 or not old:
        return ()
    found = tuple(dict.fromkeys(_by_flow(old, new, flow)))
    return found or tuple(_by_size(old, new))


def _has(group: Group, op: FlowOp) -> bool:
    return op.name in group.ops and op.ref is not None and line_id(op.ref) in {line_id(r) for r in group.refs}


def _by_flow(old: Sequence[Group], new: Sequence[Group], flow: Sequence[FlowOp]) -> Iterator[Edge]:
    homes: dict[int, int] = {}
    for number, op in enumerate(flow):
        where = [i for i, group in enumerate(new) if _has(group, op)]
        if len(where) == 1 and any(op.name in group.ops for group in old):
            homes[number] = where[0]
    for number, home in homes.items():
        for source, tensor in flow[number].inputs:
            yield from _from(source, tensor, number, home, homes, old, new, flow)


def _from(
    source: int, tensor: str, number: int, home: int, homes: dict[int, int],
    old: Sequence[Group], new: Sequence[Group], flow: Sequence[FlowOp],
) -> Iterator[Edge]:  # fmt: skip
    """The edges that end at an op's input: back through ops that no old group had, to the first that one had."""
    consumer = flow[number]
    seen: set[int] = set()
    ways: list[tuple[int, tuple[str, ...]]] = [(source, ())]
    while ways:
        at, through = ways.pop()
        if at in seen:
            continue
        seen.add(at)
        if at not in homes:
            if not any(_has(group, flow[at]) for group in new) or not any(flow[at].name in g.ops for g in old):
                ways += [(before, (flow[at].name, *through)) for before, _ in flow[at].inputs]
            continue
        producer, first = flow[at], new[homes[at]]
        shared = any(producer.name in group.ops and consumer.name in group.ops for group in old)
        kept = {stored(t, False) for t in first.writes}
        if homes[at] != home and shared and (through or stored(tensor, False) in kept):
            yield Edge(
                producer=producer.name, consumer=consumer.name, tensor=tensor, bytes=tensor_bytes(tensor),
                producer_ref=producer.ref, consumer_ref=consumer.ref, through=through,
            )  # fmt: skip


def _by_size(old: Sequence[Group], new: Sequence[Group]) -> Iterator[Edge]:
    """By a tensor that one new group writes and the next to read one like it reads; ops that both have are no end."""
    for i, first in enumerate(new):
        for tensor in dict.fromkeys(first.writes):
            second = next((g for g in new[i + 1 :] if tensor in g.reads), None)
            for group in old if second else ():
                assert second is not None
                ends = (
                    [op for op in first.ops if op in group.ops and op not in second.ops],
                    [op for op in second.ops if op in group.ops and op not in first.ops],
                )
                if all(ends):
                    yield Edge(producer=ends[0][-1], consumer=ends[1][0], tensor=tensor, bytes=tensor_bytes(tensor))
                    break
