"""Chains that tests record and fuse: each entry gives (function, inputs); ``scale`` makes the inputs larger."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

from fusionaudit.capture.recorder import Recorder
from fusionaudit.trace.oplog import op_from_json
from fusionaudit.trace.schema import Op


def record(function: Callable[..., Any], *inputs: torch.Tensor) -> list[Op]:
    """The ops of one call, through the real recorder. Tensors count as the GPU's wherever the test runs."""
    path = Path(tempfile.mkdtemp()) / "ops.jsonl"
    recorder = Recorder(path, device_of=lambda _: "cuda")
    with recorder.recording():
        kept = function(*inputs)
    recorder.close()
    del kept
    records = map(json.loads, path.read_text().splitlines())
    return [op_from_json(d) for d in records if d["kind"] == "op"]


def softmax(x: torch.Tensor) -> torch.Tensor:
    e = torch.exp(x - x.amax(-1, keepdim=True))
    return e / e.sum(-1, keepdim=True)


def layer_norm(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    mean = x.mean(-1)
    var = ((x - mean.unsqueeze(-1)) ** 2).mean(-1)
    return (x - mean[:, None]) * torch.rsqrt(var + 1e-5)[:, None] * w + b


def in_place(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x.mul_(2).add_(y, alpha=0.5)


def rows(*shape: int) -> torch.Tensor:
    return torch.randn(*shape)


CHAINS: dict[str, Any] = {
    "scale_bias_relu": lambda k=1: (
        lambda x, s, b: torch.relu(x * s + b), rows(33 * k * k, 64 * k), rows(64 * k), rows(64 * k)
    ),
    "outer_softmax": lambda k=1: (lambda x: F.softmax(x * 2, 0), rows(40, 130)),
    "column_sums": lambda k=1: (lambda x, y: (x * y).sum(0), rows(300, 64), rows(300, 64)),
    "middle_sums": lambda k=1: (lambda x: (x * x).mean(1), rows(3, 50, 33)),
    "channel_norm": lambda k=1: (
        lambda x: (x - x.mean((0, 2, 3), keepdim=True)) * x.var((0, 2, 3), keepdim=True).add(1e-5).rsqrt(),
        rows(4, 6, 5, 5),
    ),
    "norm_weight_gradient": lambda k=1: (
        lambda g, x, r: ((g * x * r[:, None]).sum(0), g.sum(0)), rows(200, 48), rows(200, 48), rows(200)
    ),
    "tail_of_three": lambda k=1: (lambda x: x.abs().exp() * 2, rows(1003)),
    "mixed_dtypes": lambda k=1: (
        lambda x, y: (x * torch.sigmoid(y)).float() + 1, rows(10, 48).bfloat16(), rows(10, 48).bfloat16()
    ),
    "transposed_input": lambda k=1: (lambda x, y: x.t() * y + 1, rows(20, 32), rows(32, 20)),
    "broadcast_both_ways": lambda k=1: (lambda x, y: x + y * 3, rows(5, 1, 16), rows(7, 16)),
    "where_and_clamp": lambda k=1: (lambda x, y: torch.where(x > y, x, y * 2).clamp(-1, 1), rows(100), rows(100)),
    "integers": lambda k=1: (lambda x: (x // 3 + x % 4) * 2, torch.randint(0, 50, (77,))),
    "odd_offset": lambda k=1: (lambda x: (x[3:] * 2 + x[:-3]).neg(), rows(259)),
    "in_place": lambda k=1: (in_place, rows(64), rows(64)),
    "views_between": lambda k=1: (lambda x, b: torch.tanh(x.view(4, 6, 8) + b).view(24, 8) * 2, rows(24, 8), rows(8)),
    "ternary": lambda k=1: (
        lambda a, b, c: torch.addcmul(a, b, c, value=0.3).lerp(a, 0.2), rows(50), rows(50), rows(50)
    ),
    "channels_last": lambda k=1: (
        lambda x, y: (x * y).relu() + x, *(rows(2, 8, 4, 4).to(memory_format=torch.channels_last) for _ in range(2))
    ),
    "sum_abs": lambda k=1: (lambda x: x.abs().sum(), rows(5000)),
    "sum_abs_large": lambda k=1: (lambda x: x.abs().sum(), rows(50000 * k * k)),
    "rms_of_all": lambda k=1: (lambda x: (x * x).mean().sqrt(), rows(40000)),
    "row_sums": lambda k=1: (lambda x, w: (x * w).sum(-1), rows(30, 100), rows(100)),
    "one_long_row": lambda k=1: (lambda x: (x.abs() + 1).sum(-1), rows(1, 40000)),
    "softmax_by_hand": lambda k=1: (softmax, rows(60 * k * k, 256 * k)),
    "softmax_half": lambda k=1: (softmax, rows(6, 200).half()),
    "scale_mask_softmax": lambda k=1: (lambda x, m: F.softmax(x * 0.1 + m, -1), rows(3, 4, 40), rows(4, 40)),
    "cast_log_softmax": lambda k=1: (lambda x: F.log_softmax(x.float(), -1), rows(9, 33).bfloat16()),
    "layer_norm_by_hand": lambda k=1: (layer_norm, rows(12, 64), rows(64), rows(64)),
    "residual_layer_norm": lambda k=1: (
        lambda x, y, w, b: F.layer_norm(x + y, (64,), w, b), rows(12, 64), rows(12, 64), rows(64), rows(64)
    ),
    "rms_norm": lambda k=1: (
        lambda x, w: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * w, rows(2, 5, 48), rows(48)
    ),
    "variance": lambda k=1: (lambda x: (x - x.mean(-1, keepdim=True)) / x.var(-1, keepdim=True).sqrt(), rows(7, 30)),
    # On a GPU as many rows as a chain has to have that keeps a long row in one block (sm_count / 4, up to 160 SMs).
    "row_too_long_for_registers": lambda k=1: (
        softmax, rows(40, 70001) if torch.cuda.is_available() else rows(3, 20001)
    ),
    "gelu_backward": lambda k=1: (lambda g, x: torch.ops.aten.gelu_backward(g, x) * 2, rows(100), rows(100)),
    "logarithm": lambda k=1: (lambda x: x.log() * 2 + x.sqrt(), rows(100).abs()),
    "row_maximum": lambda k=1: (lambda x: (x * 2).amax(-1), rows(5, 17)),
    "masked_softmax": lambda k=1: (
        lambda x, m: x.masked_fill(m, float("-inf")).softmax(-1), rows(5, 32), torch.rand(5, 32) > 0.7
    ),
    "softmax_and_zeros_like_it": lambda k=1: (
        lambda x: (lambda y: (y, torch.zeros_like(y)))(x.softmax(-1)), rows(40, 64)
    ),
    "mean_and_ones_like_it": lambda k=1: (lambda x: (lambda y: (y, torch.ones_like(y)))(x.abs().mean()), rows(70000)),
    "sums_spread_over_their_rows": lambda k=1: (
        lambda x: x.sum(-1, keepdim=True).exp().clamp(max=3).expand(20, 33).clone(), rows(20, 33)
    ),
    "nan_to_num": lambda k=1: (lambda x: (x / x.round()).nan_to_num(nan=0.5, neginf=-7.0) * 2, rows(300)),
    "xlogy": lambda k=1: (lambda x, y: torch.xlogy(x.relu(), y.abs() + 0.1) * 2, rows(300), rows(300)),
    "rms_norm_without_eps": lambda k=1: (
        lambda x, w: torch.ops.aten._fused_rms_norm(x * 2, [48], w, None)[0] + 1, rows(9, 48), rows(48)
    ),
    "dropout": lambda k=1: (lambda x, y: F.dropout(x * 2, 0.3, training=True) + y, rows(33, 48), rows(33, 48)),
    "dropout_whose_mask_is_kept": lambda k=1: (
        lambda x: torch.native_dropout(x.bfloat16() + 1, 0.1, True), rows(20, 64)
    ),
    "softmax_and_dropout": lambda k=1: (
        lambda x, y: F.dropout(F.softmax(x * 0.2, -1), 0.1, training=True) + y, rows(70 * k, 128), rows(70 * k, 128)
    ),
    "two_draws": lambda k=1: (
        lambda x: F.dropout(x + torch.rand_like(x), 0.5, training=True).abs().sum(-1), rows(30, 50)
    ),
    "draws_of_rows": lambda k=1: (
        lambda x: x * torch.empty(17, 1, device=x.device).bernoulli_(0.4) + x.sum(-1, keepdim=True), rows(17, 31)
    ),
    "noise_in_place": lambda k=1: (lambda x: x.exp().mul_(torch.rand(1003, device=x.device)), rows(1003)),
    "strided_input": lambda k=1: (lambda x: x[:, ::2] * 2 + 1, rows(6, 40)),
}  # fmt: skip
