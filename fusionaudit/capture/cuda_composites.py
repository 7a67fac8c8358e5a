"""Ops that ATen makes differently for CUDA: on the CPU stand-ins they must be what the GPU would run.

``dropout``, batch norm, recurrent layers and their cells, and softmax with a cast are other ops on CUDA than on the
CPU; Python code that asks for a tensor's device type in C++ (foreach grouping) gets the stand-in's.
"""

from __future__ import annotations

import functools
import sys
import warnings
from typing import Any

import torch

from fusionaudit.capture.gpu_tensors import CUDA, GpuTensors
from fusionaudit.capture.library_kernels import COMPOSITE, LSTM, composite, library_kernels
from fusionaudit.capture.patches import Patches

aten = torch.ops.aten
_PLAIN = (torch.Tensor, torch.nn.Parameter)


def cuda_composites(patches: Patches, tensors: GpuTensors) -> None:
    """Make the CPU stand-ins take CUDA's path in these ops and in foreach grouping."""
    library_kernels(patches)
    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        library.impl("dropout", functools.partial(_dropout, tensors), "AutogradCPU", allow_override=True)
        for op, choose in _choices(tensors):
            name = op._schema.name.removeprefix("aten::")
            overload = op._schema.overload_name
            library.impl(f"{name}.{overload}" if overload else name, choose, "AutogradCPU", allow_override=True)
            _in_inference_mode(patches, op, choose)
    patches.on_undo(library._destroy)
    # Else flatten_parameters warns of a torch without cuDNN; what it does on a GPU, it does once and in no step.
    patches.set(torch.backends.cudnn, "is_acceptable", lambda tensor: False)
    _foreach_groups(patches, tensors)


def _in_inference_mode(patches: Patches, op: Any, choose: Any) -> None:
    """Inference mode has no autograd keys: modes decompose the op, in Python where it has a Python decomposition."""
    before = op.py_kernels.get(COMPOSITE)

    def decompose(*args: Any, **kwargs: Any) -> Any:
        if type(args[0]) in _PLAIN:
            return choose(*args, **kwargs)
        return composite(op, *args, **kwargs) if before is None else before(*args, **kwargs)

    op.py_kernels[COMPOSITE] = decompose
    if before is None:
        patches.on_undo(functools.partial(op.py_kernels.pop, COMPOSITE, None))
    else:
        patches.on_undo(functools.partial(op.py_kernels.__setitem__, COMPOSITE, before))


def _dropout(tensors: GpuTensors, input: Any, p: float, train: bool) -> Any:
    if train and 0.0 < p < 1.0 and input.numel() > 0:
        if tensors.holds(input):
            return aten.native_dropout.default(input, p, train)[0]
        noise = torch.empty_like(input).bernoulli_(1.0 - p).div_(1.0 - p)
        return input * noise
    if not train or p == 0.0:
        # What the composite returns: the input itself; a kernel must not return its argument, so a view of it.
        return input.view_as(input)
    return input * torch.zeros((), dtype=input.dtype)


