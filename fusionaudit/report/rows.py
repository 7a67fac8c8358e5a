"""Rows that the reports share: passes side by side, and a step's kernels with loops folded."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from fusionaudit.report.wording import (
    Document,
    find_pass,
    format_bytes,
    format_count,
    format_ns,
    format_rate,
    format_share,
)

LONGEST_LOOP = 64
"""Kernels in one turn of a loop that is still looked for when folding."""


@dataclass(frozen=True, kw_only=True)
class Measure:
    """One row of the comparison: raw ``values`` (one a pass) with how to show them, and compiled/eager as ``ratio``."""

    key: str
    label: str
    basis: str | None
    values: tuple[float | None, ...]
    texts: tuple[str, ...]
    ratio: float | None
    less_is_better: bool = True


@dataclass(frozen=True, kw_only=True)
class Fold:
    """``kernels`` in order, seen ``times`` times in a row; ``members`` are all launches (len = kernels x times)."""

    kernels: tuple[dict[str, Any], ...]
    members: tuple[dict[str, Any], ...]
    times: int


_MEASURES: tuple[tuple[str, str, Callable[[float | None], str], str | None, bool], ...] = (
    ("launches", "launches", format_count, None, True),
    ("distinct_kernels", "distinct kernels", format_count, None, True),
    ("gpu_time_ns", "GPU time", format_ns, "time", True),
    ("global_bytes", "global bytes", format_bytes, "bytes", True),
    ("intermediate_bytes", "intermediate bytes", format_bytes, "bytes", True),
    ("bandwidth_bytes_per_s", "bandwidth", format_rate, "time", False),
    ("bandwidth_share", "share of peak", format_share, "time", False),
    ("idle_ns", "GPU idle", format_ns, "time", True),
    ("step_ns", "step on the GPU", format_ns, "time", True),
)


def shown_passes(document: Document) -> list[dict[str, Any]]:
    """The passes in reading order: eager, compiled, then the others."""
    order = {"eager": 0, "compiled": 1}
    return sorted(document["passes"], key=lambda p: order.get(p["name"], 2))


def comparison(document: Document) -> list[Measure]:
    """The per-step figures of all passes side by side; rows that no pass knows are left out.

    A time row names the basis of its times; passes with different bases get a row each, so that no row mixes them.
    """
    passes = shown_passes(document)
    out = []
    for key, label, show, basis_kind, less in _MEASURES:
        values: list[float | None] = [p["per_step"].get(key) for p in passes]
        if all(v is None for v in values):
            continue
        basis_of = [_basis(p, basis_kind) for p in passes]
        for basis in sorted({b for b, v in zip(basis_of, values, strict=True) if v is not None}, key=str):
            own = [v if b == basis else None for v, b in zip(values, basis_of, strict=True)]
            out.append(
                Measure(
                    key=key,
                    label=label,
                    basis=basis,
                    values=tuple(own),
                    texts=tuple(show(v) for v in own),
                    ratio=None if key == "bandwidth_share" else _ratio(document, passes, own),
                    less_is_better=less,
                )
            )
    return out


def _basis(p: dict[str, Any], kind: str | None) -> str | None:
    if kind is None:
        return None
    basis: str | None = p["per_step"].get("time_basis" if kind == "time" else "basis")
    return basis


def _ratio(document: Document, passes: Sequence[dict[str, Any]], values: Sequence[float | None]) -> float | None:
    if find_pass(document, "eager") is None or find_pass(document, "compiled") is None:
        return None
    by_name = dict(zip((p["name"] for p in passes), values, strict=True))
    before, after = by_name.get("eager"), by_name.get("compiled")
    return None if not before or after is None else after / before


def kernel_key(kernel: dict[str, Any]) -> Hashable:
    """What makes two launches the same row: name, ops, tensors, line (not times)."""
    location = kernel["location"]
    return (
        kernel["name"],
        tuple(kernel["ops"]),
        tuple(tuple(s) for s in kernel["shapes"]),
        tuple(kernel["dtypes"]),
        kernel["graph"],
        (location["file"], location["line"]) if location else None,
    )


def fold(kernels: Sequence[dict[str, Any]]) -> list[Fold]:
    """The kernels in order with loops folded: equal neighbours, and turns of up to ``LONGEST_LOOP`` kernels.

    A turn of several kernels is folded only where it repeats three times or more; a shorter fold hides more than it
    saves.
    """
    numbers: dict[Hashable, int] = {}
    keys = [numbers.setdefault(kernel_key(k), len(numbers)) for k in kernels]
    out, at, total = [], 0, len(keys)
    while at < total:
        best_period, best_times = 1, 1
        for period in range(1, min(LONGEST_LOOP, (total - at) // 2) + 1):
            if keys[at] != keys[at + period]:
                continue
            end = at + period
            while end < total and keys[end] == keys[end - period]:
                end += 1
            times = (end - at) // period
            if times >= (2 if period == 1 else 3) and times * period > best_times * best_period:
                best_period, best_times = period, times
        members = tuple(kernels[at : at + best_period * best_times])
        out.append(Fold(kernels=members[:best_period], members=members, times=best_times))
        at += best_period * best_times
    return out


def total(kernels: Sequence[dict[str, Any]], key: str) -> int | None:
    """Sum of a figure over kernels; ``None`` where one is unknown."""
    values = [k.get(key) for k in kernels]
    return None if None in values else sum(v for v in values if v is not None)


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """Where each kernel of a pass stands: (start, duration) in ns from the step's start.

    ``recorded`` is false where starts are not known and the kernels are put end to end; ``timed`` is false where
    durations are not known either and each kernel is one microsecond wide.
    """

    spans: tuple[tuple[int, int], ...]
    recorded: bool
    timed: bool


def timeline(p: dict[str, Any]) -> Timeline:
    """The kernels of a pass on a time axis."""
    kernels = p["kernels"]
    timed = bool(kernels) and all(k["duration_ns"] is not None for k in kernels)
    recorded = timed and all(k["start_ns"] is not None for k in kernels)
    if recorded:
        first = min(k["start_ns"] for k in kernels)
        spans = [(k["start_ns"] - first, k["duration_ns"]) for k in kernels]
    else:
        at, spans = 0, []
        for k in kernels:
            width = k["duration_ns"] if timed else 1000
            spans.append((at, width))
            at += width
    return Timeline(spans=tuple(spans), recorded=recorded, timed=timed)
