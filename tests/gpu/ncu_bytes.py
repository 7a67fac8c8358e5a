"""Checks the byte model against Nsight Compute's L2 traffic, kernel by kernel, on a GPU machine.

usage: ncu_bytes.py OUT.json SCRIPT...     each SCRIPT has ``build()``: the cases and the examples

Each script is audited (kineto) and its step is run again under ncu; kernels are matched in order by name. The figure
compared is L2-to-SM sectors read and written (32 bytes each): what the kernel asks of global memory.
"""

from __future__ import annotations

import csv
import difflib
import io
import json
import re
import statistics
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

METRICS = ("lts__t_sectors_srcunit_tex_op_read.sum", "lts__t_sectors_srcunit_tex_op_write.sum")
HERE = Path(__file__).parent
LEAST_BYTES = 1_000_000


def short(name: str) -> str:
    """The function's own name: the two tools write return types, namespaces and template arguments differently."""
    return re.split(r"[<(]", name.replace("(anonymous namespace)", ""))[0].split("::")[-1].split(" ")[-1]


def ncu(scripts: list[Path], mode: str) -> dict[str, list[dict[str, Any]]]:
    """Kernels of one step of each script in order: name, read and written bytes."""
    command = [
        "ncu", "--csv", "--page", "raw", "--print-units", "base", "--clock-control", "none", "--profile-from-start",
        "off", "--metrics", ",".join(METRICS), sys.executable, str(HERE / "step_runner.py"), mode, *map(str, scripts),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=215)
    start = done.stdout.find('"ID"')
    if start < 0:
        raise RuntimeError((done.stdout + done.stderr)[-600:])
    out: dict[str, list[dict[str, Any]]] = {}
    names = iter(scripts)
    current: list[dict[str, Any]] = []
    for row in list(csv.DictReader(io.StringIO(done.stdout[start:])))[1:]:
        if "arange" in row["Kernel Name"] and len(out) < len(scripts):
            current = out.setdefault(next(names).stem, [])
            continue
        read, write = (round(float(row[m].replace(",", ""))) * 32 for m in METRICS)
        current.append({"name": row["Kernel Name"], "read": read, "write": write})
    return out


def audit(script: Path, folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Kernels of the steady step with the model's bytes, by mode."""
    command = [
        sys.executable, "-m", "fusionaudit", "run", "--engine", "kineto", "--passes", "eager,compiled",
        "--no-html", "--no-verify", "--format", "json", "--quiet", "--out", str(folder / script.stem), str(script),
        "cuda", "compile",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    if not done.stdout.strip():
        raise RuntimeError(done.stderr[-300:])
    passes = {p["name"]: p["kernels"] for p in json.loads(done.stdout)["passes"]}
    return {
        mode: [k for k in passes.get(name, []) if k["category"] not in ("memcpy", "memset")]
        for mode, name in (("eager", "eager"), ("compile", "compiled"))
    }


def compare(script: str, mode: str, ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row a kernel that both have, matched in order by name, and one row of counts."""
    matcher = difflib.SequenceMatcher(
        a=[short(k["name"]) for k in ours], b=[short(k["name"]) for k in theirs], autojunk=False
    )
    rows: list[dict[str, Any]] = []
    for block in matcher.get_matching_blocks():
        for i in range(block.size):
            mine, real = ours[block.a + i], theirs[block.b + i]
            rows.append(
                {
                    "script": script, "mode": mode, "kernel": mine["name"][:80], "ops": mine["ops"][:6],
                    "category": mine["category"], "model_read": mine["read_bytes"], "model_write": mine["write_bytes"],
                    "reread": mine["reread_bytes"], "ncu_read": real["read"], "ncu_write": real["write"],
                    "shapes": mine["shapes"][:6],
                }
            )  # fmt: skip
    matched = sum(b.size for b in matcher.get_matching_blocks())
    unmatched = [
        f"{side}: {k['name'][:80]}"
        for tag, i, j, m, n in matcher.get_opcodes()
        if tag != "equal"
        for side, kernels in (("ours", ours[i:j]), ("ncu", theirs[m:n]))
        for k in kernels[:12]
    ]
    counts = {"ours": len(ours), "ncu": len(theirs), "matched": matched}
    rows.append({"script": script, "mode": mode, **counts, "unmatched": unmatched})
    return rows


def error_of(row: dict[str, Any]) -> float | None:
    """Relative error of the modelled bytes; ``None`` for kernels under 1 MB or without a model."""
    if row.get("model_read") is None or row.get("model_write") is None:
        return None
    real = row["ncu_read"] + row["ncu_write"]
    if real < LEAST_BYTES:
        return None
    return (row["model_read"] + row["model_write"]) / real - 1


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Errors over the kernels of scripts whose step has as many kernels in both tools (else the two steps differ)."""
    unlike = {(r["script"], r["mode"]) for r in rows if "ours" in r and r["ours"] != r["ncu"]}
    kernels = [r for r in rows if "kernel" in r and (r["script"], r["mode"]) not in unlike]
    memory = [r for r in kernels if r["category"] not in ("matmul", "convolution", "attention", "template")]
    large = [r for r in memory if (r["model_read"] or 0) + (r["model_write"] or 0) >= LEAST_BYTES]
    out: dict[str, Any] = {"left_out": sorted(map(" ".join, unlike))}
    for label, chosen in (
        ("all, 1 MB by the counters", kernels),
        ("without matmul, convolution, attention, 1 MB by the counters", memory),
        ("without matmul, convolution, attention, 1 MB by the model", large),
    ):
        errors = sorted(abs(e) for e in map(error_of, chosen) if e is not None)
        if errors:
            out[label] = {
                "kernels": len(errors),
                "median_abs_error": round(statistics.median(errors), 4),
                "p95_abs_error": round(errors[min(len(errors) - 1, int(0.95 * len(errors)))], 4),
            }
    return out


def main() -> None:
    out, scripts = Path(sys.argv[1]), [Path(a) for a in sys.argv[2:]]
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(12) as pool:
        counting = {mode: pool.submit(ncu, scripts, mode) for mode in ("eager", "compile")}
        audits = {s.stem: pool.submit(audit, s, Path(folder)) for s in scripts}
        for name, job in audits.items():
            for mode, counters in counting.items():
                try:
                    rows += compare(name, mode, job.result()[mode], counters.result().get(name, []))
                except Exception as error:
                    rows.append({"script": name, "mode": mode, "failed": f"{type(error).__name__}: {error}"[-300:]})
    result = {"summary": summary(rows), "rows": rows}
    out.write_text(json.dumps(result) + "\n")
    for row in rows:
        error = error_of(row) if "kernel" in row else None
        if error is not None and abs(error) > 0.1:
            model, real = f"{row['model_read']}+{row['model_write']}", f"{row['ncu_read']}+{row['ncu_write']}"
            where = f"{row['script']:8} {row['mode']:7} {row['category']} {row['kernel'][:50]} {row['ops'][:3]}"
            print(f"{error:+.1%} model {model} ncu {real} {where}")
        elif "kernel" not in row:
            print(row)
    print(json.dumps(result["summary"], indent=1))


if __name__ == "__main__":
    main()
