"""Registers, spills and occupancy of generated Triton kernels without a GPU: Triton to PTX, then ``ptxas -v``.

The sources are those that this process's own Inductor just generated; they are loaded here as Inductor itself would
load them. Kernels are compiled with their first configuration, Inductor's default: the one that it takes where it does
not time several (``triton.autotune_pointwise`` off); which one timing would pick is not known without a device.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from fusionaudit.capture.stand_in import triton_target
from fusionaudit.device import Device

_REGISTERS = re.compile(r"Used (\d+) registers")
_SPILLS = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")
_VECTOR_REGISTERS = re.compile(r"^\s*\.vgpr_count:\s*(\d+)", re.M)
_SCRATCH = re.compile(r"^\s*\.private_segment_fixed_size:\s*(\d+)", re.M)
_REGISTER_UNIT, _SHARED_UNIT, _SHARED_RESERVED = 256, 128, 1024
"""Allocation units of compute capability 7.0 and newer, and the shared memory that each block takes for the system
(CUDA occupancy calculator; reserved from 8.0)."""

_known: dict[tuple[str, str], dict[str, Any]] = {}


def triton_sources(source: str) -> dict[str, str]:
    """Kernel name to Triton source, in the order of an output code."""
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return {}
    found: dict[str, str] = {}
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and len(node.value.args) >= 2):
            continue
        text, target, called = node.value.args[1], node.targets[0], ast.unparse(node.value.func)
        if called == "async_compile.triton" and isinstance(target, ast.Name) and isinstance(text, ast.Constant):
            found[target.id] = str(text.value)
    return found


def resources(source: str, device: Device) -> dict[str, dict[str, Any]]:
    """What each Triton kernel of an output code takes on the target; ``{"error": ...}`` where it does not compile.

    Must run while the stand-in for the target is in place. Results are kept by kernel source.
    """
    return {name: kernel_resources(name, text, device) for name, text in triton_sources(source).items()}


def kernel_resources(name: str, text: str, device: Device) -> dict[str, Any]:
    """As :func:`resources`, for one kernel."""
    key = (hashlib.sha256(text.encode()).hexdigest(), str(triton_target(device)))
    if key not in _known:
        try:
            _known[key] = _measure(name, text, device)
        except Exception as error:
            line = (str(error).strip().splitlines() or [""])[0]
            _known[key] = {"error": f"{type(error).__name__}: {line}"[:300]}
    return _known[key]


def _measure(name: str, text: str, device: Device) -> dict[str, Any]:
    import triton

    with tempfile.TemporaryDirectory() as folder:
        kernel = _load(name, text, Path(folder))
        config = kernel.configs[0]
        binary = triton.compile(*_compile_arguments(kernel, config, device))
        figures: dict[str, Any] = {
            "num_warps": config.num_warps,
            "num_stages": config.num_stages,
            "config": {k: v for k, v in config.kwargs.items() if isinstance(v, (int, float, str, bool))},
            "shared_bytes": int(getattr(binary.metadata, "shared", 0) or 0),
        }
        if device.vendor != "amd":
            figures.update(_assemble(binary.asm["ptx"], Path(folder)))
        else:
            figures.update(amd_figures(binary.asm["amdgcn"]))
        figures["occupancy"] = occupancy(
            device, figures["registers"], figures["shared_bytes"], config.num_warps * device.warp_size
        )
        return figures


def amd_figures(assembly: str) -> dict[str, Any]:
    """Vector registers and scratch bytes a thread, from the metadata that AMD's assembler puts behind a kernel."""
    registers, scratch = _VECTOR_REGISTERS.search(assembly), _SCRATCH.search(assembly)
    return {
        "registers": int(registers[1]) if registers else None,
        "spill_bytes": int(scratch[1]) if scratch else None,
    }


def _load(name: str, text: str, folder: Path) -> Any:
    path = folder / f"{name}.py"
    path.write_text(text.replace("triton_helpers.set_driver_to_gpu()", ""))
    spec = importlib.util.spec_from_file_location(f"fusionaudit_kernel_{name}", path)
    if spec is None or spec.loader is None:
        raise ImportError(name)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
        return getattr(module, name)
    finally:
        sys.modules.pop(spec.name, None)


def _compile_arguments(kernel: Any, config: Any, device: Device) -> tuple[Any, ...]:
    """What CachingAutotuner would hand to ``triton.compile`` for a configuration."""
    from triton.compiler import ASTSource

    meta = kernel.triton_meta
    constants = {**meta.get("constants", {}), **config.kwargs}
    signature = {**meta["signature"], **dict.fromkeys((k for k in constants if isinstance(k, str)), "constexpr")}
    constexprs = {(kernel.fn.arg_names.index(k),) if isinstance(k, str) else k: v for k, v in constants.items()}
    source = ASTSource(kernel.fn, signature, constexprs=constexprs, attrs=meta["configs"][0])
    options: dict[str, Any] = {"num_warps": config.num_warps, "num_stages": config.num_stages}
    if "enable_fp_fusion" in meta:
        options["enable_fp_fusion"] = meta["enable_fp_fusion"]
    return source, triton_target(device), options


def find_ptxas(arch: str) -> str | None:
    """The assembler that Triton ships; a newer one beside it is for compute capability 10.0 and above."""
    import triton

    folder = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
    number = re.search(r"\d+", arch)
    newer = number is not None and int(number[0]) >= 100
    names = ("ptxas-blackwell", "ptxas") if newer else ("ptxas",)
    return next((str(folder / n) for n in names if os.access(folder / n, os.X_OK)), None)


def _assemble(ptx: str, folder: Path) -> dict[str, Any]:
    target = re.search(r"^\.target (sm_\w+)", ptx, re.M)
    arch = target[1] if target else "sm_90a"
    assembler = find_ptxas(arch)
    if assembler is None:
        return {"registers": None, "spill_bytes": None}
    path = folder / "kernel.ptx"
    path.write_text(ptx)
    done = subprocess.run(
        [assembler, "-v", f"-arch={arch}", str(path), "-o", os.devnull],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    registers, spills = _REGISTERS.search(done.stderr), _SPILLS.search(done.stderr)
    if registers is None:
        raise RuntimeError(f"ptxas: {done.stderr.strip()[:200]}")
    return {
        "registers": int(registers[1]),
        "spill_bytes": int(spills[1]) if spills else 0,
        "spill_load_bytes": int(spills[2]) if spills else 0,
    }


def _up(value: int, unit: int) -> int:
    return -(-value // unit) * unit


def occupancy(device: Device, registers: int | None, shared_bytes: int, threads: int) -> float | None:
    """Share of the SM's warps that fit, by registers, shared memory and block size; ``None``: not known."""
    if registers is None or device.threads_per_sm is None or not threads:
        return None
    warps = -(-threads // device.warp_size)
    most = device.threads_per_sm // device.warp_size
    limits = [most // warps, device.blocks_per_sm or 32]
    if device.registers_per_sm and registers:
        per_warp = _up(registers * device.warp_size, _REGISTER_UNIT)
        limits.append(device.registers_per_sm // per_warp // warps)
    if device.shared_bytes_per_sm and shared_bytes:
        reserved = _SHARED_RESERVED if (device.compute_capability or (9, 0)) >= (8, 0) else 0
        limits.append(device.shared_bytes_per_sm // _up(shared_bytes + reserved, _SHARED_UNIT))
    return round(min(1.0, max(0, min(limits)) * warps / most), 4)
