"""Examples of rules that only measured times can judge: run on a GPU by ``pytest -m gpu``."""

from __future__ import annotations

from pathlib import Path

import pytest

from fusionaudit import pipeline
from fusionaudit.capture.session import RunOptions, run_capture

pytestmark = pytest.mark.gpu

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("fa303_slow_template.py", ("compiled", "FA303")),
        ("fa304_contended_atomics.py", ("eager", "FA304")),
        ("fa118_slice_update.py", ("compiled", "FA118")),
        ("fa301_spilling.py", ("compiled", "FA301")),
    ],
)
def test_a_measured_example_shows_what_it_says(name: str, expected: tuple[str, str], tmp_path: Path) -> None:
    script = tmp_path / name
    # Where a step takes microseconds, a GPU waits for the host, and fewer launches are worth more than bytes (FA118).
    script.write_text(
        (EXAMPLES / name).read_text().replace("4096, 2048", "1 << 17, 2048").replace("4094", "(1 << 17) - 2")
    )
    options = RunOptions(
        script=str(script), out=tmp_path / "c", engine="kineto", passes=("eager", "compiled"), quiet=True
    )
    result = pipeline.audit(run_capture(options))
    assert expected in {(f.pass_name, f.rule) for f in result.findings}, [f.message for f in result.findings]


@pytest.mark.parametrize("engine", ["nsys", "kineto"])
def test_the_clean_example_has_no_finding(engine: str, tmp_path: Path) -> None:
    options = RunOptions(script=str(EXAMPLES / "clean.py"), out=tmp_path / "c", engine=engine, quiet=True)
    result = pipeline.audit(run_capture(options))
    assert [f.message for f in result.findings] == []
    assert not [n["text"] for n in result.document["notes"] if n["blocks"]]
