"""``python -m fusionaudit.verify.bench_all --out bench.json``: the figures that must hold, on this machine's GPU."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch

from fusionaudit.reference_kernels.registry import REFERENCES
from fusionaudit.verify.bench import bench

MUST_COPY_SHARE = 0.92
MUST_SUM_SHARE = 0.97
MUST_SUM_SPEEDUP = 3.05
MAY_BE_SLOWER = 1.05
SUM_MAY_BE_SLOWER = 1.02
TIMER_NS = 1000  # of two CUDA events: their resolution is half a microsecond each


def failures(rows: list[dict[str, Any]]) -> list[str]:
    """What does not hold, one line each."""
    out = []
    by_key: dict[tuple[Any, ...], dict[str, dict[str, Any]]] = {}
    for r in rows:
        by_key.setdefault((r["pattern"], r["dtype"], r["n"]), {})[r["version"]] = r
    for key, versions in by_key.items():
        reference = versions.get("reference", {})
        label = f"{key[0]} {key[1]} n={key[2]}"
        if reference.get("problem"):
            out.append(f"{label}: {reference['problem']}")
        if "time_ns" not in reference:
            continue
        large = reference["ideal_bytes"] >= 1 << 29
        share = reference["copy_share"] or 0.0
        if large and not reference["limit"] and share < (MUST_SUM_SHARE if key[0] == "sum_abs" else MUST_COPY_SHARE):
            out.append(f"{label}: {share:.1%} of the copy bandwidth")
        if large and key[0] == "sum_abs" and reference["speedup"] < MUST_SUM_SPEEDUP:
            out.append(f"{label}: {reference['speedup']:.2f} times naive, not {MUST_SUM_SPEEDUP}")
        if large:
            out += [f"{label}: {text}" for text in slower(key[0], versions)]
    return out


def slower(pattern: str, versions: dict[str, dict[str, Any]]) -> list[str]:
    """Where the reference takes longer than it may: torch.compile, for sum_abs also cuda.compute, within 2%."""
    is_sum = pattern == "sum_abs"
    limit = SUM_MAY_BE_SLOWER if is_sum else MAY_BE_SLOWER
    others = {"compile": "torch.compile", **({"cuda_compute": "cuda.compute"} if is_sum else {})}
    found, time_ns = [], versions["reference"]["time_ns"]
    for version, name in others.items():
        other = versions.get(version, {}).get("time_ns")
        if other is not None and time_ns > limit * other + TIMER_NS:
            found.append(f"{time_ns / other:.3f} of {name}'s time, may be {limit}")
    return found


def limited(rows: list[dict[str, Any]]) -> list[str]:
    """Large references below the share of the copy bandwidth whose file says why, one line each."""
    return [
        f"{r['pattern']} {r['dtype']} n={r['n']}: {r['copy_share']:.1%} of the copy bandwidth; {r['limit']}"
        for r in rows
        if r["version"] == "reference" and r.get("limit") and (r["copy_share"] or 0.0) < MUST_COPY_SHARE
    ]


def main() -> int:
    """Run, write JSON, print one line a row."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--patterns", nargs="*", default=list(REFERENCES))
    parser.add_argument("--dtypes", nargs="*", default=["float32"])
    parser.add_argument("--all-sizes", action="store_true", help="small sizes for every pattern, not only sum_abs")
    parser.add_argument("--budget", type=float, default=0.4, help="seconds of timing a table")
    options = parser.parse_args()
    start = time.perf_counter()
    result: dict[str, Any] = {"rows": []}
    for pattern in options.patterns:
        sizes = REFERENCES[pattern].sizes
        sizes = sizes if options.all_sizes or pattern == "sum_abs" else sizes[-1:]
        for dtype in options.dtypes:
            elements = [size // getattr(torch, dtype).itemsize for size in sizes]
            part = bench([pattern], elements, [dtype], budget_s=options.budget)
            result = {**part, "rows": [*result["rows"], *part["rows"]]}
        if options.out:
            options.out.write_text(json.dumps(result, indent=1))
    print(f"{result['device']} torch {result['torch']} copy {result['copy_bandwidth_bytes_per_s'] / 1e12:.3f} TB/s")
    for r in result["rows"]:
        key = f"{r['pattern']:<20} {r['dtype']:<8} {r['n']:>10} {r['version']:<17}"
        if "time_ns" in r:
            share = "   -" if r["copy_share"] is None else f"{r['copy_share']:4.0%}"
            wrong = "" if r["correct"] in (True, None) else "WRONG"
            figures = f"{r['kernels'] or 0:>3}k {r['time_ns'] / 1e3:>9.1f}us {share} x{r['speedup']:<6.2f}"
            print(f"{key} {figures} host {r['host_ns'] / 1e3:>6.1f}us {wrong}"
                  + (" (waits for the host)" if r["waits"] else ""))  # fmt: skip
        else:
            print(f"{key} {r['problem'][:90]}")
    bad = failures(result["rows"])
    print(f"{time.perf_counter() - start:.0f} s; " + ("all holds" if not bad else "DOES NOT HOLD:"))
    print("\n".join(bad))
    print("\n".join(["limits that the files name:", *limited(result["rows"])]))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
