"""Ops that ATen makes differently for CUDA: on the CPU stand-ins they must be what the GPU would run.

``dropout`` is one fused op on CUDA and three ops on the CPU; Python code that asks for a tensor's device type in C++
(foreach grouping) gets the stand-in's.
"""

from __future__ import annotations

import sys
import warnings
from typing import Any

import torch

from fusionaudit.capture.gpu_tensors import CUDA, GpuTensors
from fusionaudit.capture.patches import Patches


def cuda_composites(patches: Patches, tensors: GpuTensors) -> None:
    """Make the CPU stand-ins take CUDA's path in ``dropout`` and in foreach grouping."""
    aten = torch.ops.aten

    def dropout(input: Any, p: float, train: bool) -> Any:
        if train and 0.0 < p < 1.0 and input.numel() > 0:
            if tensors.holds(input):
                return aten.native_dropout.default(input, p, train)[0]
            noise = torch.empty_like(input).bernoulli_(1.0 - p).div_(1.0 - p)
            return input * noise
        if not train or p == 0.0:
            # What the composite returns: the input itself; a kernel must not return its argument, so a view of it.
            return input.view_as(input)
        return input * torch.zeros((), dtype=input.dtype)

    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        library.impl("dropout", dropout, "AutogradCPU", allow_override=True)
    patches.on_undo(library._destroy)
    _foreach_groups(patches, tensors)


def _foreach_groups(patches: Patches, tensors: GpuTensors) -> None:
    """Optimizers and gradient clipping choose foreach kernels by the device of each group of tensors."""
    import torch.nn.utils.clip_grad as clip
    import torch.optim.optimizer as optimizer
    import torch.utils._foreach_utils as foreach

    group = foreach._group_tensors_by_device_and_dtype

    def grouped(lists: Any, with_indices: bool = False) -> Any:
        made = group(lists, with_indices)
        renamed = {}
        for (device, dtype), value in made.items():
            first = next((t for part in value[0] for t in part if isinstance(t, torch.Tensor)), None)
            on_gpu = first is not None and device is not None and device.type == "cpu" and tensors.holds(first)
            renamed[CUDA if on_gpu else device, dtype] = value
        return renamed

    for module in (foreach, clip, optimizer):
        patches.set(module, "_group_tensors_by_device_and_dtype", grouped, optional=True)
    choose = optimizer._default_to_fused_or_foreach

    def default_to(params: Any, differentiable: bool, use_fused: bool = False) -> tuple[bool, bool]:
        if tensors.tracking or torch.compiler.is_compiling() or differentiable:
            return choose(params, differentiable, use_fused)
        # A script that never names a GPU: as if its parameters were on one.
        fits = all(
            p is None or (type(p) in (torch.Tensor, torch.nn.Parameter) and p.is_floating_point()) for p in params
        )
        return use_fused and fits, fits and not use_fused

    patches.set(optimizer, "_default_to_fused_or_foreach", default_to)
    for name, module in list(sys.modules.items()):
        if name.startswith("torch.optim.") and module is not optimizer:
            patches.set(module, "_default_to_fused_or_foreach", default_to, optional=True)
