"""What this machine is and can do: facts for the manifest (no secret, no user or host name) and the doctor's checks."""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from fusionaudit import __version__
from fusionaudit.capture.nsys import INSTALL, cupti_mismatch, find_nsys, installed_cupti
from fusionaudit.device import TARGETS, Device
from fusionaudit.errors import AuditError, pip_for

Status = Literal["ok", "missing", "warning"]

_PROBE = """
import json, sys
if sys.path and sys.path[0] == '': del sys.path[0]
import torch
out = {"torch": torch.__version__, "cuda": torch.version.cuda, "gpu": None, "reason": None,
       "python": sys.version.split()[0], "path": [p for p in sys.path if p]}
try:
    import triton
    out["triton"] = triton.__version__
except Exception:
    out["triton"] = None
try:
    if torch.version.cuda is None:
        out["reason"] = "this torch is built without CUDA"
    elif not torch.cuda.is_available():
        torch.cuda.init()
    else:
        p = torch.cuda.get_device_properties(0)
        names = ("name", "major", "minor", "multi_processor_count", "warp_size", "regs_per_multiprocessor",
                 "max_threads_per_multi_processor", "shared_memory_per_multiprocessor", "shared_memory_per_block",
                 "shared_memory_per_block_optin", "L2_cache_size", "total_memory", "memory_clock_rate",
                 "memory_bus_width", "gcnArchName")
        out["gpu"] = {n: getattr(p, n, None) for n in names}
        out["gpus"] = torch.cuda.device_count()
except Exception as error:
    out["reason"] = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
print(json.dumps(out))
"""


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What a child with the user's Python found: ``gpu`` are torch's properties of device 0, ``reason`` why not."""

    torch: str | None = None
    triton: str | None = None
    cuda: str | None = None
    python: str = ""
    gpu: dict[str, Any] | None = None
    gpus: int = 0
    reason: str | None = None
    path: list[str] = field(default_factory=list)

    def environment(self) -> dict[str, Any]:
        """For the manifest."""
        return {
            "fusionaudit": __version__, "torch": self.torch, "triton": self.triton, "cuda": self.cuda,
            "python": self.python, "platform": platform.platform(), "machine": platform.machine(),
            "driver": driver_version(), "gpu": None if self.gpu is None else self.gpu.get("name"), "gpus": self.gpus,
        }  # fmt: skip


_ROOM_BYTES = 1 << 16
"""Less than a pass's last word and its neighbours need."""


def disk_full(folder: Path) -> str | None:
    """What to say of a pass that left no word of its end, where there is no room left for one."""
    with contextlib.suppress(OSError):
        if shutil.disk_usage(folder).free < _ROOM_BYTES:
            return f"the capture failed: no space left on the disk of {folder} (free some, or choose --out)"
    return None


def probe(python: str = sys.executable) -> Facts:
    """Ask a child process, so that this one loads no torch and opens no GPU. AuditError where torch is missing."""
    environment = {k: v for k, v in os.environ.items() if k != "TORCH_LOGS"}
    try:
        done = subprocess.run(
            [python, "-W", "ignore", "-c", _PROBE], capture_output=True, text=True, timeout=300, env=environment
        )
    except OSError as error:
        raise AuditError(f"{python}: {error.strerror}", remedy="name a Python that has torch") from None
    except subprocess.TimeoutExpired:
        raise AuditError("importing torch takes more than five minutes", remedy="look at the machine's load") from None
    lines = done.stdout.strip().splitlines()
    try:
        data = json.loads(lines[-1])
    except (IndexError, ValueError):
        last = done.stderr.strip().splitlines()
        why = last[-1] if last else f"exit code {done.returncode}"
        raise AuditError(f"{python} cannot import torch: {why}", remedy="pip install torch") from None
    known = {k: v for k, v in data.items() if k in Facts.__dataclass_fields__}
    return Facts(**known)


def driver_version() -> str | None:
    """The NVIDIA kernel driver's version; ``None`` where there is none."""
    try:
        text = Path("/proc/driver/nvidia/version").read_text()
    except OSError:
        return None
    match = re.search(r"\s(\d{3,}\.\d+(?:\.\d+)?)\s", text)
    return match[1] if match else None


def device_of(gpu: dict[str, Any]) -> Device:
    """The Device of torch's properties; datasheet rates are filled in where the name is a known target."""
    name = str(gpu.get("name") or "GPU")
    known = _known(name)
    if known is not None and known.sm_count != gpu.get("multi_processor_count"):
        known = None  # another variant of that GPU (PCIe for SXM): its rates differ
    clock, width = gpu.get("memory_clock_rate"), gpu.get("memory_bus_width")
    # Double data rate: two transfers a clock; the clock is in kHz, the width in bits.
    computed = 2 * int(clock) * 1000 * int(width) // 8 if clock and width else None
    return Device(
        name=name,
        key=None if known is None else known.key,
        compute_capability=(int(gpu["major"]), int(gpu["minor"])),
        sm_count=gpu.get("multi_processor_count"),
        warp_size=gpu.get("warp_size") or 32,
        registers_per_sm=gpu.get("regs_per_multiprocessor") or 65536,
        threads_per_sm=gpu.get("max_threads_per_multi_processor"),
        blocks_per_sm=None if known is None else known.blocks_per_sm,
        shared_bytes_per_sm=gpu.get("shared_memory_per_multiprocessor"),
        shared_bytes_per_block=gpu.get("shared_memory_per_block") or 49152,
        shared_bytes_per_block_optin=gpu.get("shared_memory_per_block_optin"),
        l2_bytes=gpu.get("L2_cache_size"),
        memory_bytes=gpu.get("total_memory"),
        peak_bandwidth_bytes_per_s=computed if computed or known is None else known.peak_bandwidth_bytes_per_s,
        attainable_share=0.87 if known is None else known.attainable_share,
        peak_flops_per_s=None if known is None else known.peak_flops_per_s,
        arch=None if known is None else known.arch,
        source="torch device properties" + ("" if known is None else f"; rates: {known.source}"),
    )


