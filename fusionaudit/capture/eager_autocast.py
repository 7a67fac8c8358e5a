from __future__ import annotations
from typing import Any
def cuda_autocast(patches: Any, tensors: Any) -> None:
    return None
