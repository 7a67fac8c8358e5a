"""Figures in words: one style of units, plurals, launches and copies apart, nothing said twice."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from builders import MEGA, eager, op, program, t
from click.testing import CliRunner
from rich.console import Console

from fusionaudit import figures
from fusionaudit.capture import environment
from fusionaudit.capture.environment import Facts
from fusionaudit.cli import main
from fusionaudit.findings import Location, Note
from fusionaudit.inductor.model import GraphBreak, InductorLog
from fusionaudit.pipeline import audit_program
from fusionaudit.program.model import Kernel, Program
from fusionaudit.report.console import render_console
from fusionaudit.report.markdown import render_markdown
from fusionaudit.rules import RULES, fa112
from fusionaudit.rules.judging import human_bytes, human_time

X, Y, Z = (t(n, 64 * MEGA) for n in "xyz")
CHAIN = eager(op("exp", [X], Y), op("neg", [Y], Z))


def shown(p: Program) -> str:
    out = io.StringIO()
    render_console(audit_program(p).document, Console(file=out, width=80))
    return out.getvalue()


def with_copies() -> Program:
    copy = Kernel(id=2, name="[CUDA memcpy DtoH]", category="memcpy", read_bytes=4, write_bytes=0, duration_ns=900)
    second = Kernel(
        id=3, name="second kernel of neg", category="pointwise", ops=(1,), read_bytes=0, write_bytes=0, duration_ns=900
    )
    return program(replace(CHAIN, kernels=(*CHAIN.kernels, copy, second)))


def test_words() -> None:
    assert [figures.counted(n, "kernel") for n in (0, 1, 2, 1234)] == [
        "0 kernels",
        "1 kernel",
        "2 kernels",
        "1,234 kernels",
    ]
    assert [figures.times(n) for n in (1, 2)] == ["once", "2 times"]
    assert figures.launched(9, 0) == "9 launches"
    assert figures.launched(1, 1) == "1 launch and 1 copy or fill"
    assert figures.launched(48, 11) == "48 launches and 11 copies and fills"
    assert human_bytes(8192) == "8.19 kB"
    assert human_time(251) == "251 ns"


def test_the_header_counts_as_the_table_does() -> None:
    text = shown(with_copies())
    assert "Kernels, eager  3 launches and 1 copy or fill per step, in order" in text
    assert re.search(r"^launches +3$", text, re.M)
    assert re.search(r"^copies and fills +1$", text, re.M)
    assert "3 launches and 1 copy or fill per step" in render_markdown(audit_program(with_copies()).document)


def test_a_long_header_is_wrapped() -> None:
    many = tuple(replace(k, id=2 * i + j) for i in range(600) for j, k in enumerate(CHAIN.kernels))
    copies = tuple(Kernel(id=5000 + i, name=f"copy {i}", category="memcpy", duration_ns=9) for i in range(1000))
    text = shown(program(replace(CHAIN, kernels=(*many, *copies))))
    assert "Kernels, eager\n1,200 launches and 1,000 copies and fills per step, in order" in text
    assert max(len(line) for line in text.splitlines()) <= 80


def test_a_further_launch_of_an_op_has_no_bytes_of_its_own() -> None:
    text = shown(with_copies())
    (line,) = [one for one in text.splitlines() if "second kernel of neg" in one]
    assert "0 B" not in line
    assert re.search(r"900 ns +- ", line)


def test_a_pass_that_ran_the_same_is_not_shown_twice() -> None:
    text = shown(program(CHAIN, replace(CHAIN, name="compiled")))
    assert text.count("aten.exp.default") == 1
    assert "the same as above" in text


def test_a_note_names_its_pass_once() -> None:
    note = Note(kind="no-steps", text="eager: no repeating step found", pass_name="eager")
    assert "- no-steps (eager): no repeating step found" in shown(program(replace(CHAIN, notes=(note,))))


def test_a_graph_break_says_its_reason_once() -> None:
    broken = GraphBreak(reason="print is not traced", location=Location(file="/s.py", line=2))
    p = replace(CHAIN, name="compiled", log=InductorLog(breaks=(broken,)))
    (finding,) = fa112.check(program(p), audit_config())
    assert finding.reason == broken.reason
    assert broken.reason not in finding.message


def audit_config() -> Any:
    from fusionaudit.config import Config

    return Config()


def test_no_bracketed_plurals() -> None:
    package = Path(figures.__file__).parent
    for path in package.rglob("*.py"):
        assert not re.search(r"(kernel|time|chain|launch|graph|result|tensor)\(e?s\)", path.read_text()), path


@pytest.mark.parametrize("code", [None, *(r.CODE for r in RULES)])
def test_rules_fit_80_columns(code: str | None) -> None:
    result = CliRunner().invoke(main, ["rules", *([code] if code else [])])
    assert result.exit_code == 0
    assert max(len(line) for line in result.stdout.splitlines()) <= 80
    if code == "FA101":
        assert result.stdout.startswith("FA101: Unfused elementwise chain.\n\nWhat: ")


def test_doctor_does_not_promise_an_engine_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "find_nsys", lambda _: None)
    (without,) = environment._nsys_checks(None, Facts(reason="no GPU"))
    assert "kineto" not in without.detail
    (with_gpu,) = environment._nsys_checks(None, Facts(gpu={"name": "NVIDIA H200"}))
    assert "kineto engine is used" in with_gpu.detail
