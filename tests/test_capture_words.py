"""A failure that is not the script's fault is told with its cause and what to do, in one line."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from fusionaudit.capture.engines import no_gpu_hint
from fusionaudit.capture.environment import Facts, disk_full

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


def test_every_pass_reads_the_file_on_stdin_from_its_start(tmp_path: Path) -> None:
    given = tmp_path / "given.txt"
    given.write_text("skipped\none\ntwo\n")
    code = (
        "import os, sys\n"
        "from fusionaudit.capture.process import run_child\n"
        "os.read(0, 8)\n"  # as a shell's `read` before it
        "for _ in range(2):\n"
        "    run_child([sys.executable, '-c', 'import sys; print(sys.stdin.read().split())'],"
        " environment=dict(os.environ), stdout=None, stderr=None)\n"
    )
    with given.open() as stdin:
        done = subprocess.run([sys.executable, "-c", code], stdin=stdin, capture_output=True, text=True, check=True)
    assert done.stdout == "['one', 'two']\n" * 2


def test_a_full_disk_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert disk_full(tmp_path) is None
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=4096))
    assert "no space left" in str(disk_full(tmp_path))
