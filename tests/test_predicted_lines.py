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


def graph(kind: str) -> CompiledGraph:
    calls = tuple(
        GeneratedCall(
            index=i, kind="triton", target="k", category="pointwise", aten=("aten.abs",), nodes=(),
            reads=(X,), writes=(X,), read_bytes=32, write_bytes=32, location=place,
        )
        for i, place in enumerate((None, OWN))
    )  # fmt: skip
    return CompiledGraph(id=f"0/0/{kind}", compile_id="0/0", kind=kind, inputs=(X,), calls=calls, kernels=(), source="")  # type: ignore[arg-type]


def test_a_kernel_without_a_line_has_the_callers() -> None:
    records = (GraphCall(graph="0/0/forward", location=LOSS), GraphCall(graph="0/0/backward", location=BACKWARD))
    log = InductorLog(graphs=(graph("forward"), graph("backward")))
    made = predicted_pass("compiled", OpLog(records=records), log, None)
    assert [k.location for k in made.kernels] == [LOSS, OWN, LOSS, OWN]
