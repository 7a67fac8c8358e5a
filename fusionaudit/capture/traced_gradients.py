"""AOTAutograd's trace of a backward for a GPU that is not there."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch

from fusionaudit.capture.patches import Patches, moved

_local = threading.local()
"""How deep this thread is in the autograd engine over a trace, and CUDA's autocast dtype there."""
_LOW = (torch.float16, torch.bfloat16)
_SET_DTYPE = frozenset({"sum", "prod", "cumsum", "cumprod", "linalg_vector_norm"})
_FLOAT32 = frozenset(
    {"exp", "expm1", "log", "log10", "log1p", "log2", "pow", "reciprocal", "rsqrt", "sinh", "cosh", "tan", "acos",
    "asin", "erfinv"}
)  # fmt: skip
_LOWERED = frozenset({"mm", "bmm", "addmm", "baddbmm", "addbmm", "addmv", "mv", "convolution"})
"""What autocast does to ops that backward formulas call, from aten/src/ATen/autocast_mode.h."""


def autocast_arguments(
    func: Any, args: Any, kwargs: dict[str, Any], dtype: torch.dtype, cast: Callable[[Any, torch.dtype], Any]
) -> tuple[Any, dict[str, Any]]:
    """The arguments as CUDA's autocast hands them on: inside the engine tensors do not say that they are CUDA's."""
    schema = getattr(func, "_schema", None)
    name = schema.name.removeprefix("aten::") if schema is not None else ""
    first = args[0] if args else None
    if not isinstance(first, torch.Tensor) or not first.is_floating_point():
        return args, kwargs
    if name in _SET_DTYPE and first.dtype in _LOW and kwargs.get("dtype") is None:
        return args, {**kwargs, "dtype": torch.float32}
    wanted = torch.float32 if name in _FLOAT32 else dtype if name in _LOWERED else None
    if wanted is None:
        return args, kwargs

    def changed(value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.is_floating_point() and value.dtype not in (wanted, torch.float64):
            return cast(value, wanted)
        return value

    return tuple(changed(a) for a in args), kwargs


def quiet_gradients(patches: Patches) -> None:
    """Let AOTAutograd trace a backward of CUDA tensors without a CUDA device.

    The C++ engine synchronises streams for gradients on an accelerator, which fails without one. While it runs over a
    trace, the traced tensors (FunctionalTensor) answer ``meta`` when C++ asks for their device, so that it leaves
    streams alone; factories that a backward formula calls with that device are put back on CUDA.
    """
    from torch._subclasses import fake_tensor, functional_tensor

    if not hasattr(functional_tensor, "FunctionalTensor") or not hasattr(functional_tensor, "FunctionalTensorMode"):
        raise moved("torch._subclasses.functional_tensor")
    tensor_class, mode_class = functional_tensor.FunctionalTensor, functional_tensor.FunctionalTensorMode
    make = torch.Tensor._make_wrapper_subclass
    dispatch = tensor_class.__torch_dispatch__
    mode_dispatch = mode_class.__torch_dispatch__
    fake_mode_class = fake_tensor.FakeTensorMode
    fake_mode_dispatch = fake_mode_class.__torch_dispatch__
    grad = torch.autograd.grad
    device_query = torch.ops.prim.device.default
    local = _local
    meta, cuda = torch.device("meta"), torch.device("cuda", 0)

    def make_wrapper(cls: Any, *args: Any, **kwargs: Any) -> Any:
        if cls is tensor_class and len(args) > 10:
            args = (*args[:10], True, *args[11:])  # dispatch_device
        return make(cls, *args, **kwargs)

    def device_of(traced: Any) -> torch.device:
        if getattr(local, "depth", 0):
            return meta
        inner = torch._from_functional_tensor(traced.elem)
        device: torch.device = inner.fake_device if hasattr(inner, "fake_device") else inner.device
        return device

    def tensor_dispatch(self: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is device_query:
            return device_of(self)
        return dispatch(self, func, types, args, kwargs)

    def fake_dispatch(self: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is device_query and isinstance(args[0], tensor_class):
            return device_of(args[0])
        return fake_mode_dispatch(self, func, types, args, kwargs)

    def functional_dispatch(self: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is device_query and isinstance(args[0], tensor_class):
            return device_of(args[0])
        named = kwargs.get("device") if kwargs and getattr(local, "depth", 0) else None
        if named is not None and torch.device(named).type == "meta":
            kwargs = {**kwargs, "device": cuda}
        if getattr(local, "depth", 0) and local.autocast is not None:

            def cast(tensor: Any, dtype: torch.dtype) -> Any:
                return mode_dispatch(
                    self, torch.ops.aten._to_copy.default, (tensor_class,), (tensor,), {"dtype": dtype}
                )

            args, kwargs = autocast_arguments(func, args, kwargs or {}, local.autocast, cast)
        return mode_dispatch(self, func, types, args, kwargs)

    def traced_grad(outputs: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        first = inputs if isinstance(inputs, torch.Tensor) else next(iter(inputs), None)
        if not isinstance(first, tensor_class):
            return grad(outputs, inputs, *args, **kwargs)
        before = getattr(local, "autocast", None)
        local.depth = getattr(local, "depth", 0) + 1
        local.autocast = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else None
        try:
            return grad(outputs, inputs, *args, **kwargs)
        finally:
            local.depth -= 1
            local.autocast = before

    patches.put(torch.Tensor, "_make_wrapper_subclass", staticmethod(make_wrapper))
    patches.set(tensor_class, "__torch_dispatch__", tensor_dispatch)
    patches.set(mode_class, "__torch_dispatch__", functional_dispatch)
    patches.set(fake_mode_class, "__torch_dispatch__", fake_dispatch)
    patches.set(torch.autograd, "grad", traced_grad)
