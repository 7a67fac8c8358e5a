"""Both passes' steps are of the same loop of the script; where they are not, nothing may be compared.

line 3: huge(big)  x3          the heavier loop
line 5: kept(small) x3         the later one
"""

from __future__ import annotations

from dataclasses import replace

from fusionaudit.findings import Location
from fusionaudit.inductor.model import CompiledGraph, GeneratedCall, InductorLog
from fusionaudit.program.loops import loop_of, other_loop, other_steps
from fusionaudit.program.measured import measured_pass
from fusionaudit.program.model import Pass
from fusionaudit.program.predicted import predicted_pass
from fusionaudit.program.records import record_steps
from fusionaudit.tensors import Tensor
from fusionaudit.trace.schema import Activity, GraphCall, Op, OpLog, Record, Trace

BIG, SMALL = Tensor.contiguous((1 << 24,), "float32", "big"), Tensor.contiguous((1 << 20,), "float32", "small")
HALF = replace(BIG, dtype="float16", storage="half")
FILE = "/home/ada/loops.py"


def at(line: int, file: str = FILE) -> Location:
    return Location(file=file, line=line)


def eager_log(*turns: tuple[Tensor, int]) -> OpLog:
    ops = [
        Op(
            id=2 * i + j, name=f"aten.{name}.default", inputs=(x,), outputs=(replace(x, storage=f"o{i}{j}"),),
            location=at(n),
        )
        for i, (x, n) in enumerate(turns)
        for j, name in enumerate(("exp", "abs"))
    ]  # fmt: skip
    return OpLog(records=tuple(ops))


def graph(name: str, x: Tensor, *lines: Location) -> CompiledGraph:
    calls = tuple(
        GeneratedCall(
            index=i, kind="triton", target=f"k{name[0]}{i}", category="pointwise", aten=("aten.exp",), nodes=(),
            reads=(x,), writes=(replace(x, storage="out"),), read_bytes=64, write_bytes=64, location=place,
            locations=(place,),
        )
        for i, place in enumerate(lines)
    )  # fmt: skip
    kind = name.split("/")[-1]
    return CompiledGraph(id=name, compile_id=name[:3], kind=kind, inputs=(x,), calls=calls, kernels=())  # type: ignore[arg-type]


HUGE, KEPT = graph("0/0/inference", BIG, at(3)), graph("1/0/inference", SMALL, at(5), at(5))
LOG = InductorLog(graphs=(HUGE, KEPT))
EAGER_LOG = eager_log((BIG, 3), (BIG, 3), (BIG, 3), (SMALL, 5), (SMALL, 5), (SMALL, 5))
EAGER = predicted_pass("eager", EAGER_LOG, InductorLog(), None)
LOOP = loop_of(EAGER, EAGER_LOG)


def compiled_log(*graphs: tuple[str, Tensor]) -> OpLog:
    return OpLog(records=tuple(GraphCall(graph=g, inputs=(x,), outputs=(x,)) for g, x in graphs))


TURNS = [(HUGE.id, BIG)] * 3 + [(KEPT.id, SMALL)] * 3


def test_the_compiled_step_is_of_the_eager_steps_loop() -> None:
    assert {k.location for k in EAGER.kernels} == {at(3)}
    alone = predicted_pass("compiled", compiled_log(*TURNS), LOG, None)
    assert {k.location for k in alone.kernels} == {at(5)}, "by itself the later loop is taken"
    made = predicted_pass("compiled", compiled_log(*TURNS), LOG, None, loop=LOOP)
    assert {k.location for k in made.kernels} == {at(3)}
    assert other_loop(EAGER, made, LOOP) is None
    note = other_loop(EAGER, alone, LOOP)
    assert note is not None
    assert note.blocks
    assert f"{FILE}:3" in note.text
    assert f"{FILE}:5" in note.text
    assert "fusionaudit.step()" in note.remedy


def test_the_same_lines_on_other_tensors_are_another_loop() -> None:
    other = graph("0/1/inference", HALF, at(3))
    log = InductorLog(graphs=(HUGE, other))
    calls = compiled_log(*[(HUGE.id, BIG)] * 3, *[(other.id, HALF)] * 2)
    made = predicted_pass("compiled", calls, log, None, loop=LOOP)
    assert {k.graph for k in made.kernels} == {HUGE.id}
    assert made.steps == 3
    alone = predicted_pass("compiled", calls, log, None)
    assert other_loop(EAGER, alone, LOOP) is not None


def test_a_short_loop_of_the_eager_step_is_enough() -> None:
    """Of 15 calls of graphs three are of the loop: too few to pass for a step, were the eager pass not known."""
    calls = compiled_log(*[(HUGE.id, BIG)] * 3, *[(KEPT.id, SMALL)] * 12)
    made = predicted_pass("compiled", calls, LOG, None, loop=LOOP)
    assert {k.graph for k in made.kernels} == {HUGE.id}
    assert made.steps == 3


def test_a_measured_step_is_of_the_eager_steps_loop() -> None:
    def launches(graphs: list[CompiledGraph]) -> tuple[Activity, ...]:
        names = [(g.id, i, c.target) for i, g in enumerate(graphs) for c in g.calls]
        return tuple(
            Activity(
                kind="kernel", name=name, start_ns=10 * i, end_ns=10 * i + 5, device=0, stream=7, graph_call=key,
                graph_call_id=call,
            )
            for i, (key, call, name) in enumerate(names)
        )  # fmt: skip

    trace = Trace(format="", activities=launches([HUGE] * 3 + [KEPT] * 3), device=None)
    alone = measured_pass("compiled", "kineto", trace, None, LOG)
    assert {k.graph for k in alone.kernels} == {KEPT.id}
    made = measured_pass("compiled", "kineto", trace, None, LOG, loop=LOOP)
    assert {k.graph for k in made.kernels} == {HUGE.id}
    assert made.steps == 3


