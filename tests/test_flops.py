"""FLOPs against torch's own counter, from recorded ops."""

from __future__ import annotations

import pytest
import torch
from builders import t
from reference_cases import record
from torch.nn.functional import conv2d, conv_transpose2d
from torch.utils.flop_counter import FlopCounterMode

from fusionaudit.program.costs import category
from fusionaudit.program.flops import flops
from fusionaudit.program.model import Kernel

CASES = {
    "mm": (lambda a, b: a @ b, (torch.randn(6, 5), torch.randn(5, 7))),
    "square addmm": (torch.addmm, (torch.randn(8, 8), torch.randn(8, 8), torch.randn(8, 8))),
    "addmm with a matrix": (torch.addmm, (torch.randn(6, 7), torch.randn(6, 5), torch.randn(5, 7))),
    "bmm": (torch.bmm, (torch.randn(32, 6, 5), torch.randn(32, 5, 7))),
    "baddbmm": (torch.baddbmm, (torch.randn(3, 6, 7), torch.randn(3, 6, 5), torch.randn(3, 5, 7))),
    "convolution": (
        lambda x, w, b: conv2d(x, w, b, padding=1), (torch.randn(2, 8, 9, 9), torch.randn(4, 8, 3, 3), torch.randn(4))
    ),
    "grouped": (lambda x, w: conv2d(x, w, groups=4), (torch.randn(2, 8, 9, 9), torch.randn(4, 2, 3, 3))),
    "transposed": (lambda x, w: conv_transpose2d(x, w, stride=2), (torch.randn(2, 8, 9, 9), torch.randn(8, 4, 3, 3))),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_flops_are_those_that_torch_counts(name):
    function, inputs = CASES[name]
    with FlopCounterMode(display=False) as counter:
        function(*inputs)
    (op,) = [o for o in record(function, *inputs) if category(o) in ("matmul", "convolution")]
    kernel = Kernel(id=0, name="k", category=category(op), op_names=(op.name,), reads=op.inputs, writes=op.outputs)
    assert flops(kernel) == counter.get_total_flops()


def test_attention_multiplies_twice_and_five_times():
    q, k = (t(n, 2, 4, length, 16) for n, length in (("q", 128), ("k", 64)))
    forward = Kernel(id=0, name="k", category="attention", op_names=("aten._flash",), reads=(q, k, k), writes=(q,))
    assert flops(forward) == 4 * 2 * 4 * 128 * 64 * 16
    backward = Kernel(
        id=0, name="k", category="attention", op_names=("aten._flash_backward",), reads=(q, q, k, k), writes=(q, k, k)
    )
    assert flops(backward) == 10 * 2 * 4 * 128 * 64 * 16


def test_a_product_of_unknown_operands_has_no_flops():
    x = t("x", 6, 7)
    assert flops(Kernel(id=0, name="k", category="matmul", op_names=("aten.mm",), reads=(x,), writes=(x,))) is None
    rows = t("o", 4, 6, 7)
    a, b = t("a", 24, 5), t("b", 5, 7)
    assert flops(Kernel(id=0, name="k", category="template", reads=(a, b, rows), writes=(rows,))) == 2 * 24 * 7 * 5
