"""Both measured engines on this GPU against each other and against CUDA events without a profiler.

Run from the repository root on a GPU machine with nsys: ``python tests/gpu/live.py OUT.json``.

The examples: bytes and kernels have to be the same from both engines. The same steps at sizes where the GPU is what a
step waits for, 30 times (workloads/long): the time of a step, from the clean passes, is compared with the median of
CUDA events around the same steps without a profiler.
"""

from __future__ import annotations

import argparse
import itertools
import json
import runpy
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
ENGINES = ("nsys", "kineto")
EXAMPLES = ("sum_abs", "scale_bias_relu", "transformer_step")


def audit(script: Path, engine: str, folder: Path, *options: str) -> dict[str, Any]:
    """The document of one run, or what went wrong."""
    command = [
        sys.executable, "-m", "fusionaudit", "run", "--engine", engine, "--no-html", "--no-verify", "--format",
        "json", "--quiet", "--timeout", "120", "--out", str(folder / f"{script.stem}_{engine}"), *options, str(script),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=400)
    return json.loads(done.stdout) if done.stdout.strip() else {"error": done.stderr[-400:]}


def events(script: Path) -> dict[str, float]:
    """Median ns of one step, eager and compiled, by CUDA events between steps that follow each other at once."""
    import torch

    module = runpy.run_path(str(script))
    if "train" in module:
        block, compiled = module["block"], torch.compile(module["block"])
        steps: dict[str, Callable[[], Any]] = {
            "eager": lambda: module["train"](block), "compile": lambda: module["train"](compiled)
        }  # fmt: skip
    else:
        function, compiled = module[script.stem], torch.compile(module[script.stem])
        steps = {"eager": lambda: function(module["x"]), "compile": lambda: compiled(module["x"])}
    out = {}
    for mode, step in steps.items():
        for _ in range(6):
            step()
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(31)]
        for mark in marks:
            mark.record()
            step()
        torch.cuda.synchronize()
        out[mode] = statistics.median(a.elapsed_time(b) * 1e6 for a, b in itertools.pairwise(marks))
    return out


def structure(document: dict[str, Any]) -> dict[str, Any]:
    """Launches, bytes and kernels of a step in each mode."""
    if "error" in document:
        return document
    passes = {p["name"]: p for p in document["passes"]}
    out: dict[str, Any] = {"blocking": [n["text"][:120] for n in document["notes"] if n["blocks"]]}
    for mode, name in (("eager", "eager"), ("compile", "compiled")):
        step = passes[name]["per_step"] if name in passes else {}
        out[mode] = {
            "launches": step.get("launches"),
            "bytes": step.get("global_bytes"),
            "kernels": [k["name"][:60] for k in passes[name]["kernels"]] if name in passes else [],
        }
    return out


def times(document: dict[str, Any], clock: dict[str, float]) -> dict[str, Any]:
    """The time of a step in each mode beside the events."""
    if "error" in document:
        return document
    passes = {p["name"]: p["per_step"] for p in document["passes"]}
    out = {}
    for mode, clean in (("eager", "clean_eager"), ("compile", "clean")):
        step = passes.get(clean, {})
        out[mode] = {
            "launches": step.get("launches"),
            "gpu_time_ns": step.get("gpu_time_ns"),
            "step_ns": step.get("step_ns"),
            "events_ns": round(clock[mode]),
            "step_over_events": step.get("step_ns") and round(step["step_ns"] / clock[mode], 3),
        }
    return out


def structures(folder: Path) -> dict[str, Any]:
    """Each example by both engines, side by side: nothing here is timed."""
    examples = [ROOT / "examples" / f"{name}.py" for name in EXAMPLES]
    with ThreadPoolExecutor(6) as pool:
        jobs = {(e.stem, g): pool.submit(audit, e, g, folder) for g in ENGINES for e in examples}
        documents = {key: structure(job.result()) for key, job in jobs.items()}
    for name in EXAMPLES:
        a, b = (documents[name, engine] for engine in ENGINES)
        if "error" in a or "error" in b:
            print(name, a.get("error"), b.get("error"))
            continue
        for mode in ("eager", "compile"):
            same = all(a[mode][k] == b[mode][k] for k in ("bytes", "launches"))
            print(f"{name:17} {mode:8} {a[mode]['launches']} launches {a[mode]['bytes']} bytes, both alike: {same}")
    return {f"{name} {engine}": document for (name, engine), document in documents.items()}


def step_times(folder: Path, names: Iterable[str]) -> dict[str, Any]:
    """Each 30-step form by both engines beside its events, one after another: the GPU is theirs alone."""
    found = {}
    for script in [ROOT / "tests" / "gpu" / "workloads" / "long" / f"{name}.py" for name in names]:
        clock = events(script)
        for engine in ENGINES:
            row = times(audit(script, engine, folder / "long", "--passes", "clean"), clock)
            found[f"{script.stem} {engine}"] = row
            print(script.stem, engine, json.dumps(row), flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="JSON file; what it has already of other parts and scripts stays")
    parser.add_argument("--part", choices=["structure", "times"], action="append", help="only this part")
    parser.add_argument("--only", choices=EXAMPLES, action="append", help="times of this script only")
    parser.add_argument("--folder", type=Path, help="keeps the captures")
    options = parser.parse_args()
    result = json.loads(options.out.read_text()) if options.out.exists() else {}
    with tempfile.TemporaryDirectory() as place:
        folder = options.folder or Path(place)
        for part in options.part or ["structure", "times"]:
            found = structures(folder) if part == "structure" else step_times(folder, options.only or EXAMPLES)
            result[part] = result.get(part, {}) | found
            options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
