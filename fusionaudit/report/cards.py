"""What the page's template shows of each finding, of Inductor's work and of a diff: texts and bars, no markup."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fusionaudit.figures import figure
from fusionaudit.report import wording as w
from fusionaudit.report.chain_graph import PassIndex, chain_graph
from fusionaudit.report.rows import comparison, shown_passes, total

Document = dict[str, Any]

MOST_CARDS = 80
"""Findings with a card; the others are one line each. A card is about 8 kB."""
MOST_DECISIONS = 150
MOST_SOURCE = 1_500_000
"""Characters of generated code in one page, over all graphs."""


def comparison_rows(document: Document) -> list[dict[str, Any]]:
    """Rows of the first screen: label, basis, one cell a pass with a bar (0 to 100), ratio."""
    out = []
    for row in comparison(document):
        # A share has its own full scale; one pass alone has nothing to be compared with.
        share = row.key == "bandwidth_share"
        most = 1 if share else max((v for v in row.values if v is not None), default=0) or 1
        bare = len(row.values) == 1 and not share
        cells = [
            {"text": text, "bar": None if value is None or bare else round(min(value / most, 1) * 100, 2)}
            for text, value in zip(row.texts, row.values, strict=True)
        ]
        better = None
        if row.ratio is not None and not row.bound and not 0.995 <= row.ratio <= 1.005:
            better = (row.ratio < 1) == row.less_is_better
        out.append(
            {
                "label": row.label,
                "basis": row.basis,
                "cells": cells,
                "ratio": row.ratio_text,
                "better": better,
            }
        )
    return out


def finding_cards(document: Document) -> list[dict[str, Any]]:
    """One card a finding, in rank order; those beyond ``MOST_CARDS`` have only their head."""
    indexes = {p["name"]: PassIndex(p) for p in document["passes"]}
    most = max((f.get("saving_ns") or 0 for f in document["findings"]), default=0)
    most_bytes = max((f.get("avoidable_bytes") or 0 for f in document["findings"]), default=0)
    out = []
    for number, finding in enumerate(document["findings"]):
        value, scale = (finding.get("saving_ns"), most) if most else (finding.get("avoidable_bytes"), most_bytes)
        card = {
            "number": number,
            "rule": finding["rule"],
            "severity": "refuted" if w.refuted(finding) else finding["severity"],
            "pass": finding["pass"],
            "message": w.plain(finding["message"]),
            "place": w.place(finding["location"]),
            "worth": "" if w.refuted(finding) else w.finding_worth(finding),
            "bar": round((value or 0) / scale * 100, 2) if scale and not w.refuted(finding) else 0,
            "ops": w.op_list(finding["ops"], 12),
            "full": number < MOST_CARDS,
        }
        index = indexes.get(finding["pass"])
        if card["full"] and index is not None:
            card |= _body(document, finding, index)
        out.append(card)
    return out


def _body(document: Document, finding: dict[str, Any], index: PassIndex) -> dict[str, Any]:
    return {
        "source": source_excerpt(document, finding["location"]),
        "graph": chain_graph(finding, index),
        "change": _before_after(finding, index),
        "reason": w.plain(finding.get("reason") or ""),
        "remedy": w.plain(finding.get("remedy") or ""),
        "confidence": finding.get("confidence"),
        "verification": _verification(finding.get("verification")),
        "evidence": [
            (_words(k), _value(k, v))
            for k, v in finding["evidence"].items()
            if v not in (None, [], {}, "") and (k, v) != ("times", 1)
        ],
        "fingerprint": finding["fingerprint"],
        "kernels": ", ".join(str(k) for k in finding["kernels"][:12]) + (" .." if len(finding["kernels"]) > 12 else ""),
    }


def source_excerpt(document: Document, location: dict[str, Any] | None) -> dict[str, Any] | None:
    """The lines around a place: ``{file, function, lines: [(number, text, is the line)]}``."""
    if location is None:
        return None
    lines = document["sources"].get(location["file"], {})
    near = sorted(int(n) for n in lines if abs(int(n) - location["line"]) <= 3)
    return {
        "file": w.plain(location["file"]),
        "function": w.plain(location.get("function") or ""),
        "lines": [(n, _code_line(lines[str(n)]), n == location["line"]) for n in near],
    }


def _code_line(text: str) -> str:
    return w.plain(text.expandtabs(4))[:300]


def _before_after(finding: dict[str, Any], index: PassIndex) -> list[dict[str, Any]]:
    """Bytes and time of the finding's kernels now and after the change it asks for."""
    kernels = [index.kernels[k] for k in finding["kernels"] if k in index.kernels]
    out = []
    basis = next((k["time_basis"] for k in kernels if k["time_basis"]), None)
    for label, key, saved, show, before_basis, after_basis in (
        ("bytes", "global_bytes", finding.get("avoidable_bytes"), w.format_bytes, "modelled", "modelled"),
        ("time", "duration_ns", finding.get("saving_ns"), w.format_ns, basis, finding.get("basis")),
    ):
        before = total(kernels, key) if kernels else None
        if not saved or not before or saved > before or saved < before * 0.005:
            continue
        after = before - saved
        out.append(
            {
                "label": label,
                "before": show(before) + w.basis_note(before_basis),
                "after": show(after) + w.basis_note(after_basis),
                "share": round(after / before * 100, 2),
                "less": f"{round(saved / before * 100)}% less",
            }
        )
    return out


