"""Ops that draw random numbers: what a fused kernel draws in their place, and the same numbers given to the ops.

A kernel draws number e of a tensor from Philox under a seed of its own (philox.cuh). The numbers are known without
the kernel, so its result is checked exactly: the ops run again with what was drawn as their input.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from fusionaudit.reference_kernels.dropout_residual import philox_words
from fusionaudit.tensors import Tensor
from fusionaudit.trace.schema import Op
from fusionaudit.verify.chain import FIRST_SEED, UnsupportedChainError
from fusionaudit.verify.op_words import DRAWING, EMPTY, chance, drawn_tensor, short_name
from fusionaudit.verify.replay import draws_anew, extent

Buffers = dict[str, torch.Tensor]


def with_given_draws(ops: Sequence[Op], device: torch.device) -> tuple[list[Op], Buffers]:
    """The ops with every draw taken from outside, and a buffer for each of those draws.

    UnsupportedChainError for an op that draws what no kernel here draws.
    """
    out: list[Op] = []
    buffers: Buffers = {}
    for op in ops:
        if not draws_anew(op):
            out.append(op)
            continue
        if short_name(op) not in DRAWING:
            raise UnsupportedChainError(f"{op.name} draws random numbers in a way that no kernel here does")
        tensor = drawn_tensor(op)
        assert tensor.storage is not None
        buffers[tensor.storage] = _numbers(op, tensor, FIRST_SEED + len(buffers), device)
        if short_name(op) == "native_dropout":
            out.append(_masked(op, tensor))
    given = buffers.keys()
    return [op for op in out if not (short_name(op) in EMPTY and {t.storage for t in op.outputs} & given)], buffers


def uniforms(n: int, seed: int, device: torch.device) -> torch.Tensor:
    """What a kernel draws under that seed: n numbers in [0, 1), multiples of 2^-24."""
    return (philox_words(n, seed, device) >> 8).to(torch.float32) * 2.0**-24


def _numbers(op: Op, tensor: Tensor, seed: int, device: torch.device) -> torch.Tensor:
    drawn = uniforms(extent(tensor), seed, device)
    limit = chance(op)
    dtype: torch.dtype = getattr(torch, tensor.dtype)
    return (drawn if limit is None else drawn < torch.tensor(limit, dtype=torch.float32, device=device)).to(dtype)


def _masked(op: Op, mask: Tensor) -> Op:
    """x * mask * scale, which the backward of dropout does to a gradient."""
    limit = chance(op)
    assert limit is not None
    arguments = ({"tensor": 0}, {"tensor": 1}, 1.0 / limit)
    name = "aten.native_dropout_backward.default"
    return replace(op, name=name, inputs=(op.inputs[0], mask), outputs=op.outputs[:1], arguments=arguments)
