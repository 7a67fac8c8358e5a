"""FA108: the same thing computed again each step or call."""

from __future__ import annotations

from dataclasses import replace

from builders import MEGA, call, compiled, eager, graph, op, run, t, warnings

from fusionaudit.inductor.model import InductorLog
from fusionaudit.program.predicted import predicted_pass
from fusionaudit.rules import fa101, fa105, fa108
from fusionaudit.rules.constants import constant_steps
from fusionaudit.trace.schema import OpLog


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


def test_a_cast_of_a_table_is_kept_with_it():
    """``torch.exp(torch.arange(n).float())``; but a cast of zeros is a plain fill."""
    names = ("arange", "_to_copy", "exp")
    ids, cast, table = t("i", 1024, dtype="int64"), t("c", 1024), t("e", 1024)
    zeros = [op("zeros", [], t("z", 64, dtype="int64"), at=4), op("_to_copy", [t("z", 64, dtype="int64")], t("f", 64))]
    made = [op("arange", [], ids, at=3), op("_to_copy", [ids], cast, at=3), op("exp", [cast], table, at=3), *zeros]
    audited = eager(*made, op("mul", [table, t("x", 1024)], t("y", 1024)))
    assert not {o.id for o in audited.ops[:3]} & {i for f in run(fa105, audited) for i in f.op_ids}
    (found,) = run(fa108, audited)
    assert tuple(name.split(".")[1] for name in found.ops) == names


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


def steps_of(*makers):
    """The constant ops of the last of these steps, each recorded with storages of its own."""
    records = [op("randn", [], t("x", 64), at=1), op("randn", [], t("w", 64), at=1)]
    for number, maker in enumerate(makers):
        records += maker(str(number))
        records += [op("mul", [t("x", 64), t("w", 64)], t(f"y{number}", 64), at=8)]
    log = OpLog(records=tuple(replace(o, id=i) for i, o in enumerate(records)))
    p = predicted_pass("eager", log, InductorLog(), None)
    assert p.steps > 1
    return [(s.op.name.split(".")[1], s.op.location.line) for s in constant_steps(p)]


def timestep(value):
    """t = full(value); (t * exp(arange)).sin(): the table of frequencies is the same in each step, the rest is not."""

    def maker(n):
        return [
            op("full", [], t(f"t{n}", 64), at=3, arguments=([64], value)),
            op("arange", [], t(f"i{n}", 64), at=4, arguments=(64,)),
            op("exp", [t(f"i{n}", 64)], t(f"f{n}", 64), at=4),
            op("mul", [t(f"t{n}", 64), t(f"f{n}", 64)], t(f"a{n}", 64), at=5),
            op("sin", [t(f"a{n}", 64)], t(f"s{n}", 64), at=6),
        ]

    return maker


TABLE, ALL = [("arange", 4), ("exp", 4)], [("arange", 4), ("exp", 4), ("mul", 5), ("sin", 6)]


def test_what_hangs_on_a_scalar_that_changes_is_no_constant():
    """The timestep of a diffusion loop: kept in a buffer, it would stand still."""
    assert steps_of(*(timestep(i * 10) for i in reversed(range(5)))) == TABLE
    assert steps_of(*(timestep(10) for _ in range(5))) == ALL
    assert steps_of(timestep(0), *(timestep(10) for _ in range(4))) == TABLE, "one step is enough"


def test_scalars_that_change_within_a_step_only():
    """Two timesteps a step, the same two in each."""

    def both(n):
        return [*timestep(10)(f"{n}a"), *timestep(20)(f"{n}b")]

    assert steps_of(both, both, both) == ALL * 2


def test_the_part_of_a_table_that_a_step_takes():
    def row(start):
        def maker(n):
            return [
                op("arange", [], t(f"i{n}", 128), at=4, arguments=(128,)),
                op("sin", [replace(t(f"i{n}", 64), offset=start)], t(f"s{n}", 64), at=6),
            ]

        return maker

    assert steps_of(row(0), row(1), row(2)) == [("arange", 4)]
    assert steps_of(row(1), row(1), row(1)) == [("arange", 4), ("sin", 6)]


def test_a_value_from_the_host_is_no_constant():
    def host(n):
        table = t(f"i{n}", 64)
        now = t(f"h{n}", device="cpu")
        return [op("arange", [], table, at=4, arguments=(64,)), op("mul", [table, now], t(f"a{n}", 64), at=5)]

    assert steps_of(host, host, host) == [("arange", 4)]


def test_silent_where_no_other_step_is_known():
    """An import has no recorder's log: its scalars may change."""
    assert not run(fa108, replace(eager(*position_table()), repeated=frozenset()))


def test_a_compiled_kernel_of_a_scalar_that_changes_is_no_constant():
    """Dynamo passes an int as a symbol, or compiles anew for each (dynamic=False); a float is a tensor of the host."""
    aten, out = ["full", "mul", "sin"], t("b", MEGA)

    def made(source):
        table = call("triton_poi_0", [], [out], aten=aten, source=source)
        return compiled(graph(table, call("triton_poi_1", [out], [t("c", MEGA)], aten=["cos"]), outputs=["c"]))

    plain = "def triton_poi_0(out_ptr0, xnumel): # {'out_ptr0': '*fp32'}\n    tmp0 = x0"
    assert [f.ops for f in run(fa108, made(plain))] == [("full", "mul", "sin"), ("cos",)]
    assert not run(fa108, made(plain.replace("out_ptr0, xnumel", "out_ptr0, ks0, xnumel")))
    assert not run(fa108, made(plain.replace("{'out_ptr0'", "{'in_ptr0': 'fp64', 'out_ptr0'")))
    assert not run(fa108, replace(made(plain), repeated_graphs=frozenset()))