def _verification(check: dict[str, Any] | None) -> dict[str, Any] | None:
    if not check:
        return None
    times = [
        (label, check.get(key))
        for label, key in (
            ("now", "baseline_ns"), ("fused reference", "reference_ns"), ("torch.compile", "compile_ns"),
            ("cuda.compute", "cuda_compute_ns"), ("CUDA graph", "cuda_graph_ns"),
        )
    ]  # fmt: skip
    most = max((t for _, t in times if t), default=0)
    return {
        "verdict": w.plain(check["verdict"]),
        "reason": w.plain(check.get("reason") or ""),
        "reference": w.plain(check.get("reference") or ""),
        "times": [(label, w.format_ns(t), round(t / most * 100, 2)) for label, t in times if t and most],
        "error": None if check.get("max_error") is None else f"{check['max_error']:.2g}",
    }


def _words(key: str) -> str:
    for suffix in ("_bytes", "_ns"):
        key = key.removesuffix(suffix)
    return w.plain(key).replace("_", " ")


def _value(key: str, value: Any) -> str:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        if "share" in key.split("_") or key == "occupancy":
            return w.format_share(value)
        if "bytes" in key.split("_"):
            return w.format_bytes(value)
        if key.endswith("_ns"):
            return w.format_ns(value)
        return w.format_count(value) if isinstance(value, int) else figure(value)
    if isinstance(value, (list, tuple)):
        words = [_value("", v) for v in value[:8]]
        return ", ".join(words) + (f", +{len(value) - 8}" if len(value) > 8 else "")
    if isinstance(value, dict):
        return ", ".join(f"{_words(str(k))}: {_value(str(k), v)}" for k, v in list(value.items())[:8])
    return w.plain(value)[:400]


def inductor_views(document: Document) -> list[dict[str, Any]]:
    """Per pass with something to say: graphs with calls and code, reasons, breaks, recompiles, CUDA graph skips."""
    out = []
    room = MOST_SOURCE
    for p in shown_passes(document):
        if not any(p.get(k) for k in ("graphs", "decisions", "breaks", "recompiles", "cudagraph_skips")):
            continue
        launched: dict[str, int] = {}
        for k in p["kernels"]:
            if k["graph"]:
                launched[k["graph"]] = launched.get(k["graph"], 0) + 1
        graphs = []
        for g in p["graphs"]:
            source = w.plain_lines(g["source"][: max(room, 0)])
            room -= len(source)
            graphs.append(
                {
                    "id": w.plain(g["id"]),
                    "kind": g["kind"],
                    "launches": launched.get(g["id"], 0),
                    "calls": [_call(c) for c in g["calls"]],
                    "source": source,
                    "cut": max(len(g["source"]) - len(source), 0),
                }
            )
        out.append(
            {
                "pass": p["name"],
                "graphs": graphs,
                "decisions": _decisions(p["decisions"]),
                "breaks": [(w.place(b["location"]), w.plain(b["reason"]), b.get("compile_id")) for b in p["breaks"]],
                "recompiles": [
                    (w.place(r["location"]), w.plain(r["function"]), w.plain(r["guard"])) for r in p["recompiles"]
                ],
                "skips": [(w.place(s["location"]), w.plain(s["reason"])) for s in p["cudagraph_skips"]],
            }
        )
    return out


