"""The recorder's steps: a loop inside a step is not taken for the step, and clean passes repeat what was recorded.

step:   unbind (view)  [ mul tanh ] [ mul tanh ] [ mul tanh ]     three inner rounds, four steps
"""

from __future__ import annotations

from fusionaudit.findings import Location
from fusionaudit.program.records import activity_steps, places_of, record_steps, same_launches
from fusionaudit.program.steps import unlike_steps
from fusionaudit.tensors import Tensor
from fusionaudit.trace.schema import Activity, Op, OpLog, RangeOp, StepMark, StopMark

X = Tensor.contiguous((1024,), "float32", "x")
ROUND = ("aten.mul.Tensor", "aten.tanh.default")
STEP = ("aten.unbind.int", *ROUND * 3)


def oplog(steps: int) -> OpLog:
    names = ["aten.randn.default", *STEP * steps]
    return OpLog(records=tuple(Op(id=i, name=n, inputs=(X,), outputs=(X,)) for i, n in enumerate(names)))


def activities(log: OpLog) -> list[Activity]:
    return [
        Activity(
            kind="kernel", name=r.name, start_ns=i * 10, end_ns=i * 10 + 5, device=0, stream=7,
            op=RangeOp(name=r.name, op_id=r.id, recorded=True),
        )
        for i, r in enumerate(log.records)
        if isinstance(r, Op) and r.name != "aten.unbind.int"
    ]  # fmt: skip


def test_views_tell_a_step_from_the_loop_inside_it() -> None:
    records, found = record_steps(oplog(4))
    assert [b - a for a, b in found.spans] == [7] * len(found.spans)
    assert len(found.spans) >= 3
    assert isinstance(records[found.spans[-1][0]], Op)


def test_steps_of_the_recorder_are_those_of_the_launches() -> None:
    log = oplog(4)
    found = activity_steps(activities(log), log)
    assert found is not None
    assert {b - a for a, b in found.spans} == {6}, "six launches a step, not the two of one round"


def test_launches_that_do_not_lie_together_are_no_step() -> None:
    log = oplog(4)
    mixed = activities(log)
    mixed[3], mixed[-1] = mixed[-1], mixed[3]
    assert activity_steps(mixed, log) is None


def test_a_clean_pass_is_cut_like_the_recorded_one() -> None:
    clean = activities(oplog(4))
    found = same_launches(clean, list(ROUND * 3))
    assert found is not None
    assert found.spans == ((1, 7), (7, 13), (13, 19), (19, 25))
    assert same_launches(clean, []) is None
    assert same_launches(clean, ["something else"]) is None


def test_layers_of_one_shape_are_no_steps() -> None:
    """Two steps of three equal layers: the weights that come round again tell where a step starts."""
    weights = [Tensor.contiguous((1024,), "float32", f"w{i}") for i in range(3)]
    names = [Op(id=i, name="aten.randn.default", outputs=(w,)) for i, w in enumerate(weights)]
    value, records = X, list(names)
    for _ in range(2):
        for weight in weights:
            for name in ROUND:
                made = Tensor.contiguous((1024,), "float32", f"v{len(records)}")
                reads = (value, weight) if name == ROUND[0] else (value,)
                records.append(Op(id=len(records), name=name, inputs=reads, outputs=(made,)))
                value = made
    _, found = record_steps(OpLog(records=tuple(records)))
    assert [b - a for a, b in found.spans] == [6, 6]


def stopped_after(names: str, *, weights: str = "", marks: str = "") -> list[tuple[int, int]]:
    """Spans of a script that the audit ended: a letter an op, its weight below it, ``|`` where a step is marked."""
    records: list[Op | StepMark] = []
    for i, name in enumerate(names):
        if marks[i : i + 1] == "|":
            records.append(StepMark(index=i))
        reads = [Tensor.contiguous((1024,), "float32", f"v{i}")]
        if weights[i : i + 1].strip():
            reads.append(Tensor.contiguous((1024,), "float32", weights[i]))
        made = Tensor.contiguous((1024,), "float32", f"v{i + 1}")
        records.append(Op(id=i, name=f"aten.{name}.Tensor", inputs=tuple(reads), outputs=(made,)))
    return list(record_steps(OpLog(records=tuple(records), stopped=StopMark(asked=".item()")))[1].spans)


def test_of_a_script_that_was_ended_only_whole_steps_count() -> None:
    assert stopped_after("abcabcabc") == [(0, 3), (3, 6), (6, 9)]
    assert stopped_after("abcd") == [(0, 4)], "nothing repeats: no step"
    assert record_steps(OpLog(records=(), stopped=StopMark(asked="")))[1].source == "whole"


def test_layers_of_a_step_that_was_cut_are_no_steps() -> None:
    alike = "abababab"
    assert stopped_after(alike, weights="x.x.x.x.".replace(".", " ")) == [(0, 2), (2, 4), (4, 6), (6, 8)]
    assert stopped_after(alike, weights="x y z w ") == [(0, 8)]


