"""Both measured engines on this GPU against each other and against CUDA events without a profiler.

usage: live.py OUT.json [FOLDER]      run from the repository root on a GPU machine with nsys; FOLDER keeps captures

Bytes and kernels have to be the same from both engines; the time of a step, from the clean passes, is compared with the
median over 30 steps of CUDA events around the same step.
"""

from __future__ import annotations

import json
import runpy
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

EXAMPLES = ("sum_abs", "scale_bias_relu", "transformer_step")


def audit(example: str, engine: str, folder: Path) -> dict[str, Any]:
    """The document of one run, or what went wrong."""
    command = [
        sys.executable, "-m", "fusionaudit.cli", "run", "--engine", engine, "--no-html", "--no-verify", "--format",
        "json", "--quiet", "--timeout", "90", "--out", str(folder / f"{example}_{engine}"), f"examples/{example}.py",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=400)
    return json.loads(done.stdout) if done.stdout.strip() else {"error": done.stderr[-400:]}


def events(example: str) -> dict[str, float]:
    """Median ns of one step, eager and compiled, by CUDA events."""
    import torch

    steps: dict[str, Callable[[], Any]] = {}
    if example == "transformer_step":
        for mode in ("eager", "compile"):
            sys.argv = ["block.py", "cuda", mode]
            steps[mode] = runpy.run_path("tests/gpu/workloads/block.py")["build"]()
    else:
        module = runpy.run_path(f"examples/{example}.py")
        x, function = module["x"], module[example]
        compiled = torch.compile(function)
        steps = {"eager": lambda: function(x), "compile": lambda: compiled(x)}
    out = {}
    for mode, step in steps.items():
        for _ in range(6):
            step()
        times = []
        for _ in range(30):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            step()
            end.record()
            torch.cuda.synchronize()
            times.append(begin.elapsed_time(end) * 1e6)
        out[mode] = statistics.median(times)
    return out


def row(document: dict[str, Any], clock: dict[str, float]) -> dict[str, Any]:
    """The figures of one engine beside the events."""
    if "error" in document:
        return document
    passes = {p["name"]: p for p in document["passes"]}
    out: dict[str, Any] = {"notes": [n["text"][:120] for n in document["notes"] if n["blocks"]]}
    for mode, name, clean in (("eager", "eager", "clean_eager"), ("compile", "compiled", "clean")):
        step = passes[name]["per_step"] if name in passes else {}
        timed = passes[clean]["per_step"] if clean in passes else {}
        out[mode] = {
            "launches": step.get("launches"),
            "bytes": step.get("global_bytes"),
            "gpu_time_ns": timed.get("gpu_time_ns"),
            "step_ns": timed.get("step_ns"),
            "events_ns": round(clock[mode]),
            "step_over_events": timed.get("step_ns") and round(timed["step_ns"] / clock[mode], 3),
            "kernels": [k["name"][:60] for k in passes[name]["kernels"]] if name in passes else [],
        }
    out["findings"] = [(f["rule"], f["pass"], f["severity"], f["message"][:90]) for f in document["findings"]][:8]
    return out


def main() -> None:
    result: dict[str, Any] = {}
    # All at once: they are on the GPU for milliseconds of the minute that each takes.
    with tempfile.TemporaryDirectory() as place, ThreadPoolExecutor(6) as pool:
        folder = Path(sys.argv[2] if len(sys.argv) > 2 else place)
        jobs = {(e, g): pool.submit(audit, e, g, folder) for g in ("nsys", "kineto") for e in EXAMPLES}
        documents = {key: job.result() for key, job in jobs.items()}
    for example in EXAMPLES:
        clock = events(example)
        for engine in ("nsys", "kineto"):
            figures = result[f"{example} {engine}"] = row(documents[example, engine], clock)
            if "error" in figures:
                print(example, engine, figures)
                continue
            for mode in ("eager", "compile"):
                shown = {k: v for k, v in figures[mode].items() if k != "kernels"}
                print(f"{example:17} {engine:7} {mode:8} {shown} {figures['notes']}", flush=True)
        a, b = (result[f"{example} {g}"] for g in ("nsys", "kineto"))
        if "error" not in a and "error" not in b:
            same = {m: all(a[m][k] == b[m][k] for k in ("bytes", "launches")) for m in ("eager", "compile")}
            print(f"{example:17} same launches and bytes from both engines: {same}")
        Path(sys.argv[1]).write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
