"""How well the predicted launches of eager ops agree with a GPU's: ``python tests/eager_launches.py CASES``.

A plain script (not collected by pytest). Each ``caseNN.py`` of the folder builds its step; five of them run without a
GPU (without arithmetic, where the script needs no value), and the launches predicted for the fifth are compared with
``truth/caseNN.json``, which an H200 recorded there. Copies and fills (Memcpy, Memset) are left out on both sides.
Prints a line a case; with ``--show`` the launches of both sides next to each other where their numbers differ.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
STEPS = 5


def child(folder: str, script: str, shapes_only: bool) -> None:
    """Run five steps of a case eagerly in this process, recorded."""
    from fusionaudit.capture.deviceless import DevicelessSession
    from fusionaudit.capture.recorder import Recorder
    from fusionaudit.device import find_target

    sys.argv = [script, "cuda", "eager"]
    recorder = Recorder(Path(folder) / "ops.jsonl")
    session = DevicelessSession(
        device=find_target("h200"), folder=Path(folder), pass_name="eager", shapes_only=shapes_only, recorder=recorder
    )
    with session, recorder.recording():
        import torch

        torch.manual_seed(0)
        spec = importlib.util.spec_from_file_location("case", script)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules["case"] = module
        spec.loader.exec_module(module)
        step = module.build()
        for _ in range(STEPS):
            recorder.step()
            step()
    recorder.close()


def predicted(folder: Path) -> list[tuple[str, str]]:
    """(category, op) of each launch predicted for the last recorded step."""
    from fusionaudit.program.launches import predicted_launches
    from fusionaudit.trace.oplog import read_oplog
    from fusionaudit.trace.schema import Op, StepMark

    records: Any = read_oplog(folder / "ops.jsonl").records
    marks = [i for i, r in enumerate(records) if isinstance(r, StepMark)]
    if len(marks) < STEPS:
        return []
    last = [r for r in records[marks[-1] :] if isinstance(r, Op)]
    last = [r for r in last if not r.inputs + r.outputs or any(t.device != "cpu" for t in r.inputs + r.outputs)]
    return [(launch.category, launch.name) for op in last for launch in predicted_launches(op)]


def short(name: str) -> str:
    """A kernel's name without what all of ATen's have in common."""
    inner = re.findall(r"at::native::(?:\(anonymous namespace\)::)?(\w+)", name)
    kept = [n for n in inner if n not in ("vectorized_elementwise_kernel", "elementwise_kernel", "native")]
    return " ".join(dict.fromkeys(kept)) or name[:60]


def one(script: Path, truth: Path, seconds: int) -> dict[str, Any]:
    """Both sides of one case."""
    recorded = json.loads((truth / f"{script.stem}.json").read_text())["eager"]
    # "Optimizer.step#..." is a range of the profiler that the recording took for a launch.
    real = [k for k in recorded["kernels"] if not k.startswith(("Memcpy", "Memset", "Optimizer.step#"))]
    launches = recorded["launches"] - sum(k.startswith("Optimizer.step#") for k in recorded["kernels"])
    ours: list[tuple[str, str]] = []
    error = ""
    for shapes_only in (True, False):
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, __file__, "--child", folder, str(script), *(["shapes"] if shapes_only else [])]
            env = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(ROOT)}
            try:
                done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=seconds, check=False)
                error = "" if done.returncode == 0 else done.stderr.strip()[-300:]
            except subprocess.TimeoutExpired:
                error = f"over {seconds} s"
            if not error:
                ours = predicted(Path(folder))
                break
    mine = [pair for pair in ours if pair[0] != "memcpy"]
    return {"case": script.stem, "gpu": launches, "ours": len(mine), "error": error,
            "gpu_launches": [short(k) for k in real], "our_launches": [f"{k} {n}" for k, n in mine]}  # fmt: skip


def main() -> None:
    """See the module's docstring."""
    if len(sys.argv) > 1 and sys.argv[1] == "--child":
        child(sys.argv[2], sys.argv[3], sys.argv[4:] == ["shapes"])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", type=Path, help="folder of caseNN.py")
    parser.add_argument("--truth", type=Path, help="folder of recorded runs (default CASES/truth)")
    parser.add_argument("--only", default="", help="comma-separated parts of case names")
    parser.add_argument("--seconds", type=int, default=300)
    parser.add_argument("--show", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    truth = options.truth or options.cases / "truth"
    wanted = [w for w in options.only.split(",") if w]
    results = []
    for script in sorted(options.cases.glob("case*.py")):
        if not (truth / f"{script.stem}.json").exists() or (wanted and not any(w in script.stem for w in wanted)):
            continue
        r = one(script, truth, options.seconds)
        results.append(r)
        sign = "  " if r["gpu"] == r["ours"] else "<>"
        print(f"{r['case']}  gpu {r['gpu']:5d}  predicted {r['ours']:5d}  {sign} {r['error']}")
        if options.show and r["gpu"] != r["ours"]:
            for theirs, mine in itertools.zip_longest(r["gpu_launches"], r["our_launches"], fillvalue=""):
                print(f"    {theirs[:90]:90} | {mine}")
        sys.stdout.flush()
    equal = sum(r["gpu"] == r["ours"] for r in results)
    print(f"equal in {equal} of {len(results)}")
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
