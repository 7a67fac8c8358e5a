"""Rows that the reports share: passes side by side, and a step's kernels with loops folded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from fusionaudit.findings import NOT_COMPARED
from fusionaudit.report.wording import (
    Document,
    format_bytes,
    format_count,
    format_ns,
    format_rate,
    format_ratio,
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
    bound: str = ""
    """``<=`` or ``>=`` where one of the sums is without kernels whose bytes are not known: the true ratio is that."""

    @property
    def ratio_text(self) -> str:
        """``0.33x``, ``<=0.93x``; empty where there is none."""
        return "" if self.ratio is None else self.bound + format_ratio(self.ratio)


@dataclass(frozen=True, kw_only=True)
class Fold:
    """``kernels`` in order, seen ``times`` times in a row; ``members`` are all launches (len = kernels x times)."""

    kernels: tuple[dict[str, Any], ...]
    members: tuple[dict[str, Any], ...]
    times: int


_MEASURES: tuple[tuple[str, str, Callable[[float | None], str], str | None, bool], ...] = (
    ("launches", "launches", format_count, None, True),
    ("copies_and_fills", "copies and fills", format_count, None, True),
    ("distinct_kernels", "distinct kernels", format_count, None, True),
    ("gpu_time_ns", "GPU time", format_ns, "time", True),
    ("global_bytes", "global bytes", format_bytes, "bytes", True),
    ("intermediate_bytes", "intermediate bytes", format_bytes, "bytes", True),
    ("bandwidth_bytes_per_s", "bandwidth", format_rate, "time", False),
    ("bandwidth_share", "share of peak", format_share, "time", False),
    ("idle_ns", "GPU idle", format_ns, "time", True),
    ("step_ns", "step on the GPU", format_ns, "time", True),
)


@dataclass(frozen=True, kw_only=True)
class Column:
    """A pass as reports show it, with the run of the same thing without recorder (``clean``) where there is one."""

    name: str
    p: dict[str, Any]
    clean: dict[str, Any] | None

    def source(self, key: str) -> dict[str, Any]:
        """The pass that a figure comes from: gaps and spans only mean something without the recorder."""
        return self.clean if self.clean is not None and key in _WITHOUT_RECORDER else self.p

    def value(self, key: str) -> float | None:
        """A figure per step; ``None`` where only a run with the recorder could give it."""
        if key in _WITHOUT_RECORDER and self.clean is None and recorded_ops(self.p):
            return None
        value: float | None = self.source(key)["per_step"].get(key)
        return value


_WITHOUT_RECORDER = {"idle_ns", "step_ns", "host_ns", "launch_ns_median"}
_CLEAN = {"eager": "clean_eager", "compiled": "clean"}


def recorded_ops(p: dict[str, Any]) -> bool:
    """The pass ran on a GPU under our op recorder, which slows the host down."""
    return bool(p["ops"]) and p["engine"] in ("nsys", "kineto")


def columns(document: Document) -> list[Column]:
    """The passes in reading order: eager, compiled, then the others. A clean pass stands behind the one it repeats."""
    by_name = {p["name"]: p for p in document["passes"]}
    behind = {clean for name, clean in _CLEAN.items() if name in by_name}
    order = {"eager": 0, "compiled": 1}
    shown = sorted((p for p in document["passes"] if p["name"] not in behind), key=lambda p: order.get(p["name"], 2))
    return [Column(name=p["name"], p=p, clean=by_name.get(_CLEAN.get(p["name"], ""))) for p in shown]


def shown_passes(document: Document) -> list[dict[str, Any]]:
    """The passes of :func:`columns`."""
    return [c.p for c in columns(document)]


def comparison(document: Document) -> list[Measure]:
    """The per-step figures of all passes side by side; rows that no pass knows are left out.

    There is no ratio where the passes' steps are not the same work.
    A time row names the basis of its times; passes with different bases get a row each, so that no row mixes them.
    """
    sides = columns(document)
    unlike = any(note["kind"] in NOT_COMPARED for note in document["notes"])
    out = []
    for key, label, show, basis_kind, less in _MEASURES:
        values = [c.value(key) for c in sides]
        if key.startswith("bandwidth"):
            # From a time that itself comes from the bytes, a bandwidth would only repeat the model.
            values = [
                v if c.p["per_step"].get("time_basis") == "measured" else None
                for v, c in zip(values, sides, strict=True)
            ]
        # A step's time that is not known is said, not left out: see untimed.
        unknown = all(v is None for v in values)
        if (unknown and not (key == "gpu_time_ns" and untimed(document))) or (
            key == "copies_and_fills" and not any(values)
        ):
            continue
        basis_of = [None if unknown else _basis(c.source(key), basis_kind) for c in sides]
        bound = _bound(sides) if basis_kind == "bytes" else ""
        for basis in sorted({b for b, v in zip(basis_of, values, strict=True) if v is not None or unknown}, key=str):
            own = [v if b == basis else None for v, b in zip(values, basis_of, strict=True)]
            out.append(
                Measure(
                    key=key,
                    label=label,
                    basis=basis,
                    values=tuple(own),
                    texts=tuple(show(v) for v in own),
                    ratio=None if key == "bandwidth_share" or bound is None or unlike else _ratio(sides, own),
                    less_is_better=less,
                    bound=bound or "",
                )
            )
    return out


def untimed(document: Document) -> str:
    """Why a step's GPU time is not known, in one line: the kernels that have none; empty where all have theirs."""
    words = []
    for p in shown_passes(document):
        kinds = Counter(k["category"] for k in p["kernels"] if k["duration_ns"] is None)
        if kinds:
            listed = ", ".join(f"{count:,} {kind}" for kind, count in kinds.most_common(3))
            words.append(f"{p['name']} {listed}" + (" and others" if len(kinds) > 3 else ""))
    if not words:
        return ""
    return f"GPU time not known: kernels without a time ({'; '.join(words)}); only what memory bounds is modelled"