def _known(name: str) -> Device | None:
    words = re.sub(r"[^a-z0-9]+", " ", name.lower()).split()
    best = None
    for key, target in TARGETS.items():
        same = target.name.lower() == name.lower() or key in words or key == "".join(words[1:])
        if same and (best is None or len(key) > len(best.key or "")):
            best = target
    return best


@dataclass(frozen=True, kw_only=True)
class Check:
    """One line of the doctor."""

    name: str
    status: Status
    detail: str
    remedy: str = ""


def doctor(*, nsys: str | None = None, python: str = sys.executable) -> list[Check]:
    """What this machine can do, one check a line; what is missing comes with the command that brings it."""
    checks = []
    try:
        facts = probe(python)
        checks.append(
            Check(
                name="torch", status="ok", detail=f"{facts.torch} (CUDA {facts.cuda or 'none'}), Python {facts.python}"
            )
        )
    except AuditError as error:
        facts = Facts()
        checks.append(Check(name="torch", status="missing", detail=error.message, remedy=error.remedy))
    triton = "pip install triton" if platform.machine() == "x86_64" else "build triton from source for this machine"
    checks.append(
        Check(name="triton", status="ok", detail=str(facts.triton))
        if facts.triton
        else Check(name="triton", status="missing", detail="needed to compile for a GPU target", remedy=triton)
    )
    checks.append(_gpu_check(facts))
    checks += _nsys_checks(nsys, facts)
    checks.append(_engine_check(checks, facts))
    checks.append(
        _package_check("nvrtc and cuda.core", ("cuda.core", "cuda.bindings"), "proving findings with reference kernels")
    )
    checks.append(_permission_check())
    return checks


def _gpu_check(facts: Facts) -> Check:
    if facts.gpu is not None:
        device = device_of(facts.gpu)
        peak = device.peak_bandwidth_bytes_per_s
        rate = f", {peak / 1e9:.0f} GB/s" if peak else ""
        return Check(
            name="GPU", status="ok", detail=f"{device.name}, {device.sm_count} SMs{rate}, driver {driver_version()}"
        )
    if driver_version() is not None:
        return Check(
            name="GPU", status="warning", detail=facts.reason or "torch sees none",
            remedy="install a torch built for this driver's CUDA (https://pytorch.org/get-started)",
        )  # fmt: skip
    return Check(name="GPU", status="missing", detail=facts.reason or "none", remedy="--engine deviceless needs none")


def _nsys_checks(option: str | None, facts: Facts) -> list[Check]:
    try:
        found = find_nsys(option)
    except AuditError as error:
        return [Check(name="nsys", status="missing", detail=error.message, remedy=error.remedy)]
    if found is None:
        if facts.gpu is None:
            detail, remedy = "not found; without a GPU it would see no kernels", f"on a machine with a GPU: {INSTALL}"
            return [Check(name="nsys", status="missing", detail=detail, remedy=remedy)]
        detail = "not found; the kineto engine is used instead"
        return [Check(name="nsys", status="missing", detail=detail, remedy=INSTALL)]
    checks = [Check(name="nsys", status="ok", detail=f"{found.text}  {found.path}")]
    mismatch = cupti_mismatch(found, facts.cuda)
    if mismatch is not None:
        bundled = "{}.{}".format(*mismatch[0])
        library = installed_cupti(mismatch[1])
        detail = f"nsys {found.text} has CUPTI {bundled}, torch has CUDA {mismatch[1]}: captures can stop silently"
        checks.append(
            Check(name="CUPTI", status="warning", detail=detail, remedy=f"runs use {library} instead")
            if library
            else Check(name="CUPTI", status="warning", detail=detail, remedy="install a newer Nsight Systems")
        )
    return checks


def _engine_check(checks: list[Check], facts: Facts) -> Check:
    has_nsys = any(c.name == "nsys" and c.status == "ok" for c in checks)
    if facts.gpu is None:
        return Check(name="engine", status="ok" if facts.torch else "missing", detail="run uses: deviceless (no GPU)")
    return Check(name="engine", status="ok", detail=f"run uses: {'nsys' if has_nsys else 'kineto'}")


def _package_check(name: str, modules: tuple[str, ...], purpose: str) -> Check:
    for module in modules:
        try:
            present = importlib.util.find_spec(module) is not None
        except ImportError:
            present = False
        if not present:
            return Check(
                name=name, status="missing", detail=f"{module} is not installed ({purpose})",
                remedy=pip_for("gpu"),
            )  # fmt: skip
    try:
        version = importlib.metadata.version("cuda-core")
    except importlib.metadata.PackageNotFoundError:
        version = "present"
    return Check(name=name, status="ok", detail=version)


def _permission_check() -> Check:
    here = Path.cwd()
    if os.access(here, os.W_OK):
        return Check(name="folder", status="ok", detail=f"{here} is writable")
    return Check(name="folder", status="warning", detail=f"{here} is not writable", remedy="give --out DIR")
