"""Which tensor now goes through memory, and between which ops, with and without the ops' own dataflow."""

from __future__ import annotations

from fusionaudit.grouping import flow_of
from fusionaudit.groups import FlowOp, Group, Ref, Section
from fusionaudit.lost_edges import lost_edges

SECTION = Section(pass_name="compiled", kind="forward", graph=True)
BIG, ROW = "f32[64,256]", "f32[256]"


def at(line: int) -> Ref:
    return Ref(file="a.py", function="f", code=f"line {line}", path="/a.py", line=line)


def group(ops: str, lines: tuple[int, ...], reads: tuple[str, ...] = (BIG,), writes: tuple[str, ...] = (BIG,)) -> Group:
    names = tuple(f"aten.{op}" for op in ops.split())
    return Group(section=SECTION, ops=names, reads=reads, writes=writes, refs=tuple(at(n) for n in lines))


def op(name: str, line: int, *sources: int) -> FlowOp:
    return FlowOp(name=f"aten.{name}", ref=at(line), inputs=tuple((s, BIG) for s in sources))


OLD = [group("mul add gelu mul", (1, 2, 3, 4))]


def told(new: list[Group], flow: tuple[FlowOp, ...] = ()) -> list[str]:
    edges = lost_edges(OLD, new, flow)
    return [
        f"{e.producer} {e.producer_ref and e.producer_ref.line} > {' '.join(e.through)} > {e.consumer}" for e in edges
    ]


def test_a_kernel_put_between_two_is_what_the_tensor_goes_through() -> None:
    flow = (op("mul", 1), op("add", 2, 0), op("cumsum", 9, 1), op("gelu", 3, 2), op("mul", 4, 3))
    new = [group("mul add", (1, 2)), group("cumsum", (9,)), group("gelu mul", (3, 4))]
    assert told(new, flow) == ["aten.add 2 > aten.cumsum > aten.gelu"]
    assert told([group("mul add cumsum", (1, 2, 9)), new[2]], flow) == ["aten.add 2 > aten.cumsum > aten.gelu"]


def test_an_op_of_the_same_name_elsewhere_is_no_end() -> None:
    flow = (op("mul", 1), op("add", 2, 0), op("gelu", 3, 1), op("mul", 4, 2))
    assert told([group("mul", (1,)), group("add gelu mul", (2, 3, 4))], flow) == ["aten.mul 1 >  > aten.add"]
    assert told([group("mul add gelu", (1, 2, 3)), group("mul", (4,))], flow) == ["aten.gelu 3 >  > aten.mul"]


def test_tensors_of_one_size_are_not_taken_for_one_another() -> None:
    """The first result is read again after the last: the third kernel reads nothing of the first."""
    flow = (op("mul", 1), op("add", 2, 0), op("gelu", 3, 1))
    new = [group("mul", (1,)), group("add", (2,)), group("gelu", (3,))]
    assert told(new, flow) == ["aten.mul 1 >  > aten.add", "aten.add 2 >  > aten.gelu"]


def test_without_dataflow_the_next_reader_of_the_size_is_taken_and_ops_of_both_are_no_end() -> None:
    new = [group("mul", (1,)), group("add", (2,)), group("gelu", (3,))]
    assert told(new) == ["aten.mul None >  > aten.add", "aten.add None >  > aten.gelu"]
    assert told([group("mul add", (1, 2)), group("mul gelu", (3, 4))]) == ["aten.add None >  > aten.gelu"]
    assert told([group("mul add", (1, 2), writes=(ROW,)), group("gelu", (3,))]) == []


def test_dataflow_comes_from_the_eager_ops_and_passes_over_views() -> None:
    def tensor(storage: str, *shape: int) -> dict[str, object]:
        return {"shape": list(shape), "strides": [1] * len(shape), "dtype": "float32", "storage": storage}

    def row(name: str, inputs: list[str], outputs: list[str], mutated: tuple[int, ...] = ()) -> dict[str, object]:
        place = {"file": "/a.py", "line": 1, "function": "f"}
        sides = {"inputs": [tensor(s, 4) for s in inputs], "outputs": [tensor(s, 4) for s in outputs]}
        return {"name": f"aten.{name}.default", **sides, "mutated": list(mutated), "location": place}

    ops = [
        row("sin", ["x"], ["a"]),
        row("view", ["a"], ["a"]),
        row("add_", ["a", "x"], ["a"], (0,)),
        row("mul", ["a"], ["b"]),
    ]
    flow = flow_of({"passes": [{"name": "eager", "ops": ops}]})
    assert [(o.name, [s for s, _ in o.inputs]) for o in flow] == [
        ("aten.sin", []),
        ("aten.add_", [0]),
        ("aten.mul", [1]),
    ]
    assert flow_of({"passes": []}) == ()
