"""Kernels of compiled code without a line of their own (torch's own modules) belong to the line that called them."""

from __future__ import annotations

from fusionaudit.findings import Location
from fusionaudit.inductor.model import CompiledGraph, GeneratedCall, InductorLog
from fusionaudit.program.predicted import predicted_pass
from fusionaudit.tensors import Tensor
from fusionaudit.trace.schema import GraphCall, OpLog

X = Tensor.contiguous((4, 2), "float32", "arg0_1")
LOSS = Location(file="/home/ada/net.py", line=9, function="main")
BACKWARD = Location(file="/home/ada/net.py", line=10, function="main")
OWN = Location(file="/home/ada/net.py", line=3, function="forward")


def graph(kind: str, *places: Location | None) -> CompiledGraph:
    calls = tuple(
        GeneratedCall(
            index=i, kind="triton", target="k", category="pointwise", aten=("aten.abs",), nodes=(),
            reads=(X,), writes=(X,), read_bytes=32, write_bytes=32, location=place,
        )
        for i, place in enumerate(places)
    )  # fmt: skip
    return CompiledGraph(id=f"0/0/{kind}", compile_id="0/0", kind=kind, inputs=(X,), calls=calls, kernels=(), source="")  # type: ignore[arg-type]


def test_kernels_of_a_graph_without_lines_have_the_callers() -> None:
    records = (GraphCall(graph="0/0/forward", location=LOSS), GraphCall(graph="0/0/backward", location=BACKWARD))
    log = InductorLog(graphs=(graph("forward", None, None), graph("backward", None)))
    made = predicted_pass("compiled", OpLog(records=records), log, None)
    assert [k.location for k in made.kernels] == [LOSS, LOSS, LOSS]
    # In the user's own code the caller is the head of the function: no better than no line.
    log = InductorLog(graphs=(graph("forward", None, OWN), graph("backward", OWN, None)))
    made = predicted_pass("compiled", OpLog(records=records), log, None)
    assert [k.location for k in made.kernels] == [None, OWN, OWN, None]
