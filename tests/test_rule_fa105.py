"""FA105: copies and casts between kernels that a fused kernel would not make."""

from __future__ import annotations

from builders import MEGA, call, compiled, eager, graph, op, run, t, warnings

from fusionaudit.rules import fa105

N = 16 * MEGA


def test_a_cast_after_one_kernel():
    half = t("y", N, dtype="bfloat16")
    (found,) = warnings(fa105, eager(op("exp", [t("x", N)], t("a", N)), op("aten._to_copy.default", [t("a", N)], half)))
    assert found.avoidable_bytes == 2 * 4 * N


def test_the_same_weight_cast_in_each_turn():
    weight = t("w", 2048, 2048, parameter=True)
    casts = [
        made
        for i in range(8)
        for made in (
            op("aten._to_copy.default", [weight], t(f"h{i}", 2048, 2048, dtype="bfloat16"), at=4),
            op(
                "mm",
                [t("x", 8, 2048, dtype="bfloat16"), t(f"h{i}", 2048, 2048, dtype="bfloat16")],
                t(f"o{i}", 8, 2048),
                at=4,
            ),
        )
    ]
    (found,) = warnings(fa105, eager(*casts))
    assert found.avoidable_bytes == 7 * (4 + 2) * 2048 * 2048
    assert "8 times" in found.message


def test_repeated_casts_stay_a_warning_where_compile_does_not_take_them_away():
    weight, half = t("w", 2048, 2048, parameter=True), t("h", 2048, 2048, dtype="bfloat16")
    casts = [op("aten._to_copy.default", [weight], t(f"h{i}", 2048, 2048, dtype="bfloat16"), at=4) for i in range(8)]
    g = graph(call("triton_poi_0", [weight], [half], aten=["_to_copy"], kernel="copy"), inputs=[weight], outputs=["h"])
    assert len(warnings(fa105, eager(*casts), compiled(g, runs=8), uses_compile=True)) == 1
    assert not warnings(fa105, eager(*casts), eager(name="compiled"), uses_compile=True)


def test_a_copy_between_two_library_kernels():
    found = warnings(
        fa105,
        eager(
            op("sort", [t("x", N)], t("a", N)), op("clone", [t("a", N)], t("b", N)), op("sort", [t("b", N)], t("c", N))
        ),
    )
    assert [f.ops for f in found] == [("aten.clone.default",)]


def test_compiled_copy_of_an_activation():
    copy = call("triton_poi_0", [t("a", N)], [t("b", N)], aten=["clone"], kernel="copy")
    conv = call("extern_kernels.convolution", [t("b", N)], [t("c", N)], kind="extern", kernel="convolution")
    (found,) = warnings(fa105, compiled(graph(copy, conv, outputs=["c"], inputs=[t("x", N)])))
    assert found.avoidable_bytes == 8 * N


def test_silent_on_a_compiled_copy_that_the_program_asks_for():
    copy = call("triton_poi_0", [t("x", N)], [t("b", N)], aten=["clone"], kernel="copy")
    assert not run(fa105, compiled(graph(copy, outputs=["b"], inputs=[t("x", N)])))


def test_silent_on_a_copy_that_the_script_keeps():
    assert not run(fa105, eager(op("clone", [t("x", N)], t("b", N))))


def test_silent_on_one_cast_of_an_input():
    half = t("h", N, dtype="bfloat16")
    assert not run(fa105, eager(op("aten._to_copy.default", [t("x", N)], half), op("sort", [half], t("o", N))))


def test_silent_on_a_chain_of_work_with_a_cast_in_it():
    ops = (
        op("exp", [t("x", N)], t("a", N)),
        op("aten._to_copy.default", [t("a", N)], t("h", N, dtype="bfloat16")),
        op("neg", [t("h", N, dtype="bfloat16")], t("y", N, dtype="bfloat16")),
    )
    assert not run(fa105, eager(*ops))


def test_an_input_that_is_updated_in_a_temporary_and_copied_back():
    """x -slice_scatter-> tmp -copy_-> x: the update of a slice moves the whole tensor twice more."""
    x, tmp = t("x", N), t("tmp", N)
    update = call("triton_poi_0", [x, t("v", N)], [tmp], aten=["slice_scatter"])
    back = call("triton_red_1", [tmp], [t("s"), x], aten=["sum", "copy_"], kernel="reduction")
    (found,) = warnings(fa105, compiled(graph(update, back, inputs=[x], outputs=["s"])))
    assert found.avoidable_bytes == 2 * 4 * N


def test_silent_on_an_update_in_place():
    x = t("x", N)
    update = call("triton_poi_0", [x, t("v", N)], [x], aten=["mul", "copy_"])
    assert not run(fa105, compiled(graph(update, inputs=[x])))