def _choices(tensors: GpuTensors) -> list[tuple[Any, Any]]:
    """The composite ops that choose by device, and what chooses for the stand-ins."""

    def batch_norm(x: Any, weight: Any, bias: Any, mean: Any, var: Any, train: bool, *rest: Any) -> Any:
        momentum, eps, enabled = rest
        if enabled and tensors.holds(x) and _cudnn_normalises(x, weight, bias, mean, var, train, eps):
            return aten.cudnn_batch_norm.default(x, weight, bias, mean, var, train, momentum, eps)[0]
        return composite(aten.batch_norm.default, x, weight, bias, mean, var, train, *rest)

    def lstm_cell(x: Any, hx: Any, w_ih: Any, w_hh: Any, b_ih: Any = None, b_hh: Any = None) -> Any:
        if not tensors.holds(x):
            return composite(aten.lstm_cell.default, x, hx, w_ih, w_hh, b_ih, b_hh)
        gates = torch.matmul(x, w_ih.t()), torch.matmul(hx[0], w_hh.t())
        return aten._thnn_fused_lstm_cell.default(*gates, hx[1], b_ih, b_hh)[:2]

    def gru_cell(x: Any, hx: Any, w_ih: Any, w_hh: Any, b_ih: Any = None, b_hh: Any = None) -> Any:
        if not tensors.holds(x):
            return composite(aten.gru_cell.default, x, hx, w_ih, w_hh, b_ih, b_hh)
        gates = torch.matmul(x, w_ih.t()), torch.matmul(hx, w_hh.t())
        return aten._thnn_fused_gru_cell.default(*gates, hx, b_ih, b_hh)[0]

    def softmax(op: Any, low: Any, x: Any, dim: int, dtype: Any = None) -> Any:
        if x.dtype is torch.float16 and dtype is torch.float32 and tensors.holds(x):
            return low(x, dim, True)
        return composite(op, x, dim, dtype)

    def one_hot(x: Any, num_classes: int = -1) -> Any:
        if type(x) not in _PLAIN or not tensors.holds(x) or x.dtype is not torch.int64 or not x.numel():
            return composite(aten.one_hot.default, x, num_classes)
        # The CPU's checks read the indices first; the GPU's scatter asserts.
        classes = int(x.max().item()) + 1 if num_classes == -1 else num_classes
        return x.new_zeros((*x.shape, classes)).scatter_(-1, x.unsqueeze(-1), 1)

    found: list[tuple[Any, Any]] = [
        (aten.one_hot.default, one_hot), (aten.batch_norm.default, batch_norm),
        (aten.lstm_cell.default, lstm_cell), (aten.gru_cell.default, gru_cell),
        (aten.softmax.int, functools.partial(softmax, aten.softmax.int, aten._softmax.default)),
        (aten.log_softmax.int, functools.partial(softmax, aten.log_softmax.int, aten._log_softmax.default)),
    ]  # fmt: skip
    for mode, packet in enumerate((aten.rnn_relu, aten.rnn_tanh, aten.lstm, aten.gru)):
        for op in (packet.input, packet.data):
            found.append((op, functools.partial(_recurrent, tensors, op, mode)))
    return found


def _cudnn_normalises(x: Any, weight: Any, bias: Any, mean: Any, var: Any, train: bool, eps: float) -> bool:
    """_select_batch_norm_backend of aten/src/ATen/native/Normalization.cpp (cuDNN's least epsilon is 0 since 7.5)."""
    if not torch.backends.cudnn.enabled or weight is None or bias is None or (mean is None) != (var is None):
        return False
    if mean is None and not train:
        return False
    if torch.bfloat16 in (x.dtype, weight.dtype) or (x.dtype is torch.float16 and weight.dtype is not torch.float32):
        return False
    return x.dim() >= 3 and x.shape[0] <= (880801 if train else 65535) and x.numel() < 2**31


def _recurrent(tensors: GpuTensors, op: Any, mode: int, x: Any, second: Any, third: Any, *rest: Any) -> Any:
    """A whole recurrent layer as cuDNN's one op; ``op`` is ``lstm.input``, ``gru.data``, ..."""
    if not (torch.backends.cudnn.enabled and tensors.holds(x) and type(x) in _PLAIN):
        # Also in traces: Dynamo leaves recurrent layers out of its graphs, and where it does not, cuDNN's op cannot be
        # differentiated there (its description lacks the buffer of the weights).
        return composite(op, x, second, third, *rest)
    if op._schema.overload_name == "data":
        sizes, state, (weight, biased, *rest_) = second.tolist(), third, rest
        layers, dropout, train, bidirectional, batch_first = *rest_, False
    else:
        sizes, state, weight, biased = [], second, third, rest[0]
        layers, dropout, train, bidirectional, batch_first = rest[1:]
    hx, cx = (state[0], state[1]) if mode == LSTM else (state, None)
    hidden = (hx if cx is None else cx).shape[-1]
    projected = hx.shape[-1] if hx.shape[-1] != hidden else 0
    stride0 = (4 if biased else 2) + bool(projected)
    made = aten._cudnn_rnn.default(
        x, list(weight), stride0, None, hx, cx, mode, hidden, projected, layers, batch_first, dropout, train,
        bidirectional, sizes, None,
    )  # fmt: skip
    return tuple(made[: 3 if mode == LSTM else 2])


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
