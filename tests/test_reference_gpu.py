"""On a GPU: every reference kernel and generated chains against eager in fp64, and findings verified."""

from __future__ import annotations

import re

import pytest
import torch
from reference_cases import CHAINS, record

from fusionaudit.reference_kernels.registry import REFERENCES
from fusionaudit.tensors import Tensor
from fusionaudit.trace.schema import Op
from fusionaudit.verify.bench import check_reference
from fusionaudit.verify.compile import inline_headers, read_source
from fusionaudit.verify.cuda_compute import PATTERNS
from fusionaudit.verify.generated import prepare
from fusionaudit.verify.reference import check_kernel, make_subject, verify_ops
from fusionaudit.verify.replay import draw
from fusionaudit.verify.step_graph import verify_step
from fusionaudit.verify.timing import interleaved

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def launch():
    """The GPU's launcher."""
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    from fusionaudit.verify.launch import GpuLaunch

    return GpuLaunch()


@pytest.mark.parametrize("name", REFERENCES)
def test_reference_kernel_gives_what_eager_gives(name, launch):
    reference = REFERENCES[name]
    for dtype in reference.dtypes:
        for elements in (1 << 20, 3_000_017):
            inputs = reference.inputs(elements, dtype, launch.device)
            check = check_reference(reference, launch, inputs)
            assert check.ok, f"{dtype} {elements}: {check.text}"
            for variant, run in reference.variants.items():
                check = check_reference(reference, launch, inputs, run)
                assert check.ok, f"{variant} {dtype} {elements}: {check.text}"


@pytest.mark.parametrize("name", CHAINS)
def test_generated_chain_gives_what_eager_gives(name, launch):
    ops = record(*CHAINS[name]())
    subject = make_subject(ops, [op.id for op in ops], sm_count=launch.sm_count)
    assert subject.kernel is not None, subject.problem
    check, _, _ = check_kernel(subject, launch, launch.device)
    assert check.ok, check.text


@pytest.mark.parametrize("name", ["scale_bias_relu", "sum_abs_large", "softmax_by_hand"])
def test_verification_of_a_finding(name, launch):
    ops = record(*CHAINS[name](24))
    found = verify_ops(ops, [op.id for op in ops], launch)
    assert found.verdict == "confirmed", found
    assert found.saving_ns is not None
    assert found.saving_ns > 0
    assert found.compile_ns is not None
    assert found.cuda_graph_ns is not None


@pytest.mark.parametrize("name", PATTERNS)
def test_cuda_compute_gives_what_eager_gives(name, launch):
    pytest.importorskip("cuda.compute", exc_type=ImportError)
    reference, form = REFERENCES[name], PATTERNS[name]
    for dtype in (torch.float32, torch.float64):
        if dtype in reference.dtypes:
            inputs = reference.inputs(300_000, dtype, launch.device)
            check = check_reference(reference, launch, inputs, lambda _, *tensors: form(*tensors)())
            assert check.ok, f"{dtype}: {check.text}"


EPILOGUES = {
    "bias and relu": (lambda a, b, c: torch.addmm(c, a, b).relu(), (4096,), "aten._addmm_activation.default"),
    "loose bias": (lambda a, b, c: a @ b + c, (4096,), "aten.addmm.default"),
    "scale and residual": (lambda a, b, c: (a @ b) * 0.5 + c, (8192, 4096), None),
}


@pytest.mark.parametrize("name", EPILOGUES)
def test_an_epilogue_gets_a_verdict(name, launch):
    """Small inner length: what stands behind the matmul moves as much as the matmul itself."""
    function, shape, call = EPILOGUES[name]
    operands = (torch.randn(8192, 256), torch.randn(256, 4096), torch.randn(shape))
    ops = record(function, *(t.bfloat16() for t in operands))
    found = verify_ops(ops, [op.id for op in ops], launch)
    timed = found.details["timings"]["cold"]
    assert found.verdict != "inconclusive", found
    assert "template" in timed, found.details["missing"]
    assert found.reference_ns is not None
    if call is not None:
        assert call in timed, found.details["missing"]
    assert not any(t["waits"] for t in timed.values()), timed


