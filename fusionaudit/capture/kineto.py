"""The kineto engine: torch.profiler around the whole pass, exported as a Chrome trace."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fusionaudit.errors import AuditError


class Profiled:
    """torch.profiler with CPU and CUDA activities from :meth:`start` to :meth:`stop`; the trace goes to ``path``."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._profile: Any = None

    def start(self) -> None:
        """Start recording; AuditError without a GPU."""
        import torch
        from torch.profiler import ProfilerActivity, profile

        if not torch.cuda.is_available():
            raise AuditError(
                "the kineto engine needs a GPU that torch can use", remedy="use --engine deviceless on this machine"
            )
        # Shapes give attribution to captures without the recorder; stacks would cost more than the ops.
        # acc_events only keeps torch from warning about cycles, of which there is one.
        self._profile = profile(
            activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], record_shapes=True, acc_events=True
        )
        self._profile.start()
        # There is one Kineto in a process: a second profiler ends the first, or crashes.
        torch.autograd.profiler.profile._prepare_trace = _refuse  # type: ignore[method-assign]

    def stop(self) -> None:
        """Wait for the GPU, stop and write the trace (gzipped by the suffix)."""
        if self._profile is None:
            return
        import torch

        profile, self._profile = self._profile, None
        torch.cuda.synchronize()
        profile.stop()
        profile.export_chrome_trace(str(self._path))


def _refuse(profile: object) -> None:
    raise AuditError(
        "the script starts a profiler of torch itself, beside which the kineto engine cannot record",
        remedy="use --engine nsys, or switch the script's profiler off for the audit",
    )
