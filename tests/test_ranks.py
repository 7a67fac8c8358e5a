"""Under torchrun each rank is audited into a folder of its own, and its passes find each other again and again."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from fusionaudit import store

SCRIPT = """
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
x = torch.randn(1 << 16)
for _ in range(3):
    y = torch.relu(x * 2 + 1).sum()
    dist.all_reduce(y)
dist.destroy_process_group()
"""


def test_each_rank_has_its_own_audit(tmp_path: Path) -> None:
    (tmp_path / "ranks.py").write_text(SCRIPT)
    audited = [sys.executable, "-m", "fusionaudit", "run", "--engine", "deviceless", "--no-html", "--out", "cap"]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--no-python"]
    done = subprocess.run(
        [*launcher, *audited, "ranks.py"], cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    for rank in (0, 1):
        document = store.load(tmp_path / f"cap.rank{rank}")
        assert [p["name"] for p in document["passes"]] == ["eager", "compiled"]
        names = [k["ops"][0] for k in document["passes"][0]["kernels"]]
        assert names[:3] == ["aten.mul.Tensor", "aten.add.Tensor", "aten.relu.default"]
