"""Runs one step of each script between cudaProfilerStart and Stop, after warm-up; a script has ``build() -> step``.

usage: ncu --profile-from-start off ... python step_runner.py eager|compile SCRIPT...

Before each step one ``arange`` of a length that nothing else uses marks which script the kernels after it belong to.
"""

from __future__ import annotations

import importlib.util
import sys
import traceback

import torch


def main() -> None:
    mode, scripts = sys.argv[1], sys.argv[2:]
    for number, script in enumerate(scripts):
        try:
            sys.argv = [script, "cuda", mode]
            spec = importlib.util.spec_from_file_location(f"audited{number}", script)
            assert spec is not None
            assert spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            torch.manual_seed(0)
            torch._dynamo.reset()
            step = module.build()
            for _ in range(4):
                step()
            torch.cuda.synchronize()
        except Exception:
            traceback.print_exc()
            step = None
        torch.cuda.profiler.start()
        torch.arange(1000 + number, device="cuda")
        if step is not None:
            step()
        torch.cuda.synchronize()
        torch.cuda.profiler.stop()
        step = None
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
