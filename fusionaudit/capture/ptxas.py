"""Registers, spills and occupancy of generated Triton kernels without a GPU: Triton to PTX to ``ptxas``, which says.

The sources are those that this process's own Inductor just generated; they are loaded here as Inductor itself would
load them. Kernels are compiled with their first configuration, Inductor's default: the one that it takes where it does
not time several (``triton.autotune_pointwise`` off); which one timing would pick is not known without a device. Where
that one spills, the figures are those of the configuration that spills least.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import re
import sys
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

from fusionaudit.capture.stand_in import triton_target
from fusionaudit.device import Device

_REGISTERS = re.compile(r"Used (\d+) registers")
_STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
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
    with tempfile.TemporaryDirectory() as folder:
        kernel = _load(name, text, Path(folder))
        figures = _figures(kernel, kernel.configs[0], device)
        # Inductor does not take a configuration that spills where another does not (``spill_threshold``).
        for config in kernel.configs[1:]:
            if not figures["spill_bytes"]:
                break
            other = _figures(kernel, config, device)
            if (other["spill_bytes"] or 0) < figures["spill_bytes"]:
                figures = other
        return figures


def _figures(kernel: Any, config: Any, device: Device) -> dict[str, Any]:
    """What the kernel takes in one configuration."""
    binary, log = _compile(_compile_arguments(kernel, config, device))
    figures: dict[str, Any] = {
        "num_warps": config.num_warps,
        "num_stages": config.num_stages,
        "config": {k: v for k, v in config.kwargs.items() if isinstance(v, (int, float, str, bool))},
        "shared_bytes": int(getattr(binary.metadata, "shared", 0) or 0),
    }
    figures.update(amd_figures(binary.asm["amdgcn"]) if device.vendor == "amd" else nvidia_figures(log))
    figures["occupancy"] = occupancy(
        device, figures["registers"], figures["shared_bytes"], config.num_warps * device.warp_size
    )
    return figures


def _compile(arguments: tuple[Any, ...]) -> tuple[Any, str]:
    """Triton's binary and what the assembler that Triton ran for it printed (nothing for AMD)."""
    import triton
    from triton import knobs
    from triton.backends.nvidia import compiler

    log: list[str] = []
    with (
        knobs.nvidia.scope(),
        knobs.compilation.scope(),
        mock.patch.object(compiler, "print", lambda *texts: log.extend(map(str, texts)), create=True),
    ):
        knobs.nvidia.dump_ptxas_log = True  # by print, in that module
        knobs.compilation.always_compile = True  # a binary from Triton's cache has no log
        return triton.compile(*arguments), "\n".join(log)


def nvidia_figures(log: str) -> dict[str, Any]:
    """What ``ptxas -v`` says of one kernel: registers a thread, bytes of local memory a thread (the stack frame, which
    holds the spills too), and of spills the bytes stored and loaded."""
    registers, stack = _REGISTERS.search(log), _STACK.search(log)
    if registers is None:
        raise RuntimeError(f"ptxas said nothing of registers: {log.strip()[:200]!r}")
    return {
        "registers": int(registers[1]),
        "stack_bytes": int(stack[1]) if stack else 0,
        "spill_bytes": int(stack[2]) if stack else 0,
        "spill_load_bytes": int(stack[3]) if stack else 0,
    }


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
    options: dict[str, Any] = {
        "num_warps": config.num_warps,
        "num_stages": config.num_stages,
        "debug": bool(kernel.inductor_meta.get("assert_indirect_indexing", True)) and device.vendor != "amd",
        "sanitize_overflow": False,
    }
    if "enable_fp_fusion" in meta:
        options["enable_fp_fusion"] = meta["enable_fp_fusion"]
    if device.vendor != "amd":
        options["launch_cooperative_grid"] = meta.get("launch_cooperative_grid", False)
        options["launch_pdl"] = meta.get("launch_pdl", False)
        if meta.get("disable_ftz", False):
            options["enable_reflect_ftz"] = False
    return source, triton_target(device), options


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
