"""A real Nsight Systems: ``nsys stats`` agrees with our kernel table, and NVTX ranges come through its exporter."""

from __future__ import annotations

import csv
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fusionaudit.errors import AuditError
from fusionaudit.trace.load import load_trace
from fusionaudit.trace.nsys_sqlite import read_ranges

CAPTURES = Path(__file__).parent / "data" / "captures"


def find_nsys() -> Path | None:
    """$FUSIONAUDIT_NSYS, the PATH, or beside the checkout, where tests/nsys_local.sh is told to put it."""
    beside = Path(__file__).parents[2] / "nsys" / "target-linux-x64" / "nsys"
    for place in (os.environ.get("FUSIONAUDIT_NSYS"), shutil.which("nsys"), beside):
        if place and Path(place).is_file():
            return Path(place).resolve()
    return None


NSYS = find_nsys()
pytestmark = pytest.mark.skipif(NSYS is None, reason="nsys is missing (tests/nsys_local.sh PREFIX brings it)")


def nsys(*arguments: str, cwd: Path) -> str:
    done = subprocess.run([str(NSYS), *arguments], capture_output=True, text=True, cwd=cwd, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def number(text: str) -> int | None:
    return int(text) if text else None


@pytest.mark.parametrize(
    "name",
    ["nsys2023.4_sum_abs_eager", "nsys2023.4_block_compiled", "nsys2023.4_tiny_graph", "nsys2025.3_block_eager"],
)
def test_nsys_stats_agrees_kernel_by_kernel(name: str, tmp_path: Path) -> None:
    path = Path(shutil.copy(CAPTURES / f"{name}.sqlite", tmp_path))
    path.chmod(0o644)  # nsys stats adds views to the file
    text = nsys("stats", "--report", "cuda_gpu_trace", "--format", "csv", "--quiet", path.name, cwd=tmp_path)
    lines = text[text.index("Start (ns)") :].splitlines()
    theirs = sorted(
        (
            int(row["Start (ns)"]), int(row["Duration (ns)"]), number(row["CorrId"]), number(row["GrdX"]),
            number(row["BlkX"]), number(row["Reg/Trd"]), row["Name"],
        )
        for row in csv.DictReader(lines)
        if row["Name"]
    )  # fmt: skip
    ours = sorted(
        (
            a.start_ns, a.duration_ns, a.correlation, a.grid[0] if a.grid else None, a.block[0] if a.block else None,
            a.registers, a.name,
        )
        for a in load_trace(CAPTURES / f"{name}.sqlite").activities
    )  # fmt: skip
    assert len(ours) == len(theirs)
    assert ours == theirs


PUSHER = """
#include <nvtx3/nvToolsExt.h>
void push(const char *text) { nvtxRangePushA(text); }
void pop(void) { nvtxRangePop(); }
"""
SCRIPT = """
import ctypes, sys, threading, time
library = ctypes.CDLL(sys.argv[1])
def work(texts):
    for text in texts:
        library.push(text.encode())
        time.sleep(0.002)
    for _ in texts:
        library.pop()
work(["fusionaudit:step 0", "fusionaudit:op 17 aten.add.Tensor"])
product = "aten::mm, op_id = 3, sizes = [[2, 3], [3, 4]], input_op_ids = [(1,0), (0,-1)]"
other = threading.Thread(target=work, args=([product],))
other.start()
other.join()
time.sleep(0.2)
"""


def test_ranges_come_through_a_real_profile(tmp_path: Path) -> None:
    """No GPU needed: ranges are there, and the missing kernels are said in one line."""
    compiler = shutil.which("cc")
    include = Path(str(NSYS)).parent / "nvtx" / "include"
    if compiler is None or not include.is_dir():
        pytest.skip("a C compiler or the NVTX headers of nsys are missing")
    (tmp_path / "pusher.c").write_text(PUSHER)
    (tmp_path / "script.py").write_text(SCRIPT)
    library = tmp_path / "pusher.so"
    build = [compiler, "-shared", "-fPIC", f"-I{include}", "pusher.c", "-o", str(library), "-ldl"]
    subprocess.run(build, cwd=tmp_path, check=True, capture_output=True)
    nsys(
        "profile", "--trace=nvtx", "--sample=none", "--cpuctxsw=none", "--output=r", sys.executable, "script.py",
        str(library), cwd=tmp_path,
    )  # fmt: skip
    nsys("export", "--type=sqlite", "--output=r.sqlite", "r.nsys-rep", cwd=tmp_path)
    ranges = read_ranges(tmp_path / "r.sqlite")
    meanings = [(r.meaning.kind, r.meaning.op.name if r.meaning.op else r.meaning.value) for r in ranges]
    assert meanings == [("step", "0"), ("op", "aten.add.Tensor"), ("op", "aten.mm")]
    step, added, product = ranges
    assert step.thread == added.thread != product.thread
    assert step.start_ns < added.start_ns < added.end_ns < step.end_ns
    assert product.meaning.op is not None
    assert (product.meaning.op.shapes, product.meaning.op.input_ops) == (((2, 3), (3, 4)), ((1, 0), (0, -1)))
    with pytest.raises(AuditError, match="no CUDA work was recorded"):
        load_trace(tmp_path / "r.sqlite")