def test_a_marked_step_that_was_cut_does_not_count() -> None:
    assert stopped_after("abcabcab", marks="|  |  | ") == [(0, 3), (3, 6)]
    assert stopped_after("abcxabcab", marks="|   |  | ") == [(4, 7)], "the first step is a warm-up"
    assert stopped_after("abcab", marks="|  | ") == [(0, 3)], "one whole step"
    assert stopped_after("abcabcd", marks="|  |   ") == [(0, 3), (3, 6)], "the last step was whole"
    assert stopped_after("sab", marks=" | ") == [(0, 3)], "only a cut one: all that was recorded"


def test_a_checksum_that_repeats_is_not_the_step_of_a_script_that_compiles() -> None:
    """Two calls of the compiled function, two checksums: the compiled pass ran only the latter outside its graph."""
    x = Tensor.contiguous((1 << 20,), "float32", "x")
    work = [("mul", 3), ("exp", 4)] * 2 + [("_to_copy", 9), ("nan_to_num", 9), ("sum", 9)] * 2
    ops = tuple(
        Op(id=i, name=f"aten.{n}.Tensor", inputs=(x,), outputs=(x,), location=Location(file="s.py", line=line))
        for i, (n, line) in enumerate(work)
    )
    log, compiled = OpLog(records=ops), OpLog(records=ops[4:])
    assert record_steps(log)[1].spans == ((4, 7), (7, 10)), "nothing is known of what is compiled"
    assert record_steps(log, outside=places_of(compiled))[1].spans == ((0, 2), (2, 4))
    assert record_steps(log, outside=places_of(log))[1].spans == ((4, 7), (7, 10)), "nothing was compiled"
    once = OpLog(records=ops[2:])
    assert record_steps(once, outside=places_of(compiled))[1].source == "whole", "one call is no step that repeats"


def unlike(turns: int, *, layers: bool = False) -> OpLog:
    """``x[r] @ w`` with another number of rows each turn; ``layers``: each turn has weights of its own."""
    records: list[Op] = []

    def add(name: str, line: int, reads: tuple[Tensor, ...], *shape: int) -> Tensor:
        made = Tensor.contiguous(shape, "float32", f"v{len(records)}")
        place = Location(file="moe.py", line=line, function="f")
        records.append(Op(id=len(records), name=name, inputs=reads, outputs=(made,), location=place))
        return made

    weights = [add("aten.randn.default", 1, (), 256, 256) for _ in range(turns if layers else 1)]
    x = add("aten.randn.default", 2, (), 1024, 256)
    for turn in range(turns):
        rows = 100 + 7 * turn
        picked = add("aten.index.Tensor", 5, (x,), rows, 256)
        product = add("aten.mm.default", 6, (picked, weights[turn % len(weights)]), rows, 256)
        add("aten.gelu.default", 7, (product,), rows, 256)
    return OpLog(records=tuple(records))


def test_steps_of_other_sizes_each_are_steps_where_they_share_their_weights() -> None:
    records, found = record_steps(unlike(4))
    assert (found.source, len(found.spans), found.alike) == ("period", 4, False)
    assert next(r.name for r in records[slice(*found.spans[-1])] if isinstance(r, Op)) == "aten.index.Tensor"
    (note,) = unlike_steps(found, "eager")
    assert "the last of 4" in note.text
    _, alike = record_steps(oplog(4))
    assert alike.alike
    assert not unlike_steps(alike, "eager")


def test_layers_of_other_widths_are_no_steps() -> None:
    assert record_steps(unlike(4, layers=True))[1].alike


def test_a_function_of_several_sizes_has_no_steps() -> None:
    calls = [Tensor.contiguous((100 + i,), "float32", f"x{i}") for i in range(4)]
    names = [(n, x) for x in calls for n in ROUND]
    place = Location(file="f.py", line=1, function="f")
    ops = [Op(id=i, name=n, inputs=(x,), outputs=(x,), location=place) for i, (n, x) in enumerate(names)]
    assert record_steps(OpLog(records=tuple(ops)))[1].source == "whole"


def test_a_copy_of_a_fresh_host_value_belongs_to_the_step() -> None:
    """A long prompt, then tokens: each starts with a copy of the position that the host makes anew."""
    weights = [Tensor.contiguous((1024,), "float32", f"w{i}") for i in range(3)]
    records: list[Op] = []
    for turn in range(6):
        host = Tensor.contiguous((1,), "int64", f"h{turn}", "cpu")
        position = Tensor.contiguous((1,), "int64", f"p{turn}")
        value = position
        if turn:
            records.append(Op(id=len(records), name="aten._to_copy.default", inputs=(host,), outputs=(position,)))
        for weight in weights:
            for name in ("mul", "exp", "sin", "cos", "tanh", "neg"):
                reads = (value, weight)
                value = Tensor.contiguous((1024 if turn else 1 << 20,), "float32", f"v{len(records)}")
                records.append(Op(id=len(records), name=f"aten.{name}.default", inputs=reads, outputs=(value,)))
    _, found = record_steps(OpLog(records=tuple(records)))
    assert found.spans[-1] == (94, 113)
