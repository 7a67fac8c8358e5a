"""Audit kernel fusion in existing PyTorch programs.

``run`` captures a script and audits it, ``analyze`` audits what was captured; ``step``, ``region`` and ``expect`` mark
the user's own program and cost nothing outside a capture. Importing this loads neither torch nor pandas.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_WHERE = {
    "AuditError": "fusionaudit.errors",
    "analyze": "fusionaudit.pipeline",
    "audit": "fusionaudit.pipeline",
    "expect": "fusionaudit.expectations",
    "region": "fusionaudit.capture.marks",
    "run": "fusionaudit.pipeline",
    "step": "fusionaudit.capture.marks",
}

__all__ = ["AuditError", "__version__", "analyze", "audit", "expect", "region", "run", "step"]

if TYPE_CHECKING:
    from fusionaudit.capture.marks import region, step
    from fusionaudit.errors import AuditError
    from fusionaudit.expectations import expect
    from fusionaudit.pipeline import analyze, audit, run


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'fusionaudit' has no attribute {name!r}")
    value = getattr(importlib.import_module(_WHERE[name]), name)
    globals()[name] = value
    return value
