"""``scaled_dot_product_attention`` becomes the op that the target GPU takes: cuDNN, flash, memory-efficient or math.

torch decides this in C++ from the properties of a real device, so the decision is made here again, from
``aten/src/ATen/native/transformers/cuda/sdp_utils.cpp`` (priority order and the constraints that depend on shapes,
dtypes, masks and the user's ``sdpa_kernel``). Where it cannot be told (memory layout of exotic inputs) the first fit
is taken.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import torch

from fusionaudit.capture.gpu_tensors import GpuTensors
from fusionaudit.capture.library_kernels import softmax_equivalents
from fusionaudit.capture.no_arithmetic import run_without_kernel
from fusionaudit.capture.patches import Patches, moved
from fusionaudit.device import Device

_HALF = (torch.float16, torch.bfloat16)


def _enabled(name: str) -> bool:
    query = getattr(torch._C, f"_get_{name}_sdp_enabled", None)
    return True if query is None else bool(query())


def _fits_cudnn(device: Device, q: Any, k: Any, v: Any, mask: Any, gqa: bool) -> bool:
    """can_use_cudnn_attention: half precision, 4 dimensions, head size a multiple of 8 up to 128, length over 1."""
    if device.vendor != "nvidia" or not _enabled("cudnn") or q.dtype not in _HALF or q.dim() != 4:
        return False
    if torch.are_deterministic_algorithms_enabled():
        return False
    head = q.shape[-1]
    if head % 8 or v.shape[-1] % 8 or head > 128 or v.shape[-1] > 128:
        return False
    if q.shape[-2] == 1 or k.shape[-2] == 1:
        return False
    return mask is None or not mask.requires_grad


def _fits_flash(device: Device, q: Any, k: Any, v: Any, mask: Any, gqa: bool) -> bool:
    """can_use_flash_attention: compute capability 8.0, half precision, no mask, head size up to 256."""
    if (device.compute_capability or (9, 0)) < (8, 0) or not _enabled("flash") or q.dtype not in _HALF or q.dim() != 4:
        return False
    if mask is not None or q.shape[-1] > 256 or q.shape[-1] != v.shape[-1]:
        return False
    return gqa or (q.shape[1] == k.shape[1] and q.shape[0] == k.shape[0])


def _fits_efficient(device: Device, q: Any, k: Any, v: Any, mask: Any, gqa: bool) -> bool:
    """can_use_mem_efficient_attention: also float32; no grouped heads; aligned head size."""
    if not _enabled("mem_efficient") or q.dim() != 4 or q.dtype not in (*_HALF, torch.float32):
        return False
    if q.dtype is torch.bfloat16 and (device.compute_capability or (9, 0)) < (8, 0):
        return False
    align = 16 // q.element_size()
    if q.shape[-1] % align or v.shape[-1] % align:
        return False
    return q.shape[1] == k.shape[1] and q.shape[0] == k.shape[0]


_FITS: dict[str, Callable[..., bool]] = {"cudnn": _fits_cudnn, "flash": _fits_flash, "efficient": _fits_efficient}


def priority(device: Device) -> tuple[str, ...]:
    """check_prefer_cudnn_attention: cuDNN comes first on 9.0 and 10.0, last elsewhere."""
    if device.compute_capability in ((9, 0), (10, 0)):
        return ("cudnn", "flash", "efficient")
    return ("flash", "efficient", "cudnn")


def attention_backend(device: Device, q: Any, k: Any, v: Any, mask: Any = None, gqa: bool = False) -> str:
    """``cudnn``, ``flash``, ``efficient`` or ``math`` for these tensors on that GPU."""
    for name in priority(device):
        if _FITS[name](device, q, k, v, mask, gqa):
            return name
    return "math"


def choose_attention(patches: Patches, device: Device, tensors: GpuTensors) -> None:
    """Replace the composite op for CUDA tensors and for the CPU tensors that stand for them."""
    aten = torch.ops.aten
    op = aten.scaled_dot_product_attention.default
    for name in ("_scaled_dot_product_cudnn_attention", "_scaled_dot_product_flash_attention"):
        if not hasattr(aten, name):
            raise moved(f"aten.{name}")

    def attention(
        query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, is_causal: bool = False,
        *, scale: float | None = None, enable_gqa: bool = False,
    ) -> Any:  # fmt: skip
        def math() -> Any:
            return aten._scaled_dot_product_attention_math.default(
                query, key, value, attn_mask, dropout_p, is_causal, None, scale=scale, enable_gqa=enable_gqa
            )[0]

        if query.device.type == "cpu" and not tensors.holds(query):
            return math()
        backend = attention_backend(device, query, key, value, attn_mask, enable_gqa)
        if backend == "math":
            return math()
        wants_grad = torch.is_grad_enabled() and any(t.requires_grad for t in (query, key, value))
        mask = attn_mask
        if mask is not None and mask.dtype is torch.bool:
            low = torch.full((), float("-inf"), dtype=query.dtype, device=query.device)
            mask = torch.where(mask, torch.zeros((), dtype=query.dtype, device=query.device), low)
        if mask is not None:
            mask = mask.expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])
        if backend == "cudnn":
            return aten._scaled_dot_product_cudnn_attention.default(
                query, key, value, mask, wants_grad, dropout_p, is_causal, False, scale=scale
            )[0]
        if backend == "efficient":
            return aten._scaled_dot_product_efficient_attention.default(
                query, key, value, mask, wants_grad, dropout_p, is_causal, scale=scale
            )[0]
        head = query.shape[-1]
        pad = -head % 8
        if pad:
            scale = head**-0.5 if scale is None else scale
            query, key, value = (torch.nn.functional.pad(t, (0, pad)) for t in (query, key, value))
        out = aten._scaled_dot_product_flash_attention.default(
            query, key, value, dropout_p, is_causal, False, scale=scale
        )[0]
        return out[..., :head] if pad else out

    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for key in ("AutogradCUDA", "AutogradCPU"):
            library.impl("scaled_dot_product_attention", attention, key, allow_override=True)
    patches.on_undo(library._destroy)
    # Inference mode has no autograd keys: modes decompose the op, in Python where it has a Python decomposition.
    composite = torch._C.DispatchKey.CompositeImplicitAutograd
    if composite not in op.py_kernels:
        op.py_kernels[composite] = attention
        patches.on_undo(lambda: op.py_kernels.pop(composite, None))


@functools.cache
def cpu_equivalents() -> dict[Any, Any]:
    """GPU-only ops and what computes the same on the CPU (attention's dropout is left out)."""
    aten = torch.ops.aten
    pairs: dict[Any, Any] = softmax_equivalents()
    for name, biased in (("cudnn", True), ("flash", False), ("efficient", True)):
        forward = getattr(aten, f"_scaled_dot_product_{name}_attention").default
        backward = getattr(aten, f"_scaled_dot_product_{name}_attention_backward").default
        pairs[forward] = _forward(forward, biased)
        pairs[backward] = _backward(backward)
    return pairs


def _grouped(q: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    return t if t.shape[1] == q.shape[1] else t.repeat_interleave(q.shape[1] // t.shape[1], 1)


def _compute(q: Any, k: Any, v: Any, mask: Any, causal: bool, scale: Any) -> tuple[Any, Any]:
    made: tuple[Any, Any] = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default(
        q, _grouped(q, k), _grouped(q, v), 0.0, causal, attn_mask=mask, scale=scale
    )
    return made


def _arguments(op: Any, args: Any, kwargs: Any) -> dict[str, Any]:
    named = {a.name: a.default_value for a in op._schema.arguments if a.has_default_value()}
    named.update({a.name: value for a, value in zip(op._schema.arguments, args, strict=False)})
    named.update(kwargs)
    return named


def _forward(op: Any, biased: bool) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        given = _arguments(op, args, kwargs)
        made = list(run_without_kernel(op, args, kwargs))
        mask = given.get("attn_bias") if biased else None
        q, k, v = given["query"], given["key"], given["value"]
        out, _ = _compute(q, k, v, mask, given["is_causal"], given["scale"])
        made[0].copy_(out)
        return tuple(made)

    run.__name__ = op._schema.name.split("::")[1]
    return run


def _backward(op: Any) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        given = _arguments(op, args, kwargs)
        made = list(run_without_kernel(op, args, kwargs))
        grad = given.get("grad_out", given.get("grad_out_"))
        q, k, v = given["query"], given["key"], given["value"]
        mask = given.get("attn_bias")
        with torch.enable_grad():
            leaves = [t.detach().requires_grad_() for t in (q, k, v)]
            keys, values = _grouped(leaves[0], leaves[1]), _grouped(leaves[0], leaves[2])
            with torch.no_grad():
                out, lse = _compute(q, keys, values, mask, given["is_causal"], given["scale"])
            parts = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default(
                grad, q, keys.detach(), values.detach(), out, lse, 0.0, given["is_causal"], attn_mask=mask,
                scale=given["scale"],
            )  # fmt: skip
            grads = [parts[0]]
            for leaf, spread, part in ((leaves[1], keys, parts[1]), (leaves[2], values, parts[2])):
                grads.append(part if spread is leaf else torch.autograd.grad(spread, leaf, part)[0])
        for slot, value in zip(made[:3], grads, strict=True):
            slot.copy_(value)
        return tuple(made)

    run.__name__ = op._schema.name.split("::")[1]
    return run
