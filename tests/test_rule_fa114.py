"""FA114: fallback, custom or user-written kernel is a barrier."""

from __future__ import annotations

from dataclasses import replace

from builders import MEGA, call, compiled, graph, run, t, warnings

from fusionaudit.rules import fa114


def between(target: str, **options):
    return graph(
        call("triton_poi_0", [t("x", MEGA)], [t("a", MEGA)]),
        call(target, [t("a", MEGA)], [t("b", MEGA)], kernel="opaque", **options),
        call("triton_poi_1", [t("b", MEGA)], [t("y", MEGA)]),
        inputs=[t("x", MEGA)],
        outputs=["y"],
    )


def test_a_custom_op_between_two_generated_kernels():
    (found,) = warnings(fa114, compiled(between("torch.ops.auditcase.scratch_mm.default", kind="custom")))
    assert found.ops == ("auditcase.scratch_mm",)
    assert found.evidence["neighbours"] == 2


def test_topk_is_a_barrier():
    (found,) = warnings(fa114, compiled(between("torch.ops.aten.topk.default", kind="extern")))
    assert found.ops == ("topk",)


def test_complex_arithmetic_says_so():
    z, w = t("z", MEGA, dtype="complex64"), t("w", MEGA, dtype="complex64")
    g = graph(
        call("triton_poi_0", [t("x", 2 * MEGA)], [t("a", 2 * MEGA)]),
        call("torch.ops.aten.view_as_complex.default", [t("a", 2 * MEGA)], [z], kind="extern", kernel="opaque"),
        call("torch.ops.aten.mul.Tensor", [z], [w], kind="extern", kernel="opaque"),
        outputs=["w"],
    )
    (found,) = run(fa114, compiled(g))
    assert "complex" in (found.reason or "")


def test_matmul_into_a_scatter_into_the_callers_tensor():
    dest = t("dest", 1024, 1024)
    g = graph(
        call("extern_kernels.mm", [t("a", 1024, 1024)], [t("c", 1024, 1024)], kind="extern", kernel="matmul"),
        call("triton_poi_0", [t("c", 1024, 1024)], [dest], aten=["relu", "index_add"]),
        inputs=[dest],
        outputs=["dest"],
    )
    (found,) = run(fa114, compiled(g))
    assert "scatter" in found.message


def test_sizes_from_data_are_information():
    (found,) = run(fa114, compiled(between("torch.ops.aten.nonzero.default", kind="extern")))
    assert found.severity == "info"


def test_silent_on_library_matmuls_and_lonely_calls():
    mm = graph(
        call("triton_poi_0", [t("x", MEGA)], [t("a", MEGA)]),
        call("extern_kernels.mm", [t("a", MEGA)], [t("b", MEGA)], kind="extern", kernel="matmul"),
        outputs=["b"],
    )
    assert not run(fa114, compiled(mm))
    alone = call("torch.ops.aten.topk.default", [t("x", MEGA)], [t("a", MEGA)], kind="extern", kernel="sort")
    assert not run(fa114, compiled(graph(alone, outputs=["a"])))


def test_names_the_op_and_not_its_overload():
    (found,) = run(fa114, compiled(between("aten.cumsum.out", kind="extern")))
    assert found.ops == ("cumsum",)


def test_silent_on_what_inductor_puts_there_itself():
    """The second stage of LayerNorm's backward sums a workspace; the seeds of dropout have no line."""
    workspace, total = t("workspace_1", 1024, 384), t("workspace_1_sum", 384)
    stages = graph(
        call("triton_red_0", [t("x", MEGA)], [workspace], kernel="reduction"),
        call("aten.sum.dim_IntList", [workspace], [total], aten=["aten.sum"], kind="extern", kernel="reduction"),
        call("triton_poi_1", [total], [t("y", 384)]),
        outputs=["y"],
    )
    assert not run(fa114, compiled(stages))
    made = between("aten.randint.low_out", kind="extern")
    seeds = replace(made, calls=tuple(replace(c, location=None) if c.kind == "extern" else c for c in made.calls))
    assert run(fa114, compiled(made))
    assert not run(fa114, compiled(seeds))


def test_a_complex_op_that_is_alone_in_its_graph_is_between_nothing():
    z, w, v = (t(name, MEGA, dtype="complex64") for name in "zwv")
    first = call("torch.ops.aten.mul.Tensor", [z], [w], kind="extern", kernel="opaque")
    assert not run(fa114, compiled(graph(first, inputs=[z], outputs=["w"])))
    second = call("torch.ops.aten.add.Tensor", [w], [v], kind="extern", kernel="opaque")
    found = run(fa114, compiled(graph(first, second, inputs=[z], outputs=["v"])))
    assert [f.ops for f in found] == [("mul",), ("add",)]
    assert all("0 generated" not in f.message for f in found)
