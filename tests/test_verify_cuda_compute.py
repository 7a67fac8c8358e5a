"""Patterns through cuda.compute, with the library's iterators and algorithms stood in for by plain Python."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch

from fusionaudit.errors import AuditError
from fusionaudit.reference_kernels.registry import REFERENCES
from fusionaudit.verify import cuda_compute
from fusionaudit.verify.bench import check_reference
from fusionaudit.verify.check import compare
from fusionaudit.verify.cuda_compute import PATTERNS, why_not

ELEMENTS = 2 * 16 * 128 * 4


class Values:
    """An iterator: the value at i."""

    def __init__(self, at) -> None:
        self.at = at


def values(source):
    return source.at if isinstance(source, Values) else lambda i: source.reshape(-1)[i].numpy()[()]


@pytest.fixture
def library(monkeypatch):
    """Signatures as in cuda-cccl 1.2.1: everything that an algorithm takes goes by keyword."""
    found = ModuleType("cuda.compute")

    def unary_transform(*, d_in, d_out, op, num_items, stream=None):
        at = values(d_in)
        for i in range(num_items):
            d_out[i] = float(op(at(i)))

    def reduce_into(*, d_in, d_out, num_items, op, h_init=None, stream=None):
        assert op == "plus"
        at = values(d_in)
        d_out[0] = float(h_init[0]) + sum(float(at(i)) for i in range(num_items))

    found.CountingIterator = lambda start: Values(lambda i: start + i)
    found.TransformIterator = lambda source, op: Values(lambda i: op(values(source)(i)))
    found.PermutationIterator = lambda source, places: Values(lambda i: values(source)(int(values(places)(i))))
    found.ZipIterator = lambda *sources: Values(lambda i: tuple(values(s)(i) for s in sources))
    found.unary_transform, found.reduce_into = unary_transform, reduce_into
    found.OpKind = SimpleNamespace(PLUS="plus")
    monkeypatch.setattr(cuda_compute, "_load", lambda: found)
    monkeypatch.setattr(cuda_compute.torch.cuda, "current_stream", lambda: None)
    return found


def shapes(name: str) -> tuple[torch.Tensor, ...]:
    """Inputs of a pattern with short rows: the stand-in goes element by element."""
    if name == "rope":
        angle = torch.rand(5, 4) * 6
        return torch.randn(5, 3, 8), angle.cos(), angle.sin()
    x = torch.randn(7, 12)
    return {
        "sum_abs": (x.flatten(),),
        "scale_bias_relu": (x, torch.randn(12), torch.randn(12)),
        "bias_gelu_residual": (x, torch.randn(12), torch.randn(7, 12)),
        "swiglu": (x,),
    }[name]


@pytest.mark.parametrize("name", PATTERNS)
def test_form_gives_what_eager_gives(name, library):
    inputs = shapes(name)
    exact = REFERENCES[name].eager(*(t.double() for t in inputs))
    check = compare(PATTERNS[name](*inputs)(), exact, length=100)
    assert check.ok, check.text


@pytest.mark.parametrize("name", sorted(set(PATTERNS) - {"swiglu"}))  # its last index lies outside then
def test_a_wrong_form_is_caught(name, library):
    """One element too far on: an offset in every index."""
    counting = library.CountingIterator
    library.CountingIterator = lambda start: counting(start + 1)
    if name == "sum_abs":
        library.TransformIterator = lambda source, op: Values(lambda i: op(values(source)(max(i, 1))))
    inputs = shapes(name)
    try:
        got = PATTERNS[name](*inputs)()
    except IndexError:
        return
    assert not compare(got, REFERENCES[name].eager(*(t.double() for t in inputs)), length=100).ok


def test_the_table_checks_a_form_like_a_kernel(library):
    launch = SimpleNamespace(poison=False)
    reference, inputs = REFERENCES["scale_bias_relu"], shapes("scale_bias_relu")
    form = PATTERNS["scale_bias_relu"]
    assert check_reference(reference, launch, inputs, lambda _, *tensors: form(*tensors)()).ok
    assert not check_reference(reference, launch, inputs, lambda _, x, b, s: form(x, s, b)()).ok


def test_half_precision_and_missing_libraries_are_said(library, monkeypatch):
    with pytest.raises(AuditError, match=r"no operators on torch\.bfloat16"):
        PATTERNS["swiglu"](torch.randn(4, 8).bfloat16())
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "cuda.compute", None)
    with pytest.raises(AuditError, match=r"cuda.compute cannot be used.*pip install .*cuda-cccl"):
        PATTERNS["sum_abs"](torch.randn(4))


def test_patterns_without_a_form_say_why():
    without = sorted(set(REFERENCES) - set(PATTERNS))
    assert "softmax" in without
    assert all(why_not(name).startswith("no form in cuda.compute: ") for name in without)
    assert "random" in why_not("dropout_residual")
