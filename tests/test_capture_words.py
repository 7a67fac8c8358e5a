"""A failure that is not the script's fault is told with its cause and what to do, in one line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fusionaudit.capture.engines import no_gpu_hint
from fusionaudit.capture.environment import Facts

torch = pytest.importorskip("torch")
no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is there")

SPAWNS = """
import torch, torch.multiprocessing as mp

def work(rank):
    {work}

if __name__ == "__main__":
    mp.spawn(work, nprocs=1)
"""


def run(tmp_path: Path, code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    script = tmp_path / "script.py"
    script.write_text(code)
    command = [sys.executable, "-m", "fusionaudit", "run", "--engine", "deviceless", "--no-html", "--passes", "eager"]
    return subprocess.run(
        [*command, "--out", str(tmp_path / "out"), str(script)], capture_output=True, text=True, errors="replace",
        env={**os.environ, **environment}, check=False,
    )  # fmt: skip


@no_gpu
def test_a_spawned_process_has_no_pretended_gpu(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    done = run(tmp_path, SPAWNS.format(work="torch.ones(4, device='cuda')"))
    assert done.returncode == 2
    assert "a process that the script starts uses the GPU" in done.stderr
    assert "torchrun" in done.stderr


@no_gpu
def test_a_spawned_process_that_fails_otherwise_is_the_scripts_affair(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    done = run(tmp_path, SPAWNS.format(work="raise ValueError('mine')"))
    assert done.returncode == 2
    assert "ProcessRaisedException" in done.stderr
    assert "torchrun" not in done.stderr


@no_gpu
def test_a_locale_that_torch_cannot_read_its_files_in_is_named(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    done = run(
        tmp_path, "import torch\n(torch.ones(4) * 2).sum()\n", LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0"
    )
    assert "Traceback" not in done.stderr
    assert done.returncode == 0 or "LC_ALL=C.UTF-8" in done.stderr


def test_a_script_that_needs_a_gpu_under_nsys_without_one() -> None:
    facts = Facts(torch="2.13.0", gpu=None, cuda=None, reason="none")
    said = no_gpu_hint("nsys", facts, "AssertionError: Torch not compiled with CUDA enabled")
    assert "--engine deviceless" in said
    assert no_gpu_hint("nsys", facts, "ValueError: 3") == ""
    assert no_gpu_hint("deviceless", facts, "AssertionError: CUDA") == ""
