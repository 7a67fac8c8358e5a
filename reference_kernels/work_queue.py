"""Many small tasks: one persistent kernel with a queue against the same work launched again and again."""

from __future__ import annotations

import torch

from fusionaudit.reference_kernels.reference import Launch, Reference, Tensors, cpp, normal

TASKS, THREADS, BLOCKS_PER_SM = 64, 256, 4


def queued(launch: Launch, x: torch.Tensor) -> Tensors:
    """All tasks in one launch; blocks take the next task from a counter."""
    tasks, cols = x.shape
    y = launch.empty(x.shape, x.dtype)
    blocks = min(tasks, launch.sm_count * BLOCKS_PER_SM)
    args = (x, y, 0, tasks, cols, launch.tickets(2))
    launch("work_queue.cu", f"work_queue<{cpp(x)}, {THREADS}, true>", blocks, THREADS, args)
    return (y,)


def relaunched(launch: Launch, x: torch.Tensor) -> Tensors:
    """One launch a task."""
    tasks, cols = x.shape
    y = launch.empty(x.shape, x.dtype)
    for task in range(tasks):
        args = (x, y, task, tasks, cols, None)
        launch("work_queue.cu", f"work_queue<{cpp(x)}, {THREADS}, false>", 1, THREADS, args)
    return (y,)


def by_hand(x: torch.Tensor) -> Tensors:
    """The loop of tiny kernels."""
    y = torch.empty_like(x)
    for row, out in zip(x.unbind(), y.unbind(), strict=True):
        torch.div(row, row.abs().sum(), out=out)
    return (y,)


WORK_QUEUE = Reference(
    name="tiny_kernels",
    source="work_queue.cu",
    summary="64 rows, each divided by its sum of |x|, one after the other",
    inputs=lambda n, dtype, device: (normal((TASKS, max(n // TASKS, 16)), dtype, device),),
    eager=by_hand,
    fused=relaunched,
    variants={"persistent": queued},
    kernels=("work_queue<float, 256, true>", "work_queue<float, 256, false>", "work_queue<bfloat16, 256, true>"),
    sizes=(1 << 18, 1 << 20),
    limit="one block a task: the GPU is empty between launches",
    applies="the same small kernel launched in a loop (FA202)",
)
