"""CUDA C++ to machine code with NVRTC through cuda.core: no nvcc, no host compiler, no GPU needed to compile.

Results are kept on disk under the hash of source (headers of this package inlined), options, architecture and NVRTC
version, with a checksum; an entry that does not check out is built again.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from fusionaudit.errors import AuditError, pip_for

KERNELS = Path(__file__).resolve().parents[1] / "reference_kernels"
if not KERNELS.is_dir():  # an editable install: the folder stands beside the package
    KERNELS = Path(__file__).resolve().parents[2] / "reference_kernels"

GPU_EXTRA = pip_for("gpu")
_INCLUDE = re.compile(r'^\s*#include\s+"([\w.]+)"\s*$', re.M)
_ENTRY = re.compile(r"Compiling entry function '(\w+)'")
_SPILL = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers(.*)")
_SHARED = re.compile(r"(\d+) bytes smem")


class CompileError(AuditError):
    """NVRTC or ptxas rejected a kernel; the message starts with the compiler's first error line."""


@dataclass(frozen=True, kw_only=True)
class Resources:
    """What ptxas reports for one kernel: registers a thread, spilled bytes (stores + loads), stack and shared bytes."""

    registers: int
    spill_bytes: int
    stack_bytes: int
    shared_bytes: int


@dataclass(frozen=True, kw_only=True)
class Compiled:
    """Machine code of one source: ``symbols`` from name expression to mangled name, ``resources`` likewise."""

    cubin: bytes
    symbols: dict[str, str]
    resources: dict[str, Resources]
    arch: str
    from_cache: bool = False


def read_source(name: str) -> str:
    """The text of a reference kernel file (``softmax.cu``)."""
    try:
        return (KERNELS / name).read_text()
    except OSError as error:
        raise AuditError(f"reference kernel {name} cannot be read: {error}", remedy="reinstall fusionaudit") from None


def inline_headers(source: str, seen: set[str] | None = None) -> str:
    """The source with this package's own headers put in place, once each, so that one text is the whole key."""
    seen = set() if seen is None else seen

    def put(match: re.Match[str]) -> str:
        name = match[1]
        if name in seen:
            return ""
        seen.add(name)
        return inline_headers(read_source(name), seen)

    return _INCLUDE.sub(put, source).replace("#pragma once", "")


def cccl_include() -> Path | None:
    """The folder with ``cub/``: the wheel nvidia-cuda-cccl, else a CUDA 13 toolkit's; ``None`` where neither is."""
    candidates = [Path(p) / "nvidia" / "cu13" / "include" / "cccl" for p in sys.path if p]
    homes = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
    candidates += [Path(home) / "include" / "cccl" for home in homes if home]
    return next((c for c in candidates if (c / "cub" / "block" / "block_reduce.cuh").is_file()), None)


def cache_folder() -> Path:
    """``$FUSIONAUDIT_CACHE``, else ``fusionaudit`` in the user's cache folder."""
    given = os.environ.get("FUSIONAUDIT_CACHE")
    return Path(given) if given else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fusionaudit"


def nvrtc_version() -> str:
    """Version of the NVRTC wheel, ``unknown`` where NVRTC comes from elsewhere."""
    for name in ("nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu13", "nvidia-cuda-nvrtc-cu12"):
        try:
            return f"{name} {metadata.version(name)}"
        except metadata.PackageNotFoundError:
            continue
    return "unknown"


def compile_kernels(source: str, names: Sequence[str], arch: str, *, cache: Path | None = None) -> Compiled:
    """Compile the kernels named by C++ name expressions (``softmax_online<float, 256, 4, false>``) for ``sm_90``.

    Raises CompileError with the compiler's log, AuditError where cuda.core, NVRTC or a needed header is missing.
    """
    text = inline_headers(source)
    options: dict[str, Any] = {"std": "c++17", "arch": arch, "ptxas_options": "-v"}
    if "#include <cub/" in text:
        include = cccl_include()
        if include is None:
            raise AuditError(
                "CUB headers not found", remedy=f"{GPU_EXTRA}, or set CUDA_HOME to a CUDA 13 toolkit with include/cccl"
            )
        options["include_path"] = [str(include)]
    key = hashlib.sha256(
        json.dumps([text, sorted(names), arch, options, nvrtc_version()], sort_keys=True).encode()
    ).hexdigest()
    path = (cache or cache_folder()) / f"{key[:32]}.kernel"
    found = _read_entry(path, arch)
    if found is not None:
        return found
    compiled = _compile(text, names, arch, options)
    _write_entry(path, compiled)
    return compiled


def _compile(text: str, names: Sequence[str], arch: str, options: dict[str, Any]) -> Compiled:
    try:
        try:
            from cuda.core import Program, ProgramOptions
        except ImportError:
            from cuda.core.experimental import Program, ProgramOptions
    except ImportError as error:
        raise AuditError(f"cuda.core is not installed: {error}", remedy=GPU_EXTRA) from None
    log = io.StringIO()
    try:
        program = Program(text, "c++", ProgramOptions(**options))
        code = program.compile("cubin", name_expressions=tuple(names), logs=log)
        cubin = bytes(code.code)
        mapping = code.symbol_mapping if hasattr(code, "symbol_mapping") else code._sym_map
    except Exception as error:  # cuda.core has no error class of its own that all its versions share
        lines = [line for line in f"{log.getvalue()}\n{error}".splitlines() if "error" in line]
        raise CompileError(f"kernel does not compile for {arch}: {(lines or [str(error)])[0].strip()[:300]}") from error
    symbols = {k: v.decode() if isinstance(v, bytes) else v for k, v in mapping.items()}
    reports = parse_resources(log.getvalue())
    return Compiled(
        cubin=cubin,
        symbols=symbols,
        resources={name: reports[symbol] for name, symbol in symbols.items() if symbol in reports},
        arch=arch,
    )


def parse_resources(log: str) -> dict[str, Resources]:
    """What ``ptxas -v`` printed, by mangled name."""
    out: dict[str, Resources] = {}
    entry, spill = None, (0, 0)
    for line in log.splitlines():
        if match := _ENTRY.search(line):
            entry, spill = match[1], (0, 0)
        elif match := _SPILL.search(line):
            spill = (int(match[1]), int(match[2]) + int(match[3]))
        elif entry and (match := _USED.search(line)):
            shared = _SHARED.search(match[2])
            out[entry] = Resources(
                registers=int(match[1]),
                spill_bytes=spill[1],
                stack_bytes=spill[0],
                shared_bytes=int(shared[1]) if shared else 0,
            )
            entry = None
    return out


def _write_entry(path: Path, compiled: Compiled) -> None:
    head = {
        "symbols": compiled.symbols,
        "resources": {k: asdict(v) for k, v in compiled.resources.items()},
        "arch": compiled.arch,
    }
    body = json.dumps(head).encode() + b"\n" + compiled.cubin
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            file.write(hashlib.sha256(body).hexdigest().encode() + b"\n" + body)
        os.replace(file.name, path)
    except OSError:
        return  # a read-only home costs time, not the audit


def _read_entry(path: Path, arch: str) -> Compiled | None:
    try:
        digest, _, body = path.read_bytes().partition(b"\n")
        if hashlib.sha256(body).hexdigest().encode() != digest:
            return None
        head_text, _, cubin = body.partition(b"\n")
        head = json.loads(head_text)
        resources = {k: Resources(**v) for k, v in head["resources"].items()}
        if head["arch"] != arch:
            return None
        return Compiled(cubin=cubin, symbols=head["symbols"], resources=resources, arch=arch, from_cache=True)
    except (OSError, ValueError, KeyError, TypeError):
        return None
