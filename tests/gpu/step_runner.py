"""Runs one step of a script that has ``build()`` (a case or an example) between cudaProfilerStart and Stop.

usage: step_runner.py SCRIPT eager|compile       under: ncu --profile-from-start off
"""

from __future__ import annotations

import importlib.util
import sys

import torch


def main() -> None:
    script, mode = sys.argv[1:3]
    sys.argv = [script, "cuda", mode]
    spec = importlib.util.spec_from_file_location("audited", script)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["audited"] = module
    spec.loader.exec_module(module)
    torch.manual_seed(0)
    step = module.build()
    for _ in range(4):
        step()
    torch.cuda.synchronize()
    torch.cuda.profiler.start()
    step()
    torch.cuda.synchronize()
    torch.cuda.profiler.stop()


if __name__ == "__main__":
    main()
