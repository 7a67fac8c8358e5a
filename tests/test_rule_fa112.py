"""FA112: graph break splits a chain."""

from __future__ import annotations

from dataclasses import replace

from builders import MEGA, call, compiled, eager, graph, line, op, run, t, warnings

from fusionaudit.findings import Note
from fusionaudit.inductor.model import CompiledGraph, GraphBreak, InductorLog
from fusionaudit.rules import fa112

N = 64 * MEGA


def broken(at: int):
    log = InductorLog(breaks=(GraphBreak(location=line(at), reason="Call to `torch._dynamo.graph_break()`"),))
    return replace(eager(name="compiled"), log=log)


def chain():
    return eager(op("mul", [t("x", N)], t("a", N), at=3), op("relu", [t("a", N)], t("y", N), at=5))


def test_a_break_between_two_ops_of_a_chain():
    (found,) = warnings(fa112, chain(), broken(4))
    assert found.avoidable_bytes == 2 * 4 * N
    assert found.location is not None
    assert found.location.line == 4


def test_information_where_no_chain_crosses():
    (found,) = run(fa112, chain(), broken(9))
    assert found.severity == "info"


def test_silent_without_breaks():
    assert not run(fa112, chain(), eager(name="compiled"))


def part(name: str, at: int, *ops: str) -> CompiledGraph:
    return graph(call(f"triton_{name[0]}", [t("i", N)], [t("o", N)], aten=ops, at=at), name=name)


def long_chain():
    return eager(
        op("mul", [t("x", N)], t("a", N), at=3),
        op("relu", [t("a", N)], t("b", N), at=5),
        op("tanh", [t("b", N)], t("y", N), at=5),
    )


def test_a_break_between_helpers_whose_lines_lie_on_one_side_of_it():
    made = compiled(part("0/0/forward", 3, "mul"), part("1/0/forward", 5, "relu"))
    stop = GraphBreak(location=line(9), reason="graph_break()", compile_id="0/0")
    made = replace(made, log=replace(made.log, breaks=(stop,)))
    (found,) = warnings(fa112, chain(), made)
    assert found.location == line(9)
    assert found.avoidable_bytes == 2 * 4 * N
    assert found.evidence["launches"] == 1
    assert found.kernel_ids == (0, 1)


def test_a_break_in_a_line_between_ops_of_one_graph_splits_nothing():
    made = compiled(graph(call("triton_0", at=3), call("triton_1", at=5), name="0/0/forward"))
    made = replace(made, log=replace(made.log, breaks=broken(4).log.breaks))
    (found,) = run(fa112, chain(), made)
    assert found.severity == "info"


def test_functions_that_are_compiled_apart():
    made = compiled(part("0/0/forward", 3, "mul"), part("1/0/forward", 5, "relu", "tanh"))
    (found,) = warnings(fa112, long_chain(), made, uses_compile=True)
    assert found.avoidable_bytes == 2 * 4 * N
    assert found.location == line(5)
    assert "compile the function that calls both" in (found.remedy or "")
    chosen_here = replace(made, notes=(Note(kind="compiled-for-you", text="f, g"),))
    assert not run(fa112, long_chain(), chosen_here)


def test_versions_of_one_function_are_one():
    made = compiled(part("0/0/forward", 3, "mul"), part("0/1/forward", 5, "relu", "tanh"))
    assert not run(fa112, long_chain(), made, uses_compile=True)


def test_ops_beside_a_graph():
    made = compiled(part("0/0/forward", 5, "relu", "tanh"), loose=[op("mul", [t("x", N)], t("a", N), at=3)])
    (found,) = run(fa112, long_chain(), made, uses_compile=True)
    assert found.severity == "info"
    assert found.avoidable_bytes == 2 * 4 * N
    assert "partly outside" in found.message


def test_a_line_that_two_functions_share_is_not_placed():
    both = [part("0/0/forward", 3, "mul"), part("1/0/forward", 3, "mul"), part("2/0/forward", 5, "relu", "tanh")]
    assert not run(fa112, long_chain(), compiled(*both), uses_compile=True)
