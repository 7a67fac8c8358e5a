"""What hands a tensor's values to Python without an op: on a GPU each is a copy that the host waits for."""

from __future__ import annotations

from typing import Any

import torch

from fusionaudit.capture.cuda_api import Sync
from fusionaudit.capture.gpu_tensors import GpuTensors
from fusionaudit.capture.patches import Patches
from fusionaudit.capture.redirect import tracing

_PLAIN = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)


def read_by_host(patches: Patches, tensors: GpuTensors, on_sync: Sync) -> None:
    """Let ``tolist``, ``numpy`` and ``__array__`` of the GPU's tensors copy first, as they do there (``numpy`` would
    raise). Where the script names no GPU nothing can be copied: ``on_sync`` is told.

    Lies over what refuses values (``--shapes-only``).
    """
    for name in ("tolist", "numpy", "__array__"):
        plain = getattr(torch.Tensor, name)

        def give(self: torch.Tensor, *args: Any, _name: str = name, _plain: Any = plain, **kwargs: Any) -> Any:
            if type(self) not in _PLAIN or tracing() or not tensors.holds(self):
                return _plain(self, *args, **kwargs)
            if tensors.tracking:
                return _plain(self.detach().cpu() if _name == "tolist" else self.cpu(), *args, **kwargs)
            on_sync(f"torch.Tensor.{_name}")
            return _plain(self, *args, **kwargs)

        patches.set(torch.Tensor, name, give)
