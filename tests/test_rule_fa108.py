"""FA108: the same thing computed again each step or call."""

from __future__ import annotations

from dataclasses import replace

from builders import MEGA, call, compiled, eager, graph, op, run, t, warnings

from fusionaudit.rules import fa101, fa105, fa108


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


def test_silent_where_nothing_repeats():
    """A recording in which no step was found is one step: what it computes, it computes once."""
    once = replace(eager(*position_table()), steps=0)
    assert not run(fa108, once)
    table = t("buf0", 1024, 1024, dtype="int64")
    g = graph(call("triton_poi_0", [], [table], aten=["arange", "sub", "abs", "clamp"]), outputs=["buf0"])
    assert not run(fa108, replace(compiled(g), steps=0))


def test_a_chain_does_not_count_again_what_is_made_once():
    """ones, mul, add, tanh: all of them from constants, so no kernel is left to fuse."""
    table = (
        op("arange", [], t("i", MEGA), at=3),
        op("mul", [t("i", MEGA)], t("f", MEGA), at=3),
        op("cos", [t("f", MEGA)], t("c", MEGA), at=3),
    )
    assert not run(fa101, eager(*table))
    assert run(fa101, replace(eager(*table), steps=0))
    use = (op("mul", [t("x", MEGA), t("c", MEGA)], t("y", MEGA), at=4), op("neg", [t("y", MEGA)], t("z", MEGA), at=4))
    (found,) = run(fa101, eager(*table, *use))
    assert found.ops == ("aten.mul.default", "aten.neg.default")
    assert found.avoidable_bytes == 2 * 4 * MEGA


def test_a_cast_made_twice_counts_what_its_chain_does_not():
    """a to half, and again to half and back: one kernel reads a once and writes both results (10 of 18 bytes)."""
    a, half, again, back = t("a", MEGA), t("h", MEGA, dtype="float16"), t("g", MEGA, dtype="float16"), t("b", MEGA)
    ops = [op("aten._to_copy.default", [a], half, at=4), op("aten._to_copy.default", [a], again, at=4)]
    found = run(fa105, eager(*ops, op("aten._to_copy.default", [again], back, at=4)))
    assert sum(f.avoidable_bytes or 0 for f in found) == (18 - 10) * MEGA


def test_silent_on_the_first_gradient_of_a_mean():
    """Its backward divides ones by their number: autograd makes that, nobody can keep it."""
    one, wide = t("one"), t("w", MEGA)
    phase = {"phase": "backward"}
    ops = (op("ones_like", [one], one, **phase), op("div", [one], wide, **phase))
    assert not run(fa108, eager(*ops, op("mul", [wide, t("x", MEGA)], t("y", MEGA), **phase)))
