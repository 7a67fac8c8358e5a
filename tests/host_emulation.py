"""A launcher that compiles kernels with g++ and runs them on CPU threads, so their results can be tested anywhere."""

from __future__ import annotations

import ctypes
import hashlib
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from fusionaudit.verify.compile import inline_headers, read_source
from fusionaudit.verify.launch import poisoned

SHIM = Path(__file__).parent / "data" / "reference" / "host_cuda.hpp"

# Without -fno-gnu-unique the static arrays of a template would be shared between all loaded libraries.
COMPILER = ("g++", "-std=c++20", "-O1", "-w", "-fPIC", "-pthread", "-fno-gnu-unique")


class HostLaunch:
    """A ``Launch`` on the CPU. ``change`` rewrites the source first (planted errors)."""

    sm_count = 2
    shared_bytes_per_block = 65536
    l2_bytes = 1 << 20
    poison = True

    def __init__(self, folder: Path, change: Any = None) -> None:
        if shutil.which("g++") is None:
            pytest.skip("g++ is not installed")
        self.folder, self.change = folder, change
        self.device = torch.device("cpu")
        self.names: list[str] = []
        self.shim = folder / SHIM.name
        if not self.shim.exists():  # compiled once: most of a kernel's time would go into its headers
            self.shim.write_text(SHIM.read_text())
            subprocess.run([*COMPILER, "-x", "c++-header", str(self.shim)], check=True)
        self._zeros = torch.zeros(4096, dtype=torch.int32)

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        out = torch.empty(tuple(shape), dtype=dtype)
        return poisoned(out) if self.poison else out

    def tickets(self, count: int) -> torch.Tensor:
        assert count <= 4096
        assert not self._zeros.any(), "a kernel left its tickets"
        return self._zeros

    def __call__(
        self, source: str, name: str, grid: Any, block: Any, args: Sequence[Any], *, shared_bytes: int = 0
    ) -> None:
        text = inline_headers(read_source(source) if source.endswith(".cu") else source)
        text = self.change(text) if self.change else text
        text = re.sub(r"#include <cub/.*>", "", text)
        text = re.sub(
            r"extern __shared__[^;]*dynamic_shared\[\];",
            "alignas(16) static unsigned char dynamic_shared[262144];",
            text,
        )
        entry = (
            'extern "C" void run(void** a, const unsigned* g, const unsigned* b) { run_kernel(&'
            + name
            + ", a, g, b); }"
        )
        whole = f'#include "{self.shim}"\n{text}\n{entry}\n'
        key = hashlib.sha256(whole.encode()).hexdigest()[:20]
        library = self.folder / f"{key}.so"
        if not library.exists():
            path = self.folder / f"{key}.cpp"
            path.write_text(whole)
            command = [*COMPILER, "-shared", str(path), "-o", str(library)]
            done = subprocess.run(command, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr[:4000]
        self.names.append(name)
        values = [_value(a) for a in args]
        pointers = (ctypes.c_void_p * len(values))(*[ctypes.cast(ctypes.byref(v), ctypes.c_void_p) for v in values])
        ctypes.CDLL(str(library)).run(pointers, _three(grid), _three(block))


def _three(size: Any) -> Any:
    values = (size,) if isinstance(size, int) else tuple(size)
    return (ctypes.c_uint * 3)(*values, *[1] * (3 - len(values)))


def _value(a: Any) -> Any:
    if isinstance(a, torch.Tensor):
        return ctypes.c_void_p(a.data_ptr())
    if a is None:
        return ctypes.c_void_p(0)
    return ctypes.c_float(a) if isinstance(a, float) else ctypes.c_longlong(a)
