"""What a deviceless audit costs beside the script itself: ``python tests/benchmarks/deviceless_cost.py [EXAMPLE ...]``.

For each example, one after the other in one run: the script compiled by torch.compile for this CPU (cold caches), and
``fusionaudit run --engine deviceless`` on it (cold caches too). Both run the same small sizes. Prints wall time, CPU
time and peak memory of each and the ratios. The peak is that of the largest single process.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"
DEFAULT = ("sum_abs", "decoder_block", "transformer_step")
SMALL = {'big = device == "cuda"': "big = False", "1 << 28 if": "1 << 20 if"}
COMPILED = """
import runpy, sys, torch
call = torch.nn.Module.__call__
def compiled(module, *args, **kwargs):
    if not torch.compiler.is_compiling() and module._compiled_call_impl is None:
        torch.nn.Module.__call__ = call
        module.compile()
    return call(module, *args, **kwargs)
torch.nn.Module.__call__ = compiled
runpy.run_path(sys.argv[1], run_name="__main__")
"""
"""The script's outermost modules compiled, as the audit does where a script does not compile itself."""


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Seconds of wall and CPU time, and bytes of the largest process."""

    wall_s: float
    cpu_s: float
    peak_bytes: int


def cost(command: list[str], folder: Path) -> Cost:
    """Run a command in a child of its own and measure it and its children."""
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"), "CUDA_VISIBLE_DEVICES": ""}
    environment["TRITON_CACHE_DIR"] = str(folder / "triton")
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        started = time.monotonic()
        done = subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=False)
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        facts = (time.monotonic() - started, used.ru_utime + used.ru_stime, used.ru_maxrss * 1024, done.returncode)
        os.write(writer, " ".join(map(str, facts)).encode())
        os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    wall, cpu, peak, code = os.read(reader, 200).decode().split()
    os.close(reader)
    if int(code) not in (0, 1):
        raise SystemExit(f"{command}: exit code {code}")
    return Cost(wall_s=float(wall), cpu_s=float(cpu), peak_bytes=int(peak))


def main() -> None:
    """See the module's docstring."""
    print(f"{'example':18} {'':12} {'wall s':>8} {'CPU s':>8} {'peak GB':>8}")
    for name in sys.argv[1:] or DEFAULT:
        with tempfile.TemporaryDirectory() as text:
            folder = Path(text)
            code = (EXAMPLES / f"{name}.py").read_text()
            for large, small in SMALL.items():
                code = code.replace(large, small)
            script = folder / f"{name}.py"
            script.write_text(code)
            itself = folder / "compiled.py"
            itself.write_text(code.replace("def sum_abs", "@torch.compile\ndef sum_abs"))
            plain = cost([sys.executable, "-c", COMPILED, str(itself)], folder / "plain")
            audit = cost(
                [sys.executable, "-m", "fusionaudit", "run", "-q", "--engine", "deviceless", "--no-html",
                 "--out", str(folder / "capture"), str(script)], folder / "audit",
            )  # fmt: skip
            for what, found in (("torch.compile", plain), ("audit", audit)):
                print(f"{name:18} {what:12} {found.wall_s:8.1f} {found.cpu_s:8.1f} {found.peak_bytes / 1e9:8.2f}")
            ratios = (audit.wall_s / plain.wall_s, audit.cpu_s / plain.cpu_s, audit.peak_bytes / plain.peak_bytes)
            print(f"{name:18} {'ratio':12} {ratios[0]:8.2f} {ratios[1]:8.2f} {ratios[2]:8.2f}")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
