"""What autograd's own formulas do where no dispatch mode looks on.

Under a dispatch mode some formulas make a copy where they otherwise write into the zeros that they have just made
(``areAnyTensorSubclassLike`` of torch's ``FunctionsManual.cpp``, the same in torch 2.9 to 2.14). The recorder is such a
mode, so it has to put back what the script does without it.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch

aten = torch.ops.aten

_OURS = str(Path(__file__).parent)
_DISPATCH = ("torch/utils/_python_dispatch.py", "torch/_ops.py", "torch/_compile.py", "torch/_dynamo/eval_frame.py")
_ENGINE = "torch/autograd/graph.py"
_IN_PLACE: dict[Any, Any] = {
    aten.scatter_add.default: aten.scatter_add_.default,
    aten.scatter.src: aten.scatter_.src,
    aten.scatter.value: aten.scatter_.value,
    aten.index_add.default: aten.index_add_.default,
}
_NODES = (
    "Gather", "IndexSelect", "Index", "UnsafeIndex", "Max", "Min", "Median", "Nanmedian", "Kthvalue", "Mode", "Sort",
    "Topk", "Cummax", "Cummin",
)  # fmt: skip
"""The forward ops whose formulas do so; the node of ``gather`` is called ``GatherBackward0``."""
_BACKWARD = "Backward"


def asked_by_formula() -> bool:
    """True where the op that is dispatched comes from autograd's C++: no Python lies between the engine and it."""
    if torch._C._current_autograd_node() is None:
        return False
    frame = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if file.endswith(_ENGINE):
            return True
        if not file.startswith(_OURS) and not file.endswith(_DISPATCH):
            return False
        frame = frame.f_back  # type: ignore[assignment]
    return True  # a thread of the engine's own


def without_modes(func: Any, args: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
    """The op and arguments that a formula uses where no mode is there; what else is asked for, as it is."""
    if func is not aten.index_put.default and func not in _IN_PLACE:
        return func, args
    node = torch._C._current_autograd_node()
    if node is None or node.name().partition(_BACKWARD)[0] not in _NODES:
        return func, args
    if torch.is_grad_enabled() or not asked_by_formula():
        return func, args
    if func is aten.index_put.default:  # accumulates, and need not check indices that forward has used
        return aten._index_put_impl_.default, (*args, True)
    return _IN_PLACE[func], args
