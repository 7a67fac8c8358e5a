"""Nested tensors: not audited without a GPU, said in one line where a script makes one."""

from __future__ import annotations

from typing import Any, NoReturn

import torch

from fusionaudit.capture.locations import Locator
from fusionaudit.capture.patches import Patches
from fusionaudit.errors import AuditError

_MAKERS = ("nested_tensor", "as_nested_tensor", "nested_tensor_from_jagged")


def refuse_nested(patches: Patches) -> None:
    """Stop where a nested tensor is made: its parts cannot stand for a GPU's, and its sizes are no numbers."""

    def refuse(*args: Any, **kwargs: Any) -> NoReturn:
        where = Locator().find()
        place = f"{where['file']}:{where['line']}: " if where else ""
        raise AuditError(
            f"{place}deviceless cannot audit nested tensors", remedy="audit on a GPU (--engine kineto), or pad instead"
        )

    for name in _MAKERS:
        patches.set(torch.nested, name, refuse, optional=True)
