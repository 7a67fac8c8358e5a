"""What is said of a pass that takes long: how far it is, and once what would make it shorter."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from fusionaudit.capture import progress, session
from fusionaudit.capture.engines import Choice
from fusionaudit.capture.environment import Facts
from fusionaudit.capture.process import Ended
from fusionaudit.capture.progress import progress_of
from fusionaudit.errors import AuditError


def op(number: int, line: int) -> dict[str, Any]:
    return {"kind": "op", "id": number, "name": "aten.mm.default", "location": {"file": "/a/model.py", "line": line}}


def test_a_long_pass_says_how_far_it_is_and_the_hint_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FIRST_S", "MOST_S", "HINT_S"):
        monkeypatch.setattr(progress, name, 0.05)
    said: list[str] = []

    def say(text: str) -> None:
        said.append(text.partition(" s, ")[2] or text)

    def wait_for(what: str) -> None:
        for _ in range(2000):
            if what in said:
                return
            time.sleep(0.01)
        raise AssertionError(said)

    path = tmp_path / "ops.jsonl"
    with progress_of("eager", path, say, hint="a hint"):
        wait_for("nothing recorded yet")
        with path.open("w") as file:
            for record in ({"kind": "step", "index": 0}, op(0, 3), op(1, 4)):
                print(json.dumps(record, separators=(",", ":")), file=file)
            file.write('{"kind":"op","name":"aten.cut')
        wait_for("2 ops, 1 step, last aten.mm.default at model.py:4")
        graph = json.dumps({"kind": "graph", "graph": "0/0/forward", "location": None}, separators=(",", ":"))
        with path.open("a") as file:
            print(f'"}}\n{graph}', file=file)
        wait_for("4 ops, 1 step, last graph 0/0/forward")
    assert said.count("eager: a hint") == 1
    count = len(said)
    time.sleep(0.2)
    assert len(said) == count, "the pass is over"


def test_a_short_pass_says_nothing(tmp_path: Path) -> None:
    said: list[str] = []
    with progress_of("eager", tmp_path / "ops.jsonl", said.append, hint="a hint"):
        pass
    assert not said


@pytest.mark.parametrize("shapes_only", [False, True])
def test_past_the_time_limit_the_way_without_arithmetic_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shapes_only: bool
) -> None:
    choice = Choice(engine="deviceless", nsys=None, facts=Facts(), why="")
    monkeypatch.setattr(session, "choose_engine", lambda *_, **__: choice)
    monkeypatch.setattr(session, "run_child", lambda *_, **__: Ended(returncode=-9, timed_out=True))
    script = tmp_path / "s.py"
    script.touch()
    options = session.RunOptions(script=str(script), out=tmp_path / "out", timeout_s=60, shapes_only=shapes_only)
    with pytest.raises(AuditError, match=r"eager pass: stopped after 60 s \(--timeout\)") as caught:
        session.run_capture(options)
    assert ("--shapes-only skips the arithmetic" in str(caught.value)) is not shapes_only
