from __future__ import annotations
from typing import Any
def resources(source: str, device: Any) -> dict[str, Any]:
    return {}
