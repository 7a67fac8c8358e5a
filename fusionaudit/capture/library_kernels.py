"""CPU kernels for ops that ATen has on CUDA only: cuDNN's and ATen's fused norms and recurrent layers.

With a kernel in place such an op keeps its name in a recording and gets torch's own derivative; without one torch takes
it apart, or refuses it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch

from fusionaudit.capture.patches import Patches, moved

aten = torch.ops.aten
RNN_RELU, RNN_TANH, LSTM, GRU = range(4)
"""cudnnRNNMode_t."""
COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd


def has_kernel(name: str, key: str) -> bool:
    """True where ``aten::name`` has a kernel of its own for that dispatch key."""
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", key))


def composite(op: Any, *args: Any, **kwargs: Any) -> Any:
    """The op as torch composes it of others on the CPU."""
    return op._op_dk(COMPOSITE, *args, **kwargs)


def _rms_norm(input: Any, normalized_shape: Any, weight: Any, eps: Any) -> Any:
    return composite(aten._fused_rms_norm.default, input, normalized_shape, weight, eps)


def _rms_norm_backward(grad: Any, input: Any, shape: Any, rstd: Any, weight: Any, output_mask: Any) -> Any:
    low, dims = input.dtype, tuple(range(input.dim() - len(shape), input.dim()))
    grad, x = grad.float() if grad.dtype != torch.float64 else grad, input.to(rstd.dtype)
    normal = x * rstd
    scaled = grad if weight is None else grad * weight
    grads: list[Any] = [None, None]
    if output_mask[0]:
        grads[0] = (rstd * (scaled - normal * (scaled * normal).mean(dims, keepdim=True))).to(low)
    if output_mask[1] and weight is not None:
        rows = tuple(range(input.dim() - len(shape)))
        grads[1] = ((grad * normal).sum(rows) if rows else grad * normal).to(weight.dtype)
    return tuple(grads)


def _batch_norm(
    x: Any, weight: Any, bias: Any, mean: Any, var: Any, training: bool, momentum: float, eps: float
) -> Any:
    made = aten.native_batch_norm.default(x, weight, bias, mean, var, training, momentum, eps)
    return (*made, x.new_empty(0, dtype=torch.uint8))


def _batch_norm_backward(
    x: Any, grad: Any, weight: Any, mean: Any, var: Any, save_mean: Any, save_var: Any, eps: float, reserve: Any
) -> Any:
    return aten.native_batch_norm_backward.default(
        grad, x, weight, mean, var, save_mean, save_var, True, eps, [True, True, True]
    )


def _lstm_cell(input_gates: Any, hidden_gates: Any, cx: Any, input_bias: Any = None, hidden_bias: Any = None) -> Any:
    gates = input_gates + hidden_gates
    if input_bias is not None:
        gates = gates + input_bias + hidden_bias
    i, f, g, o = gates.chunk(4, 1)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    cy = f * cx + i * g
    return o * cy.tanh(), cy, torch.cat((i, f, g, o), 1)


def _lstm_cell_backward(grad_hy: Any, grad_cy: Any, cx: Any, cy: Any, workspace: Any, has_bias: bool) -> Any:
    i, f, g, o = workspace.chunk(4, 1)
    squashed = cy.tanh()
    grad_hy = torch.zeros_like(cy) if grad_hy is None else grad_hy
    grad_c = grad_hy * o * (1 - squashed * squashed)
    grad_c = grad_c if grad_cy is None else grad_c + grad_cy
    gates = torch.cat(
        (grad_c * g * i * (1 - i), grad_c * cx * f * (1 - f), grad_c * i * (1 - g * g),
         grad_hy * squashed * o * (1 - o)), 1
    )  # fmt: skip
    return gates, grad_c * f, gates.sum(0) if has_bias else gates.new_empty(0)


def _gru_cell(input_gates: Any, hidden_gates: Any, hx: Any, input_bias: Any = None, hidden_bias: Any = None) -> Any:
    inner = input_gates if input_bias is None else input_gates + input_bias
    outer = hidden_gates if hidden_bias is None else hidden_gates + hidden_bias
    (ir, iz, i_n), (hr, hz, hn) = inner.chunk(3, 1), outer.chunk(3, 1)
    r, z = (ir + hr).sigmoid(), (iz + hz).sigmoid()
    n = (i_n + r * hn).tanh()
    return n + z * (hx - n), torch.cat((r, z, n, hx, hn), 1)


def _gru_cell_backward(grad_hy: Any, workspace: Any, has_bias: bool) -> Any:
    r, z, n, hx, hn = workspace.chunk(5, 1)
    grad_z = grad_hy * (hx - n) * z * (1 - z)
    grad_n = grad_hy * (1 - z) * (1 - n * n)
    grad_r = grad_n * hn * r * (1 - r)
    inner, outer = torch.cat((grad_r, grad_z, grad_n), 1), torch.cat((grad_r, grad_z, grad_n * r), 1)
    biases = (inner.sum(0), outer.sum(0)) if has_bias else (None, None)
    return inner, outer, grad_hy * z, *biases


def _run_rnn(
    input: Any, weight: Sequence[Any], stride0: int, hx: Any, cx: Any, mode: int, layers: int, batch_first: bool,
    dropout: float, train: bool, bidirectional: bool, batch_sizes: Sequence[int],
) -> tuple[Any, ...]:  # fmt: skip
    op = {RNN_RELU: aten.rnn_relu, RNN_TANH: aten.rnn_tanh, LSTM: aten.lstm, GRU: aten.gru}[mode]
    state = [hx, cx] if mode == LSTM else hx
    common = (list(weight), stride0 > 2, layers, dropout, train, bidirectional)
    if batch_sizes:
        made = composite(op.data, input, torch.tensor(list(batch_sizes)), state, *common)
    else:
        made = composite(op.input, input, state, *common, batch_first)
    return tuple(made)


def _rnn(
    input: Any, weight: Any, stride0: int, weight_buf: Any, hx: Any, cx: Any, mode: int, hidden: int, proj: int,
    layers: int, batch_first: bool, dropout: float, train: bool, bidirectional: bool, batch_sizes: Any, state: Any,
) -> Any:  # fmt: skip
    made = _run_rnn(
        input, weight, stride0, hx, cx, mode, layers, batch_first, dropout, train, bidirectional, batch_sizes
    )
    cy = made[2] if mode == LSTM else input.new_empty(0)
    return made[0], made[1], cy, input.new_empty(0, dtype=torch.uint8), input.new_empty(0)


def _rnn_backward(
    input: Any, weight: Any, stride0: int, weight_buf: Any, hx: Any, cx: Any, output: Any, grad_output: Any,
    grad_hy: Any, grad_cy: Any, mode: int, hidden: int, proj: int, layers: int, batch_first: bool, dropout: float,
    train: bool, bidirectional: bool, batch_sizes: Any, state: Any, reserve: Any, output_mask: Any,
) -> Any:  # fmt: skip
    with differentiable():
        leaves = [None if t is None else t.detach().requires_grad_() for t in (input, hx, cx, *weight)]
        made = _run_rnn(
            leaves[0], leaves[3:], stride0, leaves[1], leaves[2], mode, layers, batch_first, dropout, train,
            bidirectional, batch_sizes,
        )  # fmt: skip
        pairs = [(o, g) for o, g in zip(made, (grad_output, grad_hy, grad_cy), strict=False) if g is not None]
        wanted = [t for t in leaves if t is not None]
        found = torch.autograd.grad([o for o, _ in pairs], wanted, [g for _, g in pairs], allow_unused=True)
    by_leaf = {id(leaf): grad for leaf, grad in zip(wanted, found, strict=True)}
    grads = [None if leaf is None else by_leaf[id(leaf)] for leaf in leaves]
    return grads[0], grads[1], grads[2], grads[3:]


def differentiable() -> Any:
    """A block in which autograd records, also inside a kernel, where the dispatcher is already below it."""
    keys = torch._C._dispatch_tls_local_exclude_set()
    for name in ("AutogradCPU", "AutogradFunctionality", "ADInplaceOrView", "AutogradOther"):
        key = getattr(torch._C.DispatchKey, name, None)
        keys = keys if key is None else keys.remove(key)
    return _Both(torch._C._ForceDispatchKeyGuard(torch._C._dispatch_tls_local_include_set(), keys), torch.enable_grad())


class _Both:
    def __init__(self, *contexts: Any) -> None:
        self._contexts = contexts

    def __enter__(self) -> None:
        for context in self._contexts:
            context.__enter__()

    def __exit__(self, *error: Any) -> None:
        for context in reversed(self._contexts):
            context.__exit__(*error)


def _softmax(op: Any) -> Callable[..., Any]:
    def run(x: Any, dim: int, half_to_float: bool) -> Any:
        return op(x.float(), dim, False) if half_to_float else op(x, dim, False)

    return run


def _softmax_backward(op: Any) -> Callable[..., Any]:
    def run(grad: Any, output: Any, dim: int, input_dtype: torch.dtype) -> Any:
        return op(grad, output, dim, grad.dtype).to(input_dtype)

    return run


def softmax_equivalents() -> dict[Any, Callable[..., Any]]:
    """Softmax of float16 into float32, one op on CUDA: the CPU's kernel refuses to cast."""
    forward = (aten._softmax.default, aten._log_softmax.default)
    backward = (aten._softmax_backward_data.default, aten._log_softmax_backward_data.default)
    return {**{op: _softmax(op) for op in forward}, **{op: _softmax_backward(op) for op in backward}}


KERNELS: dict[str, Callable[..., Any]] = {
    "_fused_rms_norm": _rms_norm, "_fused_rms_norm_backward": _rms_norm_backward,
    "cudnn_batch_norm": _batch_norm, "cudnn_batch_norm_backward": _batch_norm_backward,
    "_thnn_fused_lstm_cell": _lstm_cell, "_thnn_fused_lstm_cell_backward_impl": _lstm_cell_backward,
    "_thnn_fused_gru_cell": _gru_cell, "_thnn_fused_gru_cell_backward": _gru_cell_backward,
    "_cudnn_rnn": _rnn, "_cudnn_rnn_backward": _rnn_backward,
}  # fmt: skip


def library_kernels(patches: Patches) -> None:
    """Register them for the CPU; for CUDA too where this torch was built without, so that tracing keeps the ops."""
    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, kernel in KERNELS.items():
            if not hasattr(aten, name):
                if name.startswith("_fused_rms_norm"):  # torch 2.9 and newer
                    continue
                raise moved(f"aten.{name}")
            for key in ("CPU", "CUDA"):
                if not has_kernel(name, key):
                    library.impl(name, kernel, key)
    patches.on_undo(library._destroy)