def _basis(p: dict[str, Any], kind: str | None) -> str | None:
    if kind is None:
        return None
    basis: str | None = p["per_step"].get("time_basis" if kind == "time" else "basis")
    return basis


def _ratio(sides: Sequence[Column], values: Sequence[float | None]) -> float | None:
    by_name = dict(zip((c.name for c in sides), values, strict=True))
    before, after = by_name.get("eager"), by_name.get("compiled")
    return None if not before or after is None else after / before


def _bound(sides: Sequence[Column]) -> str | None:
    """What the ratio of two sums of bytes is where one is without some kernels; ``None``: nothing, as both are."""
    missing = {c.name: c.p["per_step"].get("uncounted_kernels") or 0 for c in sides}
    before, after = missing.get("eager", 0), missing.get("compiled", 0)
    if before == after:
        return ""
    return None if before and after else "<=" if before else ">="


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


def moved(kernels: Sequence[dict[str, Any]]) -> int | None:
    """Bytes of these launches; ``None`` too where they are further launches of an op whose first one has its bytes."""
    return total(kernels, "global_bytes") or None


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """Where each kernel of a pass stands: (start, duration) in ns from the step's start.

    ``recorded`` is false where starts are not known and the kernels are put end to end; ``timed`` is false where
    durations are not known either and each kernel is one microsecond wide. ``slowed``: the recorder ran, so that gaps
    are longer than in a plain run.
    """

    spans: tuple[tuple[int, int], ...]
    recorded: bool
    timed: bool
    slowed: bool = False


def timeline(column: Column) -> Timeline:
    """The kernels of a pass on a time axis; the clean run's axis where it launched the same in the same order."""
    kernels = column.p["kernels"]
    axis, slowed = kernels, recorded_ops(column.p)
    if column.clean is not None and [k["name"] for k in column.clean["kernels"]] == [k["name"] for k in kernels]:
        axis, slowed = column.clean["kernels"], False
    timed = bool(axis) and all(k["duration_ns"] is not None for k in axis)
    recorded = timed and all(k["start_ns"] is not None for k in axis)
    if recorded:
        first = min(k["start_ns"] for k in axis)
        spans = [(k["start_ns"] - first, k["duration_ns"]) for k in axis]
    else:
        at, spans = 0, []
        for k in axis:
            width = k["duration_ns"] if timed else 1000
            spans.append((at, width))
            at += width
    return Timeline(spans=tuple(spans), recorded=recorded, timed=timed, slowed=recorded and slowed)
