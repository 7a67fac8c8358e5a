"""FA305: re-reads or recomputes more than it saves."""

from __future__ import annotations

from builders import call, compiled, graph, run, t, warnings

from fusionaudit.rules import fa305

ROWS = (32768, 8192)
SIZE = 4 * 32768 * 8192


def two_softmaxes(row: int = 8192, reread: int = 2 * SIZE):
    made = call(
        "triton_red_0", [t("a", *ROWS), t("b", *ROWS)], [t("y", *ROWS)], kernel="reduction", aten=["_softmax", "add"],
        numels={"x": 32768, "r0_": row}, reread=reread,
    )  # fmt: skip
    return graph(made, outputs=["y"])


def test_rows_that_fit_are_read_twice():
    (found,) = warnings(fa305, compiled(two_softmaxes()))
    assert found.avoidable_bytes == 2 * SIZE


def test_silent_on_rows_that_cannot_stay_and_on_rereads_that_hit_l2():
    assert not run(fa305, compiled(two_softmaxes(row=21440)))
    assert not run(fa305, compiled(two_softmaxes(reread=32 << 20)))


def residual(layers: int):
    shape = (8192, 2048)
    calls = []
    for i in range(layers):
        reads = [t("x", *shape), *(t(f"m{j}", *shape) for j in range(i))]
        nodes = [f"add_{j}" for j in range(i)]
        calls.append(
            call(f"triton_red_{i}", reads, [t(f"n{i}", *shape)], nodes=[*nodes, f"norm_{i}"], aten=["add", "mul"])
        )
        calls.append(
            call("extern_kernels.mm", [t(f"n{i}", *shape)], [t(f"m{i}", *shape)], kind="extern", kernel="matmul")
        )
    return graph(*calls, outputs=[f"m{layers - 1}"])


def test_a_residual_stream_that_is_derived_again():
    (found,) = warnings(fa305, compiled(residual(6)))
    assert found.avoidable_bytes is not None
    assert found.avoidable_bytes >= 4 * 8192 * 2048


def test_silent_where_it_is_stored():
    shape = (8192, 2048)
    calls = [
        call("triton_red_0", [t("x", *shape), t("m", *shape)], [t("n", *shape), t("y", *shape)], nodes=["add"]),
        call("triton_red_1", [t("y", *shape), t("k", *shape)], [t("o", *shape)], nodes=["add_1"]),
    ]
    assert not run(fa305, compiled(graph(*calls, outputs=["o"])))
