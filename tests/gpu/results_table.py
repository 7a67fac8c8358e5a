"""Markdown tables of the recorded H200 results: ``python tests/gpu/results_table.py`` (the README's are made so)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parents[1] / "data" / "h200"
NAMES = {
    "naive": "eager", "reference": "hand-fused CUDA", "compile": "torch.compile", "cuda_compute": "cuda.compute",
    "cuda_graph": "CUDA graph of eager", "persistent": "persistent kernel",
}  # fmt: skip


def size(value: int | None) -> str:
    if value is None:
        return "?"
    if value >= 2**28:
        return f"{value / 2**30:.2f} GiB"
    return f"{value / 2**20:.1f} MiB" if value >= 2**18 else f"{value} B"


def rows() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((RESULTS / "bench.json").read_text())["rows"]
    return [r for r in found if r["version"] in NAMES and "time_ns" in r]


def bench() -> str:
    """All versions of each pattern at its largest size."""
    largest = {p: max(r["n"] for r in rows() if r["pattern"] == p) for p in {r["pattern"] for r in rows()}}
    lines = [
        "| pattern | version | kernels | intermediate | moved | time us | of copy | speed-up | same bits | host us |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for r in rows():
        if r["n"] < largest[r["pattern"]]:
            continue
        share = "" if r["copy_share"] is None else f"{r['copy_share']:.0%}"
        same = {True: "yes", False: "no", None: "?"}[r["deterministic"]]
        lines.append(
            f"| {r['pattern']} | {NAMES[r['version']]} | {r['kernels']} | {size(r['intermediate_bytes'])} "
            f"| {size(r['global_bytes'])} | {r['time_ns'] / 1e3:.1f} | {share} | {r['speedup']:.2f} | {same} "
            f"| {r['host_ns'] / 1e3:.0f} |"
        )
    return "\n".join(lines)


def small() -> str:
    """Times in us at the small sizes."""
    shown = ("naive", "reference", "compile", "cuda_graph")
    lines = [
        "| pattern, bytes of its main tensor | " + " | ".join(NAMES[v] for v in shown) + " |",
        "|---|---|---|---|---|",
    ]
    for pattern in dict.fromkeys(r["pattern"] for r in rows()):
        for n in sorted({r["n"] for r in rows() if r["pattern"] == pattern})[:-1]:
            times = {r["version"]: r["time_ns"] for r in rows() if r["pattern"] == pattern and r["n"] == n}
            figures = " | ".join(f"{times[v] / 1e3:.1f}" if v in times else "-" for v in shown)
            lines.append(f"| {pattern}, {size(4 * n)} | {figures} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(bench(), small(), sep="\n\n")
