"""``check`` and how code is compiled: CUDA graphs that a script asks for, and functions that are compiled again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from deviceless_audits import audit
from guard_documents import LINES, at, document, eager, graph, kernel

from fusionaudit.baseline import read_lock, write_lock
from fusionaudit.check import CheckResult, check
from fusionaudit.inductor.model import Recompile

pytestmark = pytest.mark.filterwarnings("ignore")  # torch's own, at its import

ASKS = {8: '@torch.compile(mode="reduce-overhead")', **LINES}
PLAIN = {8: "@torch.compile", **LINES}


def captured(lines: dict[int, str] = LINES, **more: Any) -> dict[str, Any]:
    return document(lines=lines, graphs=[graph(cuda_graph=lines is ASKS)], **more)


def checked(new: dict[str, Any], old: dict[str, Any]) -> CheckResult:
    return check(new, read_lock(write_lock(old)))


def again(guard: str, count: int = 1) -> list[dict[str, Any]]:
    row = Recompile(location=None, function="forward", guard=guard)
    return [{"location": at(9), "function": "forward", "guard": guard, "kind": row.kind}] * count


def test_a_lost_cuda_graph_is_a_regression_at_the_line_that_compiles() -> None:
    result = checked(captured(PLAIN), captured(ASKS))
    assert (result.verdict, result.exit_code) == ("regression", 1)
    (finding,) = result.findings
    assert "no longer asks for a CUDA graph" in finding.message
    assert finding.location is not None
    assert finding.location.line == 8


def test_a_cuda_graph_that_came_is_an_improvement() -> None:
    result = checked(captured(ASKS), captured(PLAIN))
    assert (result.verdict, result.exit_code) == ("improved", 0)
    assert "now asks for a CUDA graph" in result.findings[0].message


def test_the_same_cuda_graph_is_no_change() -> None:
    text = write_lock(captured(ASKS))
    assert "\nasks for a CUDA graph\n" in text
    assert checked(captured(ASKS), captured(ASKS)).verdict == "same"


@pytest.mark.parametrize(
    ("guard", "count", "lasts"),
    [
        ("n == '3'  # return x if n else y", 1, False),
        ("n == '3'  # return x if n else y", 2, True),
        ("tensor 'x' size mismatch at index 0. expected 4, actual 5", 2, False),
        ("tensor 'x' size mismatch at index 0. expected 4, actual 5", 3, True),
        ("___check_global_state()", 1, False),
    ],
)
def test_a_recompilation_that_goes_on_is_a_regression(guard: str, count: int, lasts: bool) -> None:
    lines = {9: "def forward(self, x, n):", **LINES}
    new, old = captured(lines, recompiles=again(guard, count)), captured(lines)
    result = checked(new, old)
    assert (result.verdict, result.exit_code) == (("regression", 1) if lasts else ("same", 0))
    if lasts:
        assert "compiles Block.forward again and again" in result.findings[0].message
        assert guard.split("  #")[0] in result.findings[0].message
        assert checked(old, new).verdict == "improved"
    assert checked(new, new).verdict == "same"


def test_an_optimizer_that_steps_otherwise_is_named_where_it_is_made() -> None:
    lines = {**LINES, 3: "opt = torch.optim.AdamW(model.parameters(), foreach=False)", 20: "opt.step()"}

    def stepped(*names: str) -> dict[str, Any]:
        kernels = [kernel([f"aten.{name}"], ["p", "g"], ["p"], 20, phase="optimizer") for name in names]
        return document(eager_kernels=[*eager(), *kernels], lines=lines)

    (finding,) = checked(stepped("mul_", "lerp_", "addcmul_"), stepped("_fused_adamw_")).findings
    assert finding.location is not None
    assert finding.location.line == 3
    assert "AdamW(model.parameters(), foreach=False)" in finding.message


SCRIPT = """\
import torch


@torch.compile{mode}
def scaled(x, name):
    return x.sin() * 2 if name else x


x = torch.randn(256, 256, device="cuda")
for i in range(4):
    scaled(x, {name})
"""


def test_a_real_script_that_loses_its_mode_or_compiles_without_end(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def locked(mode: str, name: str) -> dict[str, Any]:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        code = SCRIPT.format(mode=mode, name=name)
        return audit(monkeypatch, folder, code, shapes_only=True).document  # type: ignore[no-any-return]

    base = locked('(mode="reduce-overhead")', "'x'")
    lost = checked(locked("", "'x'"), base)
    (finding,) = lost.findings
    assert finding.location is not None
    assert (lost.exit_code, finding.location.line) == (1, 4)
    assert "no longer asks for a CUDA graph" in finding.message
    (finding,) = checked(locked('(mode="reduce-overhead")', "str(i)"), base).findings
    assert "compiles scaled again and again (value guard): name == '0'" in finding.message
