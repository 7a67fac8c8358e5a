"""AdamW over many tensors in one launch."""

from __future__ import annotations

import itertools
import math

import torch

from fusionaudit.reference_kernels.reference import Launch, Reference, Tensors, cpp, normal

CHUNK = 16384
RATE, BETA1, BETA2, EPS, DECAY, STEP = 1e-3, 0.9, 0.999, 1e-8, 0.01, 3
CORRECTION1, ROOT_CORRECTION2 = 1 - BETA1**STEP, math.sqrt(1 - BETA2**STEP)
TENSORS = 48

_tables: dict[tuple[tuple[int, ...], tuple[int, ...]], tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = {}


def _table(groups: list[list[torch.Tensor]]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Addresses, sizes and chunks on the device; kept while the tensors stay where they are, as in training."""
    sizes = tuple(t.numel() for t in groups[0])
    addresses = tuple(t.data_ptr() for group in groups for t in group)
    key = (addresses, sizes)
    if key not in _tables:
        device = groups[0][0].device
        chunks = [(i, first) for i, size in enumerate(sizes) for first in range(0, size, CHUNK)]
        made = (torch.tensor(v, dtype=torch.int64, device=device) for v in (addresses, sizes, chunks))
        _tables.clear()
        _tables[key] = tuple(made)  # type: ignore[assignment]
    return _tables[key]


def fused(launch: Launch, *tensors: torch.Tensor) -> Tensors:
    """One step in place; tensors are all parameters, then gradients, first and second moments (moments in fp32)."""
    count = len(tensors) // 4
    groups = [list(tensors[i * count : (i + 1) * count]) for i in range(4)]
    table, sizes, chunks = _table(groups)
    name = f"adamw<{cpp(tensors[0])}, 4, {CHUNK}>"
    args = (table, sizes, chunks, count, RATE, BETA1, BETA2, EPS, DECAY, CORRECTION1, ROOT_CORRECTION2)
    launch("adamw.cu", name, chunks.shape[0], 512, args)
    return (*groups[0], *groups[2], *groups[3])


def by_hand(*tensors: torch.Tensor) -> Tensors:
    """The loop over parameters that a hand-written optimizer has."""
    count = len(tensors) // 4
    groups = [tensors[i * count : (i + 1) * count] for i in range(4)]
    for p, g, m, v in zip(*groups, strict=True):
        wide = g.to(m.dtype)
        p.mul_(1 - RATE * DECAY)
        m.lerp_(wide, 1 - BETA1)
        v.mul_(BETA2).addcmul_(wide, wide, value=1 - BETA2)
        p.addcdiv_(m, (v.sqrt() / ROOT_CORRECTION2).add_(EPS), value=-RATE / CORRECTION1)
    return (*groups[0], *groups[2], *groups[3])


def _inputs(n: int, dtype: torch.dtype, device: torch.device) -> Tensors:
    """48 tensors of three sizes, one of them odd; n elements in all."""
    unit = max(n // TENSORS, 16)
    sizes = list(itertools.islice(itertools.cycle((unit, unit // 2 + 1, 2 * unit - unit // 2 - 1)), TENSORS))
    first = [normal((s,), dtype, device) for s in sizes]
    gradients = [normal((s,), dtype, device) for s in sizes]
    moments = [normal((s,), torch.float32, device) for s in sizes]
    squares = [normal((s,), torch.float32, device).square_() for s in sizes]
    return (*first, *gradients, *moments, *squares)


def _moved(inputs: Tensors, outputs: Tensors) -> int:
    del outputs  # the same tensors as the inputs: parameter and moments are read and written, the gradient read
    count = len(inputs) // 4
    sizes = [sum(t.numel() * t.element_size() for t in inputs[i * count : (i + 1) * count]) for i in range(4)]
    return 2 * sizes[0] + sizes[1] + 2 * sizes[2] + 2 * sizes[3]


ADAMW = Reference(
    name="adamw",
    source="adamw.cu",
    summary="one AdamW step over 48 tensors",
    inputs=_inputs,
    eager=by_hand,
    fused=fused,
    moved_bytes=_moved,
    dtypes=(torch.float32,),
    kernels=("adamw<float, 4, 16384>", "adamw<bfloat16, 4, 16384>"),
    applies="an optimizer's loop over parameters (FA106)",
)
