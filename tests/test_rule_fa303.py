"""FA303: memory-bound stage tied to a compute-bound one."""

from __future__ import annotations

from dataclasses import replace

from builders import call, compiled, eager, graph, op, run, t, warnings

from fusionaudit.rules import fa303

A, B, C = (t(n, 4096, 4096, dtype="bfloat16") for n in "abc")


def fused(aten=("mm", "gelu")):
    return graph(call("triton_tem_fused_mm_0", [A, B], [C], kernel="template", aten=aten), outputs=["c"])


def test_a_template_slower_than_its_parts():
    """137 GFLOP at 0.7 x 989 TFLOP/s are 198 us, the epilogue apart 16 us."""
    (found,) = warnings(fa303, compiled(fused(), duration_ns=300_000))
    assert found.saving_ns is not None
    assert 70_000 < found.saving_ns < 100_000


def test_silent_where_it_is_fast_enough_or_has_no_epilogue():
    assert not run(fa303, compiled(fused(), duration_ns=200_000))
    assert not run(fa303, compiled(fused(("mm",)), duration_ns=300_000))
    assert not run(fa303, compiled(fused()))


def measured_eager(duration_ns: int, *inputs):
    made = eager(op("mm", inputs or (A, B), C))
    return replace(
        made, kernels=tuple(replace(k, duration_ns=duration_ns, time_basis="measured") for k in made.kernels)
    )


def test_the_matmul_that_the_eager_pass_measured_is_the_measure():
    assert not run(fa303, measured_eager(280_000), compiled(fused(), duration_ns=300_000))
    (found,) = warnings(fa303, measured_eager(150_000), compiled(fused(), duration_ns=200_000))
    assert found.saving_ns is not None
    assert 20_000 < found.saving_ns < 50_000
    assert "150 us, as in the eager pass" in found.message


def test_another_matmul_of_the_eager_pass_is_none():
    other = t("d", 4096, 1024, dtype="bfloat16"), t("e", 1024, 4096, dtype="bfloat16")
    (found,) = warnings(fa303, measured_eager(20_000, *other), compiled(fused(), duration_ns=300_000))
    assert "modelled" in found.message
