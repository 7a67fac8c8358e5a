"""How well the deviceless engine's launches agree with what a GPU generated.

Two uses, both plain scripts (not collected by pytest):

- ``python tests/agreement.py CASES --truth CASES/truth``: lower each ``caseNN.py`` for an H200 here and compare with
  the recorded logs (``caseNN_compile.torch_logs.txt.gz``).
- ``python tests/agreement.py CASES --live`` on a machine with a GPU: run each script twice, once compiled on the GPU,
  once deviceless with the GPU hidden, same torch, and compare.

Compared per graph, in order: (kernel category, fused aten ops, numels, dtypes of the arguments) of Triton launches and
the target of extern calls. Prints one line a case and the total; ``--json FILE`` keeps everything, with each mismatch.
With ``--live --registers`` the registers and local memory of each loaded Triton kernel are compared too, for kernels
whose configuration on the GPU is the one that deviceless compiles.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import difflib
import gzip
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
_LINE = re.compile(r"^[VIWE]\d{4} [\d:.]+ \d+ \S+\] (?:\[([^\]]*)\] )?\[__output_code\] ?(.*)$")
_CALL = re.compile(r"(?:(triton_\w+|async_compile\.\w+)\.run|(extern_kernels\.\w+)|(torch\.ops\.\w+\.\w+(?:\.\w+)?))\(")


def graphs_of(text: str) -> list[list[str]]:
    """The launches of each graph in a TORCH_LOGS text, each launch as one comparable string."""
    sources: list[list[str]] = []
    for line in text.splitlines():
        found = _LINE.match(line)
        if found is None:
            continue
        if found[2].startswith("Output code: "):
            sources.append([])
        elif found[2].startswith("Output code written to"):
            continue
        elif sources:
            sources[-1].append(found[2])
    return [launches("\n".join(source)) for source in sources]


def launches(source: str) -> list[str]:
    """The launches of one output code in order."""
    kernels = {}
    for block in re.split(r"(?=^# kernel path: )", source, flags=re.M):
        made = re.search(r"^(triton_\w+) = async_compile\.triton\('\w+', '''(.*?)'''", block, re.M | re.S)
        if made is None:
            continue
        aten = re.search(r"Original ATen: \[([^\]]*)\]", block)
        numels = sorted(re.findall(r"^\s+((?:x|y|z|r\w*)numel) = (\d+)", made[2], re.M))
        signature = re.search(r"'signature': \{([^}]*)\}", made[2])
        types = re.findall(r"'(?:in_out_ptr|in_ptr|out_ptr)\d+': '([^']*)'", signature[1]) if signature else []
        category = re.match(r"triton_(?:\w*?_)?(poi|red|per|tem|for|unk|spl)", made[1])
        ops = ",".join(sorted(o.strip() for o in aten[1].split(","))) if aten else ""
        sizes = " ".join(f"{k}={v}" for k, v in numels)
        kernels[made[1]] = f"{category[1] if category else made[1]} [{ops}] {sizes} {' '.join(types)}"
    body = re.sub(r"'''.*?'''", "", source, flags=re.S)
    found = [next(filter(None, m.groups())) for m in _CALL.finditer(body)]
    return [kernels.get(name, name) for name in found]


def compare(truth: list[list[str]], ours: list[list[str]]) -> dict[str, Any]:
    """Matched launches, the larger total, and the launches that only one side has."""
    matched = total = 0
    differences = []
    for i in range(max(len(truth), len(ours))):
        a = truth[i] if i < len(truth) else []
        b = ours[i] if i < len(ours) else []
        same = sum(m.size for m in difflib.SequenceMatcher(None, a, b, autojunk=False).get_matching_blocks())
        matched += same
        total += max(len(a), len(b))
        differences += [f"graph {i}: {d}" for d in difflib.ndiff(a, b) if d[0] in "+-"]
    return {"matched": matched, "total": total, "differences": differences}


def deviceless_log(
    script: Path, arguments: list[str], python: str, seconds: int, *, values: bool = False, registers: bool = False
) -> tuple[str, str, list[dict[str, Any]]]:
    """The log of a deviceless run of the script (with ``values``: with arithmetic), its error, kernels' resources."""
    with tempfile.TemporaryDirectory() as folder:
        env = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "TORCHINDUCTOR_CACHE_DIR": f"{folder}/cache"}
        env["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [env.get("PYTHONPATH")])])
        env["AGREEMENT_VALUES"] = "1" if values else "0"
        env["AGREEMENT_REGISTERS"] = "1" if registers else "0"
        command = [python, str(Path(__file__).resolve()), "--child", folder, str(script), *arguments]
        done = _run(command, env, seconds)
        path = Path(folder) / "torch_logs.txt"
        kernels = Path(folder) / "resources.json"
        graphs = json.loads(kernels.read_text())["graphs"] if kernels.exists() else {}
        found = [{"name": name, **figures} for graph in graphs.values() for name, figures in graph.items()]
        return path.read_text() if path.exists() else "", done, found


def live_log(script: Path, arguments: list[str], python: str, seconds: int) -> tuple[str, str, list[dict[str, Any]]]:
    """The log of a real compile on the GPU, its error, and the kernels that were loaded."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log.txt"
        env = {**os.environ, "TORCH_LOGS": "output_code", "TORCHINDUCTOR_CACHE_DIR": f"{folder}/cache"}
        env["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
        with log.open("w") as out:
            try:
                code = subprocess.run(
                    [python, str(Path(__file__).resolve()), "--live-child", folder, str(script), *arguments],
                    env=env, stderr=out, stdout=subprocess.DEVNULL, timeout=seconds, check=False,
                ).returncode  # fmt: skip
            except subprocess.TimeoutExpired:
                code = -1
        kernels = Path(folder) / "kernels.json"
        found = json.loads(kernels.read_text()) if kernels.exists() else []
        return log.read_text(), "" if code == 0 else f"exit {code}: {log.read_text()[-300:]}", found


def _run(command: list[str], env: dict[str, str], seconds: int) -> str:
    try:
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        return f"over {seconds} s"
    return "" if done.returncode == 0 else f"exit {done.returncode}: {done.stderr[-600:]}"


def child(folder: str, script: str, arguments: list[str]) -> None:
    """Run a script deviceless in this process."""
    import runpy

    from fusionaudit.capture.deviceless import DevicelessSession
    from fusionaudit.capture.no_arithmetic import NeedsValue
    from fusionaudit.device import find_target

    sys.argv = [script, *arguments]
    session = DevicelessSession(
        device=find_target("h200"), folder=Path(folder), pass_name="compiled",
        resources=os.environ.get("AGREEMENT_REGISTERS") == "1",
        shapes_only=os.environ.get("AGREEMENT_VALUES") != "1",
    )  # fmt: skip
    with session, contextlib.suppress(NeedsValue):
        # Without values the script ends at the first one that it needs: its last line, a checksum.
        runpy.run_path(script, run_name="__main__")


def live_child(folder: str, script: str, arguments: list[str]) -> None:
    """Run a script on the GPU in this process, then write what each loaded Triton kernel takes."""
    import gc
    import runpy

    sys.argv = [script, *arguments]
    try:
        runpy.run_path(script, run_name="__main__")
    finally:
        from torch._inductor.runtime.triton_heuristics import CachingAutotuner

        kernels = [
            {
                "name": tuner.inductor_meta.get("kernel_name"), "config": dict(launcher.config.kwargs),
                "num_warps": launcher.config.num_warps, "num_stages": launcher.config.num_stages,
                "registers": launcher.n_regs, "local_words": launcher.n_spills,
            }
            for tuner in gc.get_objects() if issubclass(type(tuner), CachingAutotuner)  # never asks a dead proxy
            for launcher in tuner.launchers
        ]  # fmt: skip
        Path(folder, "kernels.json").write_text(json.dumps(kernels))


def compare_registers(real: list[dict[str, Any]], ours: list[dict[str, Any]]) -> dict[str, Any]:
    """Kernels of the same name and configuration: how many have the same registers and bytes of local memory.

    A launcher counts local memory, the stack frame with what spills to it, in words of 4 bytes."""
    same, other_config, differences = 0, 0, []
    for kernel in real:
        keys = ("num_warps", "num_stages")
        named = [k for k in ours if k["name"] == kernel["name"] and "registers" in k]
        alike = [k for k in named if k["config"] == kernel["config"] and all(k[key] == kernel[key] for key in keys)]
        if not alike:
            other_config += bool(named)
        elif any(
            k["registers"] == kernel["registers"] and k["stack_bytes"] == 4 * kernel["local_words"] for k in alike
        ):
            same += 1
        else:
            differences.append({"gpu": kernel, "deviceless": alike})
    return {"same": same, "other_config": other_config, "differences": differences}


def one(script: Path, options: argparse.Namespace) -> dict[str, Any]:
    """One case: its comparison, or the error of either side."""
    started = time.time()
    python, seconds, live, truth = options.python, options.seconds, options.live, options.truth
    arguments = ["cuda", "compile"]
    ours, error, kernels = deviceless_log(script, arguments, python, seconds, registers=options.registers)
    real: list[dict[str, Any]] = []
    if live:
        other, other_error, real = live_log(script, arguments, python, seconds)
    else:
        path = (truth or script.parent / "truth") / f"{script.stem}_compile.torch_logs.txt.gz"
        other, other_error = gzip.decompress(path.read_bytes()).decode(), ""
    theirs, mine = graphs_of(other), graphs_of(ours)
    if len(mine) < len(theirs):
        # The script needed a value before its end: once more, with arithmetic.
        ours, error, kernels = deviceless_log(
            script, arguments, python, seconds, values=True, registers=options.registers
        )
        mine = graphs_of(ours)
    # The recorded runs made five steps; a script that compiles again in each of its steps may make more here.
    extra = 0 if live else max(0, len(mine) - len(theirs))
    result = {**compare(theirs, mine[: len(mine) - extra]), "later_graphs": extra}
    if options.registers:
        result["registers"] = compare_registers(real, kernels)
    seconds_taken = round(time.time() - started, 1)
    return {"case": script.stem, "error": error, "gpu_error": other_error, "seconds": seconds_taken, **result}


def main() -> None:
    """See the module's docstring."""
    if len(sys.argv) > 1 and sys.argv[1] == "--child":
        child(sys.argv[2], sys.argv[3], sys.argv[4:])
        return
    if len(sys.argv) > 1 and sys.argv[1] == "--live-child":
        live_child(sys.argv[2], sys.argv[3], sys.argv[4:])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", type=Path, help="folder of caseNN.py, or one script")
    parser.add_argument("--truth", type=Path, help="folder of recorded logs (default CASES/truth)")
    parser.add_argument("--live", action="store_true", help="compare with a compile on this machine's GPU")
    parser.add_argument("--registers", action="store_true", help="with --live: compare kernels' registers and spills")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seconds", type=int, default=240, help="limit for each run of a script")
    parser.add_argument("--only", default="", help="comma-separated parts of case names")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    scripts = [options.cases] if options.cases.is_file() else sorted(options.cases.glob("case*.py"))
    wanted = [w for w in options.only.split(",") if w]
    scripts = [s for s in scripts if not wanted or any(w in s.stem for w in wanted)]
    results = []
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        jobs = [pool.submit(one, s, options) for s in scripts]
        for job in jobs:
            r = job.result()
            results.append(r)
            share = 100 * r["matched"] / r["total"] if r["total"] else 100.0
            counts = f"{r['matched']:4d} of {r['total']:4d}  {share:5.1f}%  {r['seconds']:6.1f} s"
            print(f"{r['case']}  {counts}  {r['error'][-160:]!r} {r['gpu_error'][-160:]!r}")
            for line in r["differences"][:40]:
                print("     ", line)
            for different in r.get("registers", {}).get("differences", []):
                print("      registers", different)
            sys.stdout.flush()
    matched, total = sum(r["matched"] for r in results), sum(r["total"] for r in results)
    print(f"total   {matched} of {total} launches  {100 * matched / max(total, 1):.2f}%")
    if options.registers:
        found = [r["registers"] for r in results]
        same, other, unlike = (sum(f[k] if k != "differences" else len(f[k]) for f in found)
                               for k in ("same", "other_config", "differences"))  # fmt: skip
        print(f"registers and spills: {same} kernels the same, {unlike} not, {other} with another configuration")
    if options.json:
        options.json.write_text(json.dumps({"matched": matched, "total": total, "cases": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
