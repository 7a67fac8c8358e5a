"""The comparison table in 80 columns."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table


def amount(value: float | None, unit: str = "B") -> str:
    """Bytes in binary units, short (``3.0 GiB``); ``-`` where not known."""
    if value is None:
        return "-"
    for prefix in ("", "Ki", "Mi"):
        if abs(value) < 1024:
            return f"{value:.0f} {prefix}{unit}" if not prefix else f"{value:.1f} {prefix}{unit}"
        value /= 1024
    return f"{value:.2f} Gi{unit}"


def micro(value: int | None) -> str:
    """ns as us, three digits."""
    return "-" if value is None else f"{value / 1e3:.1f}" if value < 1e6 else f"{value / 1e3:.0f}"


def render_bench(result: dict[str, Any], console: Console) -> None:
    """One small table per pattern, dtype and size; what the columns mean stands below."""
    rows = result["rows"]
    rate = result["copy_bandwidth_bytes_per_s"]
    console.print(
        f"{result['device']}, torch {result['torch']}; a 1 GiB copy moves {rate / 1e12:.2f} TB/s", markup=False
    )
    for key in dict.fromkeys((r["pattern"], r["dtype"], r["n"]) for r in rows):
        group = [r for r in rows if (r["pattern"], r["dtype"], r["n"]) == key]
        title = f"{key[0]}  {key[1]}  n = {key[2]:,}"
        table = Table(title=title, title_justify="left", box=None, pad_edge=False, padding=(0, 1, 0, 0))
        columns = ("version", "kernels", "buffer", "bytes", "us", "TB/s", "copy", "x", "host us", "bits")
        for name in columns:
            table.add_column(name, justify="left" if name == "version" else "right", no_wrap=True)
        for r in (r for r in group if "time_ns" in r):
            speed = r["bandwidth_bytes_per_s"]
            table.add_row(
                r["version"].replace("reference", "CUDA"),
                "-" if r["kernels"] is None else str(r["kernels"]),
                amount(r["intermediate_bytes"]),
                amount(r["global_bytes"]),
                micro(r["time_ns"]),
                "-" if speed is None else f"{speed / 1e12:.2f}",
                "-" if r["copy_share"] is None else f"{r['copy_share']:.0%}",
                f"{r['speedup']:.2f}",
                micro(r["host_ns"]),
                {True: "same", False: "vary", None: "-"}[r["deterministic"]],
            )
        console.print(table)
        slow = [r["version"].replace("reference", "CUDA") for r in group if r.get("waits")]
        if slow:
            console.print(f"  {', '.join(slow)}: the time holds waits for the host", markup=False, highlight=False)
        for r in group:
            if r.get("problem"):
                console.print(f"  {r['version']}: {r['problem']}", markup=False, highlight=False)
        console.print()
    console.print(
        "us: median on the device, L2 cold. copy: share of the copy's bandwidth. x: against naive.\n"
        "bits: same on repeated runs or not. Who decides what is fused: naive nobody, CUDA you,\n"
        "compile Inductor, cuda_compute you (by iterators), cuda_graph nobody (launches replayed).",
        markup=False, highlight=False,
    )  # fmt: skip
