"""Autocast for CPU tensors that stand for the GPU's.

Compiled code is traced with CUDA tensors, for which torch's own ``torch.autocast("cuda")`` works. In eager code the
CPU's autocast is switched on together with CUDA's; ops that only CUDA's lists run in float32 get a kernel that does the
same. A script that names no GPU says ``torch.autocast("cpu")``: CUDA's is switched on together with that.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch

from fusionaudit.capture.calls import tensors_of
from fusionaudit.capture.gpu_tensors import GpuTensors
from fusionaudit.capture.patches import Patches, moved

_FLOAT32 = (
    "acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan pow softplus layer_norm group_norm "
    "nll_loss nll_loss2d kl_div l1_loss smooth_l1_loss huber_loss mse_loss soft_margin_loss logsumexp prod softmax "
    "log_softmax cumprod cumsum linalg_vector_norm sum norm dist renorm binary_cross_entropy_with_logits"
)
"""AT_FORALL_FP32 and AT_FORALL_FP32_SET_OPT_DTYPE of aten/src/ATen/autocast_mode.h, less what scripts do not meet."""
_LOW = (torch.float16, torch.bfloat16)


def cuda_autocast(patches: Patches, tensors: GpuTensors) -> None:
    """Couple the two autocasts until the patches are undone."""
    mode = torch.amp.autocast_mode.autocast
    enter, leave = mode.__enter__, mode.__exit__
    if not hasattr(torch, "set_autocast_enabled") or not hasattr(torch, "get_autocast_dtype"):
        raise moved("torch.set_autocast_enabled")

    def start(self: Any) -> Any:
        result = enter(self)
        device = getattr(self, "device", None)
        other = "cpu" if device == "cuda" else "cuda" if device == "cpu" and not tensors.tracking else None
        if other is not None:
            self._fusionaudit_before = (other, torch.is_autocast_enabled(other), torch.get_autocast_dtype(other))
            torch.set_autocast_enabled(other, bool(self._enabled))
            torch.set_autocast_dtype(other, self.fast_dtype)
        return result

    def stop(self: Any, *args: Any) -> Any:
        before = self.__dict__.pop("_fusionaudit_before", None)
        if before is not None:
            other, enabled, dtype = before
            torch.set_autocast_enabled(other, enabled)
            torch.set_autocast_dtype(other, dtype)
        return leave(self, *args)

    patches.set(mode, "__enter__", start)
    patches.set(mode, "__exit__", stop)
    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in _FLOAT32.split():
            packet = getattr(torch.ops.aten, name, None)
            for overload in packet.overloads() if packet is not None else ():
                op = getattr(packet, overload)
                if "out" in overload or "dimname" in str(op._schema).lower():
                    continue
                full = name if overload == "default" else f"{name}.{overload}"
                library.impl(full, _in_float32(op, tensors), "AutocastCPU", allow_override=True)
    patches.on_undo(library._destroy)


def _in_float32(op: Any, tensors: GpuTensors) -> Any:
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)

    def run(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(keys):
            if torch.is_autocast_enabled("cuda"):
                low = any(t.dtype in _LOW and tensors.holds(t) for t in tensors_of((args, kwargs)))
                if low:
                    args, kwargs = _cast(args), _cast(kwargs)
            return op(*args, **kwargs)

    return run


def _cast(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.float() if value.dtype in _LOW else value
    if isinstance(value, (list, tuple)):
        return type(value)(_cast(v) for v in value)
    if isinstance(value, dict):
        return {k: _cast(v) for k, v in value.items()}
    return value
