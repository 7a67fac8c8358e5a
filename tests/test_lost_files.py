"""A file that a pass wrote and that is gone (or empty) is told: without it launches look as if nothing were wrong."""

from __future__ import annotations

from fusionaudit.capture.manifest import CapturedPass
from fusionaudit.findings import Note
from fusionaudit.inductor.model import InductorLog
from fusionaudit.program.build import _lost
from fusionaudit.program.measured import measured_pass
from fusionaudit.program.model import Kernel, Pass
from fusionaudit.trace.schema import OpLog, Trace

EAGER = CapturedPass(name="eager", ops="eager/ops.jsonl")
COMPILED = CapturedPass(name="compiled", ops="compiled/ops.jsonl", log="compiled/torch_logs.txt")


def ran(name: str, kernel: str) -> Pass:
    return Pass(name=name, engine="kineto", kernels=(Kernel(id=0, name=kernel, category="pointwise"),))  # type: ignore[arg-type]


def test_what_the_recorder_wrote_is_gone() -> None:
    for log in (None, OpLog(records=())):
        (note,) = _lost(EAGER, ran("eager", "vectorized"), log, InductorLog())
        assert note.blocks
        assert "eager/ops.jsonl" in note.text
    assert not _lost(CapturedPass(name="clean"), ran("clean", "vectorized"), None, InductorLog())
    assert not _lost(EAGER, Pass(name="eager", engine="kineto"), None, InductorLog()), "nothing ran"


def test_what_inductor_wrote_is_gone() -> None:
    (note,) = _lost(COMPILED, ran("compiled", "triton_poi_fused_add_0"), OpLog(records=()), InductorLog())
    assert note.blocks
    assert "torch_logs.txt" in note.text
    assert not _lost(COMPILED, ran("compiled", "vectorized"), OpLog(records=()), InductorLog()), "nothing was compiled"


def test_a_cut_op_log_is_told_in_a_measured_pass() -> None:
    cut = Note(kind="cut-off", text="cut", blocks=True)
    made = measured_pass(
        "eager", "kineto", Trace(format="", activities=(), device=None), OpLog(records=(), notes=(cut,)), InductorLog()
    )
    assert cut in made.notes
