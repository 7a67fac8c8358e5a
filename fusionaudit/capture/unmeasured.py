"""What Inductor would decide by timing candidates on the GPU, decided without one; each such decision leaves a note."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import torch

from fusionaudit.capture.patches import Patches

_ALIGNMENT_BYTES = 16
"""cuBLAS's fast kernels need rows that start at multiples of 16 bytes (cuBLAS documentation, tensor core usage)."""

PADDING = (
    "matmuls with sizes that are no multiple of 16 bytes: padding is assumed where rows are misaligned (a GPU times it)"
)
AUTOTUNE = (
    "max-autotune: candidates are timed on the GPU; here every matmul stays with the library, pointwise kernels with \
their default configuration"
)


class Unmeasured:
    """Replaces the timings; ``notes`` are the texts of what was assumed."""

    def __init__(self) -> None:
        self.notes: dict[str, None] = {}
        self._operands = threading.local()

    def install(self, patches: Patches) -> None:
        """Answer for the padding of matmuls; for the rest see :meth:`no_autotuning`."""
        from torch._inductor.fx_passes import pad_mm

        key_of = pad_mm.should_pad_bench_key
        operands = self._operands

        def should_pad_bench_key(match: Any, mat1: Any, mat2: Any, *args: Any, **kwargs: Any) -> Any:
            operands.pair = (mat1, mat2)
            return key_of(match, mat1, mat2, *args, **kwargs)

        def get_cached_should_pad(key: Any) -> bool:
            self.notes[PADDING] = None
            return rows_misaligned(*operands.pair)

        patches.set(pad_mm, "should_pad_bench_key", should_pad_bench_key)
        patches.set(pad_mm, "get_cached_should_pad", get_cached_should_pad)

    @contextlib.contextmanager
    def no_autotuning(self) -> Iterator[None]:
        """Lower with library matmuls where the user asked for max-autotune."""
        import torch._inductor.config as config

        names = [
            n for n in ("max_autotune", "max_autotune_gemm", "max_autotune_report_choices_stats") if _on(config, n)
        ]
        if {"max_autotune", "max_autotune_gemm"} & set(names):
            self.notes[AUTOTUNE] = None
        with config.patch(dict.fromkeys(names, False)) if names else contextlib.nullcontext():
            yield


def _on(config: Any, name: str) -> bool:
    return bool(getattr(config, name, False))


def rows_misaligned(mat1: torch.Tensor, mat2: torch.Tensor) -> bool:
    """True where the reduced size or the rows of the second operand are no multiple of 16 bytes."""
    unit = max(1, _ALIGNMENT_BYTES // mat1.element_size())
    return bool(int(mat1.shape[-1]) % unit or int(mat2.shape[-1]) % unit)
