"""A generated kernel on tensors: buffers for its outputs, scratch, launch."""

from __future__ import annotations

from collections.abc import Callable

import torch

from fusionaudit.reference_kernels.reference import Launch
from fusionaudit.tensors import Tensor
from fusionaudit.verify.chain_source import GeneratedKernel
from fusionaudit.verify.replay import extent, view

_SCRATCH = {"float": torch.float32, "double": torch.float64, "long long": torch.int64, "bool": torch.bool}

Prepared = tuple[Callable[[], None], tuple[torch.Tensor, ...]]


def prepare(launch: Launch, kernel: GeneratedKernel, buffers: dict[str, torch.Tensor]) -> Prepared:
    """(run, outputs): ``run()`` launches once and fills ``outputs``. What is written in place is a copy, made here."""
    written = {p.tensor.storage for p in kernel.outputs}
    own = {s: b.clone() if s in written else b for s, b in buffers.items()}
    for port in kernel.outputs:
        storage = port.tensor.storage
        assert storage is not None
        size = max(extent(p.tensor) for p in kernel.outputs if p.tensor.storage == storage)
        if storage not in own:
            own[storage] = launch.empty((size,), getattr(torch, port.tensor.dtype))
    outputs = tuple(view(own, p.tensor) for p in kernel.outputs)
    scratch = [launch.empty((n,), _SCRATCH[kind]) for kind, n in kernel.scratch]
    tickets = [launch.tickets(kernel.tickets)] if kernel.tickets else []
    # Draws count from 0. A number that the host holds goes to the device: the kernel reads it through a pointer.
    inputs = [view(own, p.tensor).to(outputs[0].device) if p.seed is None else 0 for p in kernel.inputs]
    args = (*inputs, *outputs, *scratch, *tickets)

    def run() -> None:
        launch(kernel.source, kernel.name, kernel.grid, kernel.block, args)

    return run, outputs


def external_tensors(kernel: GeneratedKernel) -> list[Tensor]:
    """The tensors that have to exist before the kernel runs."""
    return [p.tensor for p in kernel.inputs if p.seed is None]