def test_code_of_a_library_is_no_other_loop() -> None:
    """Eager ops have the user's line that calls a library, its graphs the library's own lines."""
    strange = graph("1/0/inference", SMALL, at(77, "/usr/lib/python3/site-packages/net/model.py"))
    log = InductorLog(graphs=(strange,))
    made = predicted_pass("compiled", compiled_log(*[(strange.id, SMALL)] * 3), log, None, loop=LOOP)
    assert made.steps == 3
    assert other_loop(EAGER, made, LOOP) is None


def test_no_eager_step_is_no_loop() -> None:
    once = eager_log((BIG, 3))
    (note,) = predicted_pass("eager", once, InductorLog(), None).notes
    assert "(2 launches)" in note.text
    assert loop_of(predicted_pass("eager", once, InductorLog(), None), once) is None
    assert other_loop(EAGER, Pass(name="compiled", engine=""), LOOP) is None


def test_copies_are_counted_apart_from_launches() -> None:
    double = Op(id=0, name="aten.exp.default", inputs=(BIG,), outputs=(replace(BIG, storage="exp"),), location=at(3))
    copy = Op(id=1, name="aten.clone.default", inputs=(BIG,), outputs=(replace(BIG, storage="copy"),), location=at(4))
    made = predicted_pass("eager", OpLog(records=(double, copy)), InductorLog(), None)
    assert "(1 launch and 1 copy or fill)" in made.notes[0].text


def test_what_is_compiled_anew_each_turn_belongs_to_the_step() -> None:
    records: list[Record] = []
    for turn in range(3):
        records += [GraphCall(graph=f"1/{turn}/inference", inputs=(SMALL,)), GraphCall(graph="2/0/inference")]
    _, found = record_steps(OpLog(records=tuple(records)))
    assert found.spans == ((0, 2), (2, 4), (4, 6))


def test_notes_count_one_launch_as_one() -> None:
    one = Activity(kind="kernel", name="k", start_ns=0, end_ns=10, device=0, stream=7)
    trace = Trace(format="", activities=(one,), device=None)
    texts = [n.text for n in measured_pass("imported", "import", trace, None, InductorLog()).notes]
    assert any("(1 launch or copy)" in text for text in texts)
    assert not any("1 launches" in text for text in texts)


def test_a_turn_that_calls_several_versions_of_a_graph_is_not_set_against_one_call() -> None:
    """Ten calls with ten strings a turn: eager repeats every call, compiled every turn (each version is its own)."""
    versions = tuple(graph(f"{i}/0/inference", BIG, at(3)) for i in range(8))
    log = InductorLog(graphs=versions)
    turn = compiled_log(*[(g.id, BIG) for g in versions])
    built = predicted_pass("compiled", OpLog(records=turn.records * 4), log, None)
    assert len(built.kernels) == 8
    note = other_steps(EAGER, built)
    assert note is not None
    assert not note.blocks
    assert f"{FILE}:3 8 times, eager's once" in note.text


def test_one_call_a_step_is_the_same_work() -> None:
    one = predicted_pass("compiled", compiled_log(*[(HUGE.id, BIG)] * 3), LOG, None)
    assert other_steps(EAGER, one) is None
    backward = replace(HUGE, id="0/0/backward", kind="backward")
    pair = [(HUGE.id, BIG), (backward.id, BIG)]
    trained = predicted_pass("compiled", compiled_log(*pair * 3), InductorLog(graphs=(HUGE, backward)), None)
    assert len(trained.kernels) == 2
    assert other_steps(EAGER, trained) is None


def test_generated_code_that_flattens_an_operand_is_of_the_same_loop() -> None:
    scalar = Tensor.contiguous((), "float32", "gain")
    ops = [
        Op(id=i, name="aten.add.Tensor", inputs=(BIG, scalar), outputs=(replace(BIG, storage=f"o{i}"),), location=at(3))
        for i in range(3)
    ]
    eager_log = OpLog(records=tuple(ops))
    eager = predicted_pass("eager", eager_log, InductorLog(), None)
    loop = loop_of(eager, eager_log)
    flat = replace(scalar, shape=(1,), strides=(1,))
    made = graph("0/0/inference", BIG, at(3))
    made = replace(made, inputs=(BIG, flat), calls=(replace(made.calls[0], reads=(BIG, flat)),))
    calls = OpLog(records=tuple(GraphCall(graph=made.id, inputs=(BIG, scalar), outputs=(BIG,)) for _ in range(3)))
    compiled = predicted_pass("compiled", calls, InductorLog(graphs=(made,)), None, loop=loop)
    assert other_loop(eager, compiled, loop) is None


def test_a_number_that_became_an_input_makes_no_other_loop() -> None:
    """``f(x, 0.5 + i)``: the compiled graph takes the float as an input, eager ops have it as an argument."""
    number = Tensor.contiguous((), "float64", "s")
    assert LOOP is not None
    assert LOOP.has(frozenset([(FILE, 3)]), (BIG, number)) is True
    assert LOOP.has(frozenset([(FILE, 3)]), (SMALL, number)) is False
