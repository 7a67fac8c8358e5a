"""Processes that the script starts with torch.multiprocessing: only the script's own has the pretended GPU."""

from __future__ import annotations

import functools
from typing import Any

import torch.multiprocessing

from fusionaudit.capture.engines import ASKED_FOR_GPU
from fusionaudit.capture.patches import Patches
from fusionaudit.errors import AuditError


def explain_spawned(patches: Patches) -> None:
    """Where a spawned process failed because it has no GPU, say so: the script is not at fault. AuditError then."""
    module: Any = torch.multiprocessing
    owner, failed = module.ProcessContext, module.ProcessRaisedException
    plain = owner.join

    @functools.wraps(plain)
    def join(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return plain(self, *args, **kwargs)
        except failed as error:
            if not any(word in str(error) for word in ASKED_FOR_GPU):
                raise
            raise AuditError(
                "a process that the script starts uses the GPU, and deviceless audits (and pretends a GPU in) one "
                "process only",
                remedy="audit the work of one process by itself: call its function directly, or start the ranks with "
                "torchrun --no-python ... fusionaudit run SCRIPT",
            ) from None

    patches.set(owner, "join", join)
