"""Programs that nobody can look into are blocked, whatever engine made them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from builders import DEVICE, MEGA, call, compiled, eager, graph, op, program, t

from fusionaudit.findings import Note
from fusionaudit.pipeline import audit_program
from fusionaudit.program.judgeable import judging_notes, log_notes
from fusionaudit.program.model import Kernel, Pass, Program


def kernels(*categories: str, name: str = "k", duration_ns: int | None = 1000) -> tuple[Kernel, ...]:
    return tuple(
        Kernel(id=i, name=f"{name}{i}", category=c, duration_ns=duration_ns)  # type: ignore[arg-type]
        for i, c in enumerate(categories)
    )


FINE = eager(op("relu", [t("x", MEGA)], t("y", MEGA)))


@pytest.mark.parametrize(
    ("blocked", "kind"),
    [
        (Program(engine="import", device=None, passes=()), "no-kernels"),
        (program(Pass(name="eager", engine="nsys")), "no-kernels"),
        (program(FINE, Pass(name="compiled", engine="nsys", kernels=kernels("memcpy", "memset"))), "only-copies"),
        (program(FINE, Pass(name="compiled", engine="nsys", kernels=kernels("opaque"))), "unknown-kernels"),
        (program(Pass(name="imported", engine="import", kernels=kernels("pointwise"))), "unknown-kernels"),
        (program(eager(op("mylib.attend.default", [t("x", MEGA)], t("y", MEGA)))), "unknown-kernels"),
    ],
)
def test_nothing_to_judge_is_cannot_judge(blocked: Program, kind: str) -> None:
    (note,) = judging_notes(blocked)
    assert (note.kind, note.blocks) == (kind, True)
    assert note.remedy
    result = audit_program(blocked)
    assert result.exit_code == result.document["exit_code"] == 2


@pytest.mark.parametrize(
    "fine",
    [
        program(FINE),
        program(eager(op("mm", [t("a", 64, 64), t("b", 64, 64)], t("c", 64, 64)))),
        program(eager(op("sort", [t("a", 64)], t("c", 64), t("i", 64, dtype="int64")))),
        program(FINE, Pass(name="clean", engine="nsys", kernels=kernels("opaque"))),
        program(Pass(name="compiled", engine="nsys", kernels=(*kernels("opaque"), replace(FINE.kernels[0], id=1)))),
    ],
)
def test_what_is_known_well_enough_is_judged(fine: Program) -> None:
    assert judging_notes(fine) == ()


def test_a_capture_that_is_blocked_already_says_it_once() -> None:
    broken = replace(program(Pass(name="eager", engine="nsys")), notes=(Note(kind="x", text="y", blocks=True),))
    assert judging_notes(broken) == ()


def generated(name: str, **figures: int | None) -> Pass:
    kernel = Kernel(id=0, name=name, category="pointwise", graph="0/0/inference", **figures)  # type: ignore[arg-type]
    return Pass(name="imported", engine="import", kernels=(kernel,))


def test_a_log_whose_sizes_are_too_fast_for_the_memory_is_of_another_run() -> None:
    x, y = t("x", 64 * MEGA), t("y", 64 * MEGA)
    log = compiled(graph(call("triton_poi_fused_relu_0", [x], [y]))).log
    moved = {"read_bytes": 256 * MEGA, "write_bytes": 256 * MEGA}
    slow = generated("triton_poi_fused_relu_0", duration_ns=130_000, **moved)
    assert log_notes(slow, log, "f", DEVICE) == []
    fast = generated("triton_poi_fused_relu_0", duration_ns=50_000, **moved)
    (note,) = log_notes(fast, log, "f", DEVICE)
    assert (note.kind, note.blocks) == ("log-mismatch", True)
    small = generated("triton_poi_fused_relu_0", duration_ns=1_000, read_bytes=16 * MEGA, write_bytes=16 * MEGA)
    assert log_notes(small, log, "f", DEVICE) == [], "from the cache"


def test_a_trifle_that_inductor_made_does_not_block() -> None:
    ours = replace(FINE.kernels[0], duration_ns=100_000)
    trifle = Kernel(id=1, name="triton_poi_fused_0", category="pointwise", duration_ns=1000)
    p = Pass(name="imported", engine="import", kernels=(ours, trifle))
    (note,) = log_notes(p, compiled().log, "f", None)
    assert (note.kind, note.blocks) == ("missing-log", False)
