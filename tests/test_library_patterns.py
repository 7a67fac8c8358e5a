"""What a library has as one call is named, however it is written: softmax to optimizers, with the call and the line.

Each function of ``library_spellings.py`` is recorded once, as the engine without a GPU sees it, and judged by itself.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

import library_spellings as spellings  # noqa: E402
from builders import eager, program  # noqa: E402

from fusionaudit.capture.deviceless import DevicelessSession  # noqa: E402
from fusionaudit.capture.recorder import Recorder  # noqa: E402
from fusionaudit.config import Config  # noqa: E402
from fusionaudit.device import find_target  # noqa: E402
from fusionaudit.findings import Finding  # noqa: E402
from fusionaudit.rules import run_rules  # noqa: E402
from fusionaudit.trace.oplog import read_oplog  # noqa: E402
from fusionaudit.trace.schema import Op  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is there: the engine is for machines without one"),
]

NAMED = [name for name, (_, call, _) in spellings.CASES.items() if call is not None]
SILENT = [name for name, (_, call, _) in spellings.CASES.items() if call is None]
FILE = spellings.__file__


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Op, ...]]:
    folder = tmp_path_factory.mktemp("spellings")
    recorder = Recorder(folder / "ops.jsonl")
    session = DevicelessSession(device=find_target("h200"), folder=folder, pass_name="eager", recorder=recorder)
    space: dict[str, Any] = {"__name__": "spellings"}
    code = compile(Path(FILE).read_text(), FILE, "exec")
    try:
        with session, recorder.recording():
            exec(code, space)
            space["main"]()
    finally:
        recorder.close()
    log = read_oplog(folder / "ops.jsonl")
    lines = {name: inspect.getsourcelines(function) for name, (function, _, _) in spellings.CASES.items()}
    spans = {name: range(first, first + len(text)) for name, (text, first) in lines.items()}
    return {
        name: tuple(r for r in log.records if isinstance(r, Op) and r.location is not None and r.location.line in span)
        for name, span in spans.items()
    }


def findings(ops: Sequence[Op]) -> list[Finding]:
    """As one step whose arguments change in every step, so that nothing is a constant."""
    return run_rules(program(replace(eager(*ops), repeated=frozenset())), Config())


def calls(found: list[Finding]) -> list[Finding]:
    """Those that name a library's call."""
    return [f for f in found if "library" in f.evidence]


def marked(name: str) -> int:
    text, first = inspect.getsourcelines(spellings.CASES[name][0])  # type: ignore[arg-type]
    return first + next(i for i, line in enumerate(text) if "  # " in line and not line.lstrip().startswith("@"))


@pytest.mark.parametrize("name", NAMED)
def test_the_call_is_named_at_its_line(name: str, recorded: dict[str, tuple[Op, ...]]) -> None:
    _, call, grad = spellings.CASES[name]
    found = findings(recorded[name])
    forward = [f for f in calls(found) if f.key == "forward"]
    assert [f.location and f.location.line for f in forward] == [marked(name)], [(f.message, f.remedy) for f in found]
    (finding,) = forward
    assert call is not None
    assert call in finding.remedy
    assert finding.reason is None
    assert finding.avoidable_bytes is not None
    assert finding.avoidable_bytes >= 0
    assert finding.evidence["minimum_bytes"] <= finding.evidence["global_bytes"]
    backward = [f for f in calls(found) if f.key == "backward"]
    assert all(f"in the backward of line {marked(name)}" in f.message and call in f.remedy for f in backward)
    assert len(backward) <= int(grad)


@pytest.mark.parametrize("name", SILENT)
def test_who_uses_the_call_is_left_alone(name: str, recorded: dict[str, tuple[Op, ...]]) -> None:
    assert not [(f.message, f.remedy) for f in calls(findings(recorded[name]))]
