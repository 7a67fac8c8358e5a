"""FA108: the same thing computed again each step or call."""

from __future__ import annotations

from builders import MEGA, call, compiled, eager, graph, op, t, warnings

from fusionaudit.rules import fa108


def position_table():
    ids = {"dtype": "int64"}
    return (
        op("arange", [], t("i", 1024, **ids), at=3),
        op("sub", [t("i", 1024, **ids), t("i", 1024, **ids)], t("d", 1024, 1024, **ids), at=3),
        op("abs", [t("d", 1024, 1024, **ids)], t("a", 1024, 1024, **ids), at=3),
    )


def test_an_index_table_is_hoistable():
    (found,) = warnings(fa108, eager(*position_table(), op("neg", [t("x", 1024)], t("y", 1024))))
    assert found.location is not None
    assert found.location.line == 3
    assert "constants only" in found.message


def test_a_compiled_kernel_that_reads_nothing():
    table = t("buf0", 1024, 1024, dtype="int64")
    g = graph(
        call("triton_poi_0", [], [table], aten=["arange", "sub", "abs", "clamp"]),
        call("triton_poi_1", [table, t("x", MEGA)], [t("y", MEGA)], aten=["embedding", "add"]),
        outputs=["y"],
    )
    assert [f.ops for f in warnings(fa108, compiled(g))] == [("arange", "sub", "abs", "clamp")]


def test_a_parameter_cast_in_each_call():
    weight, half = t("w", 2048, 2048, parameter=True), t("h", 2048, 2048, dtype="bfloat16")
    cast = call("triton_poi_0", [weight], [half], aten=["_to_copy"], kernel="copy")
    backward = graph(call("triton_poi_9", [t("g", 8)], [t("k", 8)]), outputs=["k"], name="0/0/backward")
    (found,) = warnings(fa108, compiled(graph(cast, inputs=[weight], outputs=["h"]), backward, runs=16))
    assert found.avoidable_bytes == 15 * 6 * 2048 * 2048


def test_silent_on_a_cast_once_a_training_step():
    weight, half = t("w", 2048, 2048, parameter=True), t("h", 2048, 2048, dtype="bfloat16")
    cast = graph(call("triton_poi_0", [weight], [half], aten=["_to_copy"], kernel="copy"), outputs=["h"])
    backward = graph(call("triton_poi_9", [t("g", 8)], [t("k", 8)]), outputs=["k"], name="0/0/backward")
    assert not warnings(fa108, compiled(cast, backward))


def test_silent_on_random_numbers_and_plain_fills():
    rand = op("rand", [], t("r", MEGA))
    zeros = op("zeros", [], t("z", MEGA))
    assert not warnings(fa108, eager(rand, zeros, op("gt", [t("r", MEGA)], t("m", MEGA, dtype="bool"))))
    g = graph(call("triton_poi_0", [], [t("b", MEGA)], aten=["full", "embedding_dense_backward"]), outputs=["b"])
    assert not warnings(fa108, compiled(g))


def test_silent_on_work_over_an_input():
    assert not warnings(fa108, eager(op("abs", [t("x", MEGA)], t("a", MEGA))))
