"""Every reference kernel on this GPU under NVIDIA's tools.

``references.py ncu OUT.json``: bytes between L2 and the SMs that Nsight Compute counts, beside the bytes that the
byte model gives (each input read once, or twice where the reference says so, each output written once, unless the
reference says else), at 1 GiB; within 2%, or within 2% of the bytes from and to DRAM, which it says.

``compute-sanitizer --tool memcheck python references.py each``: run each kernel of each dtype once, at small sizes
with a tail, and the kernels generated for the chains of ``tests/reference_cases.py``. Run it with
``PYTORCH_NO_CUDA_MEMORY_CACHING=1`` so that every tensor is an allocation of its own.
"""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

sys.path[:0] = [str(Path(__file__).resolve().parents[2]), str(Path(__file__).resolve().parents[1])]

from fusionaudit.reference_kernels.registry import REFERENCES  # noqa: E402

METRICS = (
    "lts__t_sectors_srcunit_tex_op_read.sum", "lts__t_sectors_srcunit_tex_op_write.sum",
    "dram__bytes_read.sum", "dram__bytes_write.sum",
)  # fmt: skip
BYTES = 1 << 30
SMALL = (1003, 70_016)
MOST_ERROR = 0.02


def each() -> None:
    """One call of every kernel, checked on the way."""
    from reference_cases import CHAINS, record

    from fusionaudit.verify.bench import check_reference
    from fusionaudit.verify.launch import GpuLaunch
    from fusionaudit.verify.reference import check_kernel, make_subject

    launch, count, wrong = GpuLaunch(), 0, []
    for name, reference in REFERENCES.items():
        for dtype in reference.dtypes:
            for elements in SMALL:
                inputs = reference.inputs(elements, dtype, launch.device)
                for variant, run in (("", reference.fused), *reference.variants.items()):
                    check = check_reference(reference, launch, inputs, run)
                    count += 1
                    if not check.ok:
                        wrong.append(f"{name} {variant} {dtype} {elements}: {check.text}")
    for name, chain in CHAINS.items():
        ops = record(*chain())
        subject = make_subject(ops, [op.id for op in ops], sm_count=launch.sm_count)
        check, _, _ = check_kernel(subject, launch, launch.device)
        count += 1
        if not check.ok:
            wrong.append(f"chain {name}: {check.text}")
    torch.cuda.synchronize()
    print(f"{count} calls, {len(wrong)} wrong", *wrong, sep="\n")
    sys.exit(bool(wrong))


def step() -> None:
    """Under ncu: one call of each fused form, each after an ``arange`` that marks it."""
    from fusionaudit.verify.launch import GpuLaunch

    launch, out = GpuLaunch(), {}
    for number, (name, reference) in enumerate(REFERENCES.items()):
        dtype = reference.dtypes[0]
        inputs = reference.inputs(min(reference.sizes[-1], BYTES) // dtype.itemsize, dtype, launch.device)
        outputs = reference.fused(launch, *inputs)
        again = sum(t.nbytes for t in inputs) if reference.reads_twice else 0
        out[name] = {"model_bytes": reference.ideal_bytes(inputs, outputs), "reread_bytes": again}
        torch.cuda.synchronize()
        torch.cuda.profiler.start()
        torch.arange(1000 + number, device="cuda")
        reference.fused(launch, *inputs)
        torch.cuda.synchronize()
        torch.cuda.profiler.stop()
        del inputs, outputs
        torch.cuda.empty_cache()
    Path(os.environ["REFERENCE_BYTES"]).write_text(json.dumps(out))


def ncu(path: Path) -> int:
    """Count, compare, write; 1 where a kernel is off by more than 2%."""
    model = path.with_suffix(".model")
    command = [
        "ncu", "--csv", "--page", "raw", "--print-units", "base", "--clock-control", "none", "--profile-from-start",
        "off", "--metrics", ",".join(METRICS), sys.executable, __file__, "step",
    ]  # fmt: skip
    env = {**os.environ, "REFERENCE_BYTES": str(model)}
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    start = done.stdout.find('"ID"')
    if start < 0 or not model.exists():
        print((done.stdout + done.stderr)[-800:])
        return 1
    expected = json.loads(model.read_text())
    names, rows = iter(expected), []
    current: dict[str, Any] = {}
    for line in list(csv.DictReader(io.StringIO(done.stdout[start:])))[1:]:
        if "arange" in line["Kernel Name"]:
            name = next(names)
            current = {
                "reference": name,
                **expected[name],
                "l2_read": 0,
                "l2_write": 0,
                "dram_bytes": 0,
                "kernels": 0,
            }
            rows.append(current)
            continue
        read, write, dram_read, dram_write = (round(float(line[m].replace(",", ""))) for m in METRICS)
        current["kernels"] += 1
        current["l2_read"] += 32 * read
        current["l2_write"] += 32 * write
        current["dram_bytes"] += dram_read + dram_write
    for row in rows:
        row["error"] = off(row["model_bytes"] + row["reread_bytes"], row["l2_read"] + row["l2_write"])
        row["dram_error"] = off(row["model_bytes"], row["dram_bytes"])
        row["within"] = next((w for w, e in (("L2", "error"), ("DRAM", "dram_error")) if close(row[e])), None)
        print(
            f"{row['reference']:20} model {row['model_bytes']:>13,} + {row['reread_bytes']:>13,} again, "
            f"L2 {row['l2_read']:>13,} + {row['l2_write']:>13,} ({row['error']}), "
            f"DRAM {row['dram_bytes']:>13,} ({row['dram_error']}): {row['within'] or 'neither'}"
        )
    model.unlink()
    path.write_text(json.dumps({"device": torch.cuda.get_device_name(), "rows": rows}, indent=1) + "\n")
    return int(any(row["within"] is None for row in rows))


def off(model: int, counted: int) -> float | None:
    """Relative error of the model; ``None`` where nothing was counted."""
    return round(model / counted - 1, 4) if counted else None


def close(error: float | None) -> bool:
    return error is not None and abs(error) <= MOST_ERROR


if __name__ == "__main__":
    if sys.argv[1] == "ncu":
        sys.exit(ncu(Path(sys.argv[2])))
    {"each": each, "step": step}[sys.argv[1]]()
