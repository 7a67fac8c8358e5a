"""CUDA memory that is CPU memory: what C++ and Inductor's passes allocate on CUDA outside every mode."""

from __future__ import annotations

import warnings
from typing import Any

import torch

from fusionaudit.capture.gpu_tensors import GpuTensors
from fusionaudit.capture.patches import Patches


def allocate_on_cpu(patches: Patches, tensors: GpuTensors) -> None:
    """Answer ``aten::empty`` and ``aten::empty_strided`` for CUDA with CPU tensors that stand for CUDA ones.

    Every other factory is made of these two. Dispatch modes and fake tensors come before this and do not see it.
    """

    def empty(size: Any, *, dtype: Any = None, memory_format: Any = None, **_: Any) -> torch.Tensor:
        made = torch.empty(size, dtype=dtype, device="cpu", memory_format=memory_format or torch.contiguous_format)
        tensors.place(made)
        return made

    def empty_strided(size: Any, stride: Any, *, dtype: Any = None, **_: Any) -> torch.Tensor:
        made = torch.empty_strided(size, stride, dtype=dtype, device="cpu")
        tensors.place(made)
        return made

    library = torch.library.Library("aten", "IMPL", "CUDA")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        library.impl("empty.memory_format", empty, allow_override=True)
        library.impl("empty_strided", empty_strided, allow_override=True)
    patches.on_undo(library._destroy)