def _call(call: dict[str, Any]) -> dict[str, Any]:
    return {
        "index": call["index"],
        "kind": call["kind"],
        "target": w.plain(call["target"]),
        "ops": w.op_list(call["aten"], 10),
        "place": w.place(call["location"]),
        "read": w.format_bytes(call["read_bytes"]),
        "write": w.format_bytes(call["write_bytes"]),
    }


def _decisions(decisions: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Equal refusals (cause, ops, line) as one row with a count, most bytes first."""
    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    for d in decisions:
        first, second = w.op_list(d["first_ops"]) or d["first"], w.op_list(d["second_ops"]) or d["second"]
        key = (d["cause"], first, second, w.place(d["location"]))
        row = rows.setdefault(
            key,
            {
                "cause": w.plain(d["cause"]).replace("_", " "), "first": w.plain(first), "second": w.plain(second),
                "place": key[3], "reason": w.plain(d["reason"]), "bytes": 0, "count": 0,
            },
        )  # fmt: skip
        row["count"] += 1
        row["bytes"] += d["shared_bytes"] or 0
    ranked = sorted(rows.values(), key=lambda r: -r["bytes"])
    return [{**r, "shared": w.format_bytes(r["bytes"]) if r["bytes"] else w.UNKNOWN} for r in ranked]


def diff_view(diff: dict[str, Any] | None) -> dict[str, Any] | None:
    """A ``dataclasses.asdict(Changes)`` as rows: what split, was lost, came or went; equal groups are only counted."""
    if diff is None:
        return None
    rows = [
        {
            "pass": w.plain(c["pass_name"]),
            "kind": w.plain(c["kind"]),
            "old": [_group(g, c["kind"]) for g in c["old"]],
            "new": [_group(g, c["kind"]) for g in c["new"]],
            "lost": [
                {
                    "from": w.plain(e["producer"]), "to": w.plain(e["consumer"]), "tensor": w.plain(e["tensor"]),
                    "size": w.format_bytes(e["bytes"]),
                }
                for e in c["lost_edges"]
            ],
        }
        for c in diff["changes"]
        if c["kind"] != "same"
    ]  # fmt: skip
    totals = [
        {
            "pass": w.plain(name),
            "launches": [w.format_count(before[0]), w.format_count(after[0])],
            "bytes": [w.format_bytes(before[1]), w.format_bytes(after[1])],
        }
        for name, (before, after) in diff.get("totals", {}).items()
    ]
    order = {kind: i for i, kind in enumerate(("split", "removed", "regrouped", "added", "changed", "signature"))}
    rows.sort(key=lambda r: order.get(str(r["kind"]), len(order)))
    other = [w.plain(k) for k in diff.get("other_key", ())]
    for key, side in (("only_old", "after it"), ("only_new", "before it")):
        other += [f"the pass {w.plain(name)} never ran {side}: not compared" for name in diff.get(key, ())]
    return {"rows": rows, "same": diff.get("same", 0), "totals": totals, "other_key": other}


def _group(group: dict[str, Any], kind: str) -> dict[str, Any]:
    tensors = f"{' '.join(map(w.plain, group['reads'][:6]))} -> {' '.join(map(w.plain, group['writes'][:4]))}"
    if kind == "inputs":
        tensors = f"its graph is called with {' '.join(map(w.plain, group['section']['inputs'][:6]))}"
    return {
        "ops": " + ".join(w.short_op(o) for o in group["ops"]) or w.plain(group.get("what") or ""),
        "tensors": tensors,
        "launches": group.get("launches", 1),
        "bytes": w.format_bytes(group.get("bytes")),
        "lines": [f"{w.plain(r['function'])}: {w.plain(r['code'])}" for r in group["refs"][:4]],
        "note": w.plain(group.get("note") or ""),
    }
