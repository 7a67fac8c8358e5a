"""FA112: graph break splits a chain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from builders import MEGA, call, compiled, eager, graph, line, op, run, t, warnings

from fusionaudit.findings import Finding, Note
from fusionaudit.inductor.model import CompiledGraph, GraphBreak, InductorLog
from fusionaudit.rules import fa112
from fusionaudit.rules.chain_findings import chains_of
from fusionaudit.trace.schema import Op

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


def test_a_break_behind_a_pattern_that_a_library_has():
    ops = (
        op("mul", [t("x", N)], t("s", N), at=3, arguments=({"tensor": 0}, 1.702)),
        op("sigmoid", [t("s", N)], t("g", N), at=3),
        op("mul", [t("x", N), t("g", N)], t("a", N), at=3),
        op("mul", [t("a", N), t("w", N)], t("b", N), at=5),
        op("tanh", [t("b", N)], t("y", N), at=5),
    )
    assert [c.library is not None for c in chains_of(eager(*ops))] == [True, False]
    graphs = [part("0/0/forward", 3, "mul", "sigmoid"), part("1/0/forward", 5, "mul", "tanh")]
    stop = GraphBreak(location=line(4), reason="print", compile_id="0/0")
    made = compiled(*graphs)
    (found,) = warnings(fa112, eager(*ops), replace(made, log=replace(made.log, breaks=(stop,))))
    assert found.avoidable_bytes == 2 * 4 * N
    assert "splits 1 chain (mul, sigmoid, mul x2, tanh)" in found.message


def beside(function: str, *more: Op, parts: Sequence[CompiledGraph] = ()) -> list[Finding]:
    """A break in line 2 of ``f``, whose graph is one; ``relu`` and ``tanh`` of line 5 are in none."""
    at = replace(line(5), function=function)
    after = [op("relu", [t("a", N)], t("b", N)), op("tanh", [t("b", N)], t("c", N))]
    after = [replace(o, location=at) for o in after]
    whole = eager(op("mul", [t("x", N)], t("a", N), at=1), op("neg", [t("a", N)], t("a", N), at=3), *after, *more)
    made = compiled(part("0/0/forward", 1, "mul"), part("0/0/forward", 3, "neg"), *parts, loose=after)
    stop = GraphBreak(location=line(2), reason="graph_break()", compile_id="0/0")
    return run(fa112, whole, replace(made, log=replace(made.log, breaks=(stop,))))


def test_what_runs_outside_any_graph_anyway_is_not_the_price_of_a_break():
    found, apart = beside("main")
    assert found.message == "graph break that no chain crosses"
    assert apart.severity == "info"
    assert "partly outside" in apart.message


def test_what_a_break_left_without_a_graph_is_its_price():
    (found,) = beside("f")
    assert found.avoidable_bytes == 2 * 4 * N


def test_what_runs_between_two_graphs_is_the_price_of_the_break_between_them():
    later = op("sin", [t("c", N)], t("d", N), at=7)
    found = beside("unsupported", later, parts=[part("1/0/forward", 7, "sin")])
    assert found[0].severity == "warning"
    assert found[0].avoidable_bytes == 2 * 4 * N
