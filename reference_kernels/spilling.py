"""A fusion that holds too much at once: the same kernel with and without spills to local memory (FA301)."""

from __future__ import annotations

import torch

from fusionaudit.reference_kernels.reference import Launch, Reference, Tensors, cpp, normal

COUNT = 64


def fused(launch: Launch, x: torch.Tensor, *, threads: int = 128, blocks: int = 5) -> Tensors:
    """x (64, n) minus its mean over the 64; two blocks of 1024 threads on an SM leave 32 registers and spill."""
    n = x.shape[1]
    y = launch.empty(x.shape, x.dtype)
    name = f"centre_columns<{cpp(x)}, {COUNT}, {threads}, {blocks}>"
    launch("spilling.cu", name, max(-(-n // threads), 1), threads, (x, y, n))
    return (y,)


SPILLING = Reference(
    name="spilling",
    source="spilling.cu",
    summary="64 values a column centred, all alive at once",
    inputs=lambda n, dtype, device: (normal((COUNT, max(n // COUNT, 1)), dtype, device),),
    eager=lambda x: (x - x.mean(0, keepdim=True),),
    fused=fused,
    variants={"spilling": lambda launch, x: fused(launch, x, threads=1024, blocks=2)},
    dtypes=(torch.float32,),
    kernels=("centre_columns<float, 64, 128, 5>", "centre_columns<float, 64, 1024, 2>"),
    limit="64 values a thread leave 5 blocks of 128 threads on an SM: 90% of the copy bandwidth on an H200",
    applies="nowhere: it shows what a spill costs",
)