def test_times_of_one_call_agree_with_those_of_many(launch):
    """A copy of 1 GiB alone and ten of them in one call: the same time each, but for the last writes. Those may stay in
    the L2 cache when the call ends, once in either."""
    source = torch.randn(1 << 28, device=launch.device)
    target = torch.empty_like(source)

    def ten():
        for _ in range(10):
            target.copy_(source)

    found = interleaved({"one": lambda: target.copy_(source), "ten": ten})
    assert found["one"].median_ns == pytest.approx(found["ten"].median_ns / 10, rel=0.01 + launch.l2_bytes / (2 << 30))
    assert not found["one"].waits


def test_a_step_as_one_cuda_graph(launch):
    """Two hundred small ops: the graph takes less than the host takes to launch them."""

    def step(x):
        for _ in range(200):
            x = torch.relu(x + 1)
        return x

    ops = record(step, torch.randn(1024))
    found = verify_step(ops, 2_000_000, launch.device)
    assert (found.verdict, found.saving_ns) == ("confirmed", 2_000_000 - (found.cuda_graph_ns or 0))
    assert 100_000 < (found.cuda_graph_ns or 0) < 1_500_000
    assert verify_step(ops, 10_000, launch.device).verdict == "refuted"


def test_a_step_that_waits_cannot_be_a_cuda_graph(launch):
    ops = record(lambda x: torch.nonzero(x > 0), torch.randn(1024))
    found = verify_step(ops, 2_000_000, launch.device)
    assert found.verdict == "inconclusive"
    assert "cannot be captured" in found.reason
    assert float(torch.ones(3, device=launch.device).sum()) == 3  # the device still works
    assert torch.rand(3, device=launch.device).min() >= 0  # so does its generator


def test_more_than_two_to_the_31_elements(launch):
    """2^31 + 1003 elements of bfloat16: positions and offsets do not wrap."""
    shape = (2**31 + 1003,)
    x, y, z = (Tensor.contiguous(shape, "bfloat16", name) for name in "xyz")
    ops = [
        Op(id=0, name="aten.mul.Tensor", inputs=(x,), outputs=(y,), arguments=({"tensor": 0}, 3)),
        Op(id=1, name="aten.relu.default", inputs=(y,), outputs=(z,), arguments=({"tensor": 0},)),
    ]
    kernel = make_subject(ops, [0, 1], sm_count=launch.sm_count).kernel
    assert kernel is not None
    values = draw(shape[0], torch.bfloat16, launch.device)
    launch.poison = True
    run, (out,) = prepare(launch, kernel, {"x": values})
    launch.poison = False
    run()
    for part in (slice(0, 4096), slice(2**31 - 4096, 2**31 + 1003), slice(2**30, 2**30 + 4096)):
        torch.testing.assert_close(out[part], torch.relu(values[part] * 3))
    assert not out.isnan().any()
    total = REFERENCES["sum_abs"].fused(launch, values)[0].double()
    assert abs(float(total) / float(values.abs().sum(dtype=torch.float32)) - 1) < 1e-2


def skip_the_barrier(text: str) -> str:
    return text.replace(
        "if (lane == 0) partial[warp] = value;\n    __syncthreads();", "if (lane == 0) partial[warp] = value;"
    )


PLANTED = {
    # At millions of elements the one that is left out rounds away.
    "dropped tail": ("sum_abs", lambda t: re.sub(r"for \(index_t t = packs \* V[^\n]*\n", "\n", t), 9_003),
    "missing barrier": ("rms_norm", skip_the_barrier, 1 << 22),
    "wrong scale": ("layer_norm", lambda t: t.replace("/ C(cols) + C(eps)", "/ C(cols + 1) + C(eps)"), 1 << 20),
}


@pytest.mark.parametrize("error", PLANTED)
def test_planted_error_is_caught(error, launch):
    name, change, elements = PLANTED[error]
    reference = REFERENCES[name]
    whole = inline_headers(read_source(reference.source))
    assert change(whole) != whole

    class Broken:
        def __getattr__(self, attribute):
            return getattr(launch, attribute)

        def __setattr__(self, attribute, value):
            setattr(launch, attribute, value)

        def __call__(self, source, *args, **kwargs):
            launch(change(whole), *args, **kwargs)

    inputs = reference.inputs(elements, torch.float32, launch.device)
    assert check_reference(reference, launch, inputs).ok
    found = [check_reference(reference, Broken(), inputs) for _ in range(5)]
    wrong = [check.text for check in found if not check.ok]
    assert wrong
    assert all("relative error" in text for text in wrong), wrong
