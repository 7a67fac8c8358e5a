"""What the page's script reads: kernels as a table of kinds and their launches on a time axis, small enough to ship.

A *kind* is every launch of a pass with the same name, ops, tensors and line. Texts are numbered once. A step with very
many kernels is cut down here, and ``cuts`` says how.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fusionaudit.figures import counted
from fusionaudit.report import wording as w
from fusionaudit.report.private import scrub_text
from fusionaudit.report.rows import columns, kernel_key, timeline, total

Document = dict[str, Any]

MOST_KINDS = 5_000
"""Rows of the kernel table; the rest is added up by category. 5,000 rows are about 1.5 MB and sort in 20 ms."""
MOST_SPANS = 60_000
"""Spans of one pass on the time axis; neighbours are merged beyond it."""

FIELDS = (
    "pass", "id", "name", "category", "ops", "reads", "writes", "place", "graph", "phase", "count", "time", "bytes",
    "registers", "local", "shared", "occupancy", "grid", "block", "findings", "label",
)  # fmt: skip
"""Columns of a row of ``kinds``; ``name`` to ``phase``, ``grid``, ``block`` and ``label`` are numbers of texts."""


class _Texts:
    def __init__(self) -> None:
        self.all: list[str] = []
        self._numbers: dict[str, int] = {}

    def number(self, text: str) -> int:
        text = scrub_text(text)
        found = self._numbers.get(text)
        if found is None:
            found = self._numbers[text] = len(self.all)
            self.all.append(text)
        return found


def page_data(document: Document) -> dict[str, Any]:
    """``{fields, texts, kinds, passes, target, cuts}``; see the module."""
    texts = _Texts()
    kinds: list[list[Any]] = []
    passes: list[dict[str, Any]] = []
    cuts: list[str] = []
    shown = [c for c in columns(document) if c.p["kernels"]]
    room = max(MOST_KINDS // max(len(shown), 1), 1)
    for number, column in enumerate(shown):
        p = column.p
        groups: dict[Any, list[dict[str, Any]]] = {}
        for kernel in p["kernels"]:
            groups.setdefault(kernel_key(kernel), []).append(kernel)
        kept, rest = _largest(list(groups.values()), room)
        found = _findings_of(document, p["name"])
        kind_of: dict[int, int] = {}
        for members in kept:
            for k in members:
                kind_of[k["id"]] = len(kinds)
            kinds.append(_kind(number, members, texts, found))
        if rest:
            count = sum(len(m) for m in rest)
            cuts.append(
                f"{p['name']}: the table shows the {room:,} kinds of kernel that take longest; "
                f"{counted(count, 'launch', 'launches')} of {counted(len(rest), 'further kind')}: added up by category"
            )
            for members in _by_category(rest):
                for k in members:
                    kind_of[k["id"]] = len(kinds)
                row = _kind(number, members, texts, found)
                row[FIELDS.index("name")] = row[FIELDS.index("label")] = texts.number(
                    f"({counted(len(members), 'further launch', 'further launches')}: {members[0]['category']})"
                )
                for field in ("ops", "reads", "writes", "place", "graph", "grid", "block"):
                    row[FIELDS.index(field)] = texts.number("")
                for field in ("registers", "local", "shared", "occupancy"):
                    row[FIELDS.index(field)] = None
                kinds.append(row)
        line = timeline(column)
        spans = [(kind_of[k["id"]], start, width) for k, (start, width) in zip(p["kernels"], line.spans, strict=True)]
        merged = _merge(spans)
        if len(merged) < len(spans):
            each = -(-len(spans) // len(merged))
            cuts.append(f"{p['name']}: the timeline draws {each} neighbouring kernels as one")
        passes.append(
            {
                "name": p["name"],
                "basis": p["per_step"].get("time_basis"),
                "recorded": line.recorded,
                "timed": line.timed,
                "slowed": line.slowed,
                "kernels": len(p["kernels"]),
                "kind": [s[0] for s in merged],
                "start": _deltas([s[1] for s in merged]),
                "width": [s[2] for s in merged],
            }
        )
    target = document["target"]
    peak = target.get("peak_bandwidth_bytes_per_s")
    share = target.get("attainable_share")
    return {
        "fields": FIELDS,
        "texts": texts.all,
        "kinds": kinds,
        "passes": passes,
        "target": {"peak": peak, "attainable": peak * share if peak and share else None},
        "cuts": cuts,
    }


def _findings_of(document: Document, pass_name: str) -> dict[int, list[int]]:
    """Kernel id -> numbers of the findings that name it."""
    out: dict[int, list[int]] = {}
    for number, finding in enumerate(document["findings"]):
        if finding["pass"] == pass_name:
            for kernel in finding["kernels"]:
                out.setdefault(kernel, []).append(number)
    return out


def _largest(groups: list[list[dict[str, Any]]], room: int) -> tuple[list[Any], list[Any]]:
    if len(groups) <= room:
        return groups, []
    ranked = sorted(groups, key=lambda m: (-(total(m, "duration_ns") or 0), -(total(m, "global_bytes") or 0)))
    kept = ranked[:room]
    return sorted(kept, key=lambda m: int(m[0]["id"])), ranked[room:]


def _by_category(groups: list[list[dict[str, Any]]]) -> list[list[dict[str, Any]]]:
    out: dict[str, list[dict[str, Any]]] = {}
    for members in groups:
        out.setdefault(members[0]["category"], []).extend(members)
    return list(out.values())


def _kind(number: int, members: Sequence[dict[str, Any]], texts: _Texts, findings: dict[int, list[int]]) -> list[Any]:
    first = members[0]
    local = first["local_memory_bytes"] if first["local_memory_bytes"] is not None else first["spill_bytes"]
    named = sorted({f for m in members for f in findings.get(m["id"], ())})
    return [
        number,
        first["id"],
        texts.number(w.plain(first["name"])[:2000]),
        texts.number(first["category"]),
        texts.number(w.op_list(first["ops"], 12)),
        texts.number(w.tensors_text(first["reads"], 12)),
        texts.number(w.tensors_text(first["writes"], 12)),
        texts.number(w.place(first["location"])),
        texts.number(w.plain(first["graph"] or "")),
        texts.number(w.plain(first["phase"] or "")),
        len(members),
        total(members, "duration_ns"),
        total(members, "global_bytes"),
        first["registers"],
        local,
        first["shared_memory_bytes"],
        first["occupancy"],
        texts.number(_dims(first["grid"])),
        texts.number(_dims(first["block"])),
        named,
        texts.number(w.kernel_label(first["name"])[:400]),
    ]


def _dims(dims: Sequence[int] | None) -> str:
    return "" if not dims else " x ".join(str(d) for d in dims)


def _merge(spans: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """At most ``MOST_SPANS`` spans: neighbours become one, with the kind of the longest."""
    if len(spans) <= MOST_SPANS:
        return spans
    each = -(-len(spans) // MOST_SPANS)
    out = []
    for at in range(0, len(spans), each):
        part = spans[at : at + each]
        start = min(s[1] for s in part)
        out.append((max(part, key=lambda s: s[2])[0], start, max(s[1] + s[2] for s in part) - start))
    return out


def _deltas(values: Sequence[int]) -> list[int]:
    return [b - a for a, b in zip([0, *values], values, strict=False)]
