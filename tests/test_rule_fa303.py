"""FA303: memory-bound stage tied to a compute-bound one."""

from __future__ import annotations

from builders import call, compiled, graph, run, t, warnings

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
