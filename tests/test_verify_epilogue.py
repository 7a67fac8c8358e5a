"""Library calls that take what stands behind a matmul, and the check that lets only right forms be timed."""

from __future__ import annotations

import pytest
import torch
import torch._inductor.config
from reference_cases import record, rows

from fusionaudit.verify import candidates
from fusionaudit.verify.candidates import make_versions, words
from fusionaudit.verify.epilogue import has_matmul, library_forms
from fusionaudit.verify.reference import draw_case, make_subject, summed
from fusionaudit.verify.replay import Replay, build_replay, call

CPU = torch.device("cpu")
A, B, BIAS = rows(24, 32), rows(32, 16), rows(16)

FOLDED = {
    "bias": (lambda a, b, c: a @ b + c, (A, B, BIAS), ["aten.addmm.default"]),
    "bias in place": (lambda a, b, c: (a @ b).add_(c), (A, B, BIAS), ["aten.addmm.default"]),
    "matrix": (lambda a, b, c: a @ b + c, (A, B, rows(24, 16)), ["aten.addmm.default"]),
    "bias and relu": (
        lambda a, b, c: torch.relu(a @ b + c), (A, B, BIAS), ["aten.addmm.default", "aten._addmm_activation.default"]
    ),
    "addmm and relu": (lambda a, b, c: torch.addmm(c, a, b).relu(), (A, B, BIAS), ["aten._addmm_activation.default"]),
    "addmm, view, relu in place, more": (
        lambda a, b, c: torch.addmm(c, a, b).view(4, 6, 16).relu_() * 2, (A, B, BIAS),
        ["aten._addmm_activation.default"],
    ),
    "addmm and gelu": (
        lambda a, b, c: torch.nn.functional.gelu(torch.addmm(c, a, b)), (A, B, BIAS), ["aten._addmm_activation.default"]
    ),
    "scaled": (lambda a, b, c: torch.add(a @ b, c, alpha=2), (A, B, BIAS), []),
    "alpha of addmm": (lambda a, b, c: torch.addmm(c, a, b, alpha=2).relu(), (A, B, BIAS), []),
    "column": (lambda a, b, c: a @ b + c, (A, B, rows(24, 1)), []),
    "another activation": (lambda a, b, c: torch.addmm(c, a, b).tanh(), (A, B, BIAS), []),
}  # fmt: skip


@pytest.mark.parametrize("name", FOLDED)
def test_folded_call_gives_what_the_ops_give(name):
    function, inputs, calls = FOLDED[name]
    ops = record(function, *inputs)
    subject = make_subject(ops, [op.id for op in ops], sm_count=2)
    assert has_matmul(subject.ops)
    assert summed(subject.ops) == 32
    forms = list(library_forms(subject.ops, subject.outputs))
    assert [n for n, _ in forms] == calls
    replay, buffers, exact = draw_case(subject, CPU)
    for call_name, folded in forms:
        assert len(folded) < len(subject.ops)
        assert any(op.name == call_name for op in folded)
        (got,) = call(build_replay(folded, subject.outputs, CPU), buffers)
        torch.testing.assert_close(got.double(), exact[0], rtol=1e-4, atol=1e-5)
    (own,) = call(replay, buffers)
    torch.testing.assert_close(own.double(), exact[0], rtol=1e-4, atol=1e-5)


def test_a_result_that_is_read_again_keeps_its_kernel():
    ops = record(lambda a, b, c: (lambda m: (torch.relu(m), m.cumsum(0)))(torch.addmm(c, a, b)), A, B, BIAS)
    subject = make_subject(ops, [op.id for op in ops if "cumsum" not in op.name], sm_count=2)
    assert list(library_forms(subject.ops, subject.outputs)) == []


def test_a_convolution_and_its_relu_go_to_cudnn():
    ops = record(
        lambda x, w: torch.relu(torch.nn.functional.conv2d(x, w, padding=1)), rows(2, 3, 8, 8), rows(4, 3, 3, 3)
    )
    subject = make_subject(ops, [op.id for op in ops], sm_count=2)
    ((name, (folded,)),) = library_forms(subject.ops, subject.outputs)
    assert (name, folded.name) == ("aten.cudnn_convolution_relu.default",) * 2
    assert len(folded.arguments) == 7  # input, weight, bias, stride, padding, dilation, groups
    assert words(name) == "aten.cudnn_convolution_relu (cuDNN's epilogue)"
    build_replay([folded], subject.outputs, CPU)


@pytest.fixture
def without_compile(monkeypatch):
    monkeypatch.setattr(candidates, "compiled", lambda replay, options=None: replay)
    monkeypatch.setattr(candidates, "capture_graph", lambda run: (run, None))


def versions(function, *inputs):
    ops = record(function, *inputs)
    subject = make_subject(ops, [op.id for op in ops], sm_count=2)
    replay, buffers, exact = draw_case(subject, CPU)
    return make_versions(subject.ops, subject.outputs, replay, buffers, exact, length=32)


def test_right_forms_are_offered(without_compile):
    found = versions(lambda a, b, c: torch.addmm(c, a, b).relu(), A, B, BIAS)
    assert set(found.runs) == {"eager", "compile", "aten._addmm_activation.default", "cuda_graph"}
    torch.testing.assert_close(found.runs["aten._addmm_activation.default"](), found.runs["eager"]())


def test_a_gelu_by_another_formula_is_never_timed(without_compile):
    """The library's is the exact one on CPUs, the one by tanh on GPUs; here the ops have the other one."""
    found = versions(lambda a, b, c: torch.nn.functional.gelu(torch.addmm(c, a, b), approximate="tanh"), A, B, BIAS)
    assert "aten._addmm_activation.default" not in found.runs
    assert found.missing["aten._addmm_activation.default"].startswith("wrong result")


def test_a_form_with_another_result_is_never_timed(without_compile, monkeypatch):
    def wrong(replay, options=None):
        def module(*tensors):
            return [1.01 * t for t in replay.module(*tensors)]

        return Replay(module=module, inputs=replay.inputs, outputs=replay.outputs, mutated=frozenset())

    monkeypatch.setattr(candidates, "compiled", wrong)
    found = versions(lambda a, b, c: torch.addmm(c, a, b).relu(), A, B, BIAS)
    assert "compile" not in found.runs
    assert found.missing["compile"].startswith("wrong result: output 0: relative error 1.0")


def test_a_form_that_raises_is_said(without_compile, monkeypatch):
    def broken(replay, options=None):
        raise RuntimeError("no template for this")

    monkeypatch.setattr(candidates, "compiled", broken)
    found = versions(lambda a, b, c: torch.addmm(c, a, b).relu(), A, B, BIAS)
    assert found.missing["compile"] == "RuntimeError: no template for this"
    assert "aten._addmm_activation.default" in found.runs


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, when it imports Inductor
def test_options_of_templates_are_options_of_this_inductor():
    config = torch._inductor.config
    assert all(hasattr(config, name) for name in candidates.TEMPLATE_OPTIONS)
    torch.compile(torch.relu, options=candidates.TEMPLATE_OPTIONS)  # it refuses unknown ones at once
