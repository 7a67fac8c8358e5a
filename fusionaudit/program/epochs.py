"""Epochs are not steps: where the repeating block is a whole epoch, its training steps are looked for inside."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import replace

from fusionaudit.program.steps import Steps, find_steps
from fusionaudit.trace.schema import GraphCall, Op, Record

_SAME_WORK = 0.8
"""Share of the ops that all training steps have in common: one of them may log, or scale its learning rate."""


def steps_of_epoch(found: Steps, records: Sequence[Record], keys: Sequence[Hashable], weights: Sequence[int]) -> Steps:
    """The training steps inside each of ``found``, where each is forward, backward and optimizer; else ``found``.

    An evaluation or a print after each epoch makes the epoch the richest block that repeats. A loop over time steps or
    layers has no optimizer in it, so it is never taken for the step; two optimizers with different work (a GAN's) are
    one step.
    """
    if found.source != "period":
        return found
    spans: list[tuple[int, int]] = []
    for start, end in found.spans:
        inner = find_steps(keys[start:end], weights=weights[start:end])
        if inner.source != "period" or len(inner.spans) < 2:
            return found
        spans += [(start + a, start + b) for a, b in inner.spans]
    first = Counter(keys[slice(*spans[0])])
    for a, b in spans:
        same = sum((first & Counter(keys[a:b])).values())
        if same < _SAME_WORK * max(b - a, first.total()) or not _trains(records[a:b]):
            return found
    return replace(found, spans=tuple(spans))


def _trains(records: Sequence[Record]) -> bool:
    phases = {r.phase for r in records if isinstance(r, Op)}
    phases |= {"backward" for r in records if isinstance(r, GraphCall) and r.graph.endswith("/backward")}
    return {"backward", "optimizer"} <= phases
