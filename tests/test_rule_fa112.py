"""FA112: graph break splits a chain."""

from __future__ import annotations

from dataclasses import replace

from builders import MEGA, eager, line, op, run, t, warnings

from fusionaudit.inductor.model import GraphBreak, InductorLog
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
