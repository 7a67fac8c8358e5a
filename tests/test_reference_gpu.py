"""On a GPU: every reference kernel and generated chains against eager in fp64, and findings verified."""

from __future__ import annotations

import pytest
import torch
from fusionaudit.reference_kernels.registry import REFERENCES
from reference_cases import CHAINS, record

from fusionaudit.verify.bench import check_reference
from fusionaudit.verify.reference import check_kernel, make_subject, verify_ops

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def launch():
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
