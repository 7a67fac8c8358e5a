"""The kineto engine where no GPU is needed to see it."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from fusionaudit.capture.kineto import Profiled  # noqa: E402
from fusionaudit.errors import AuditError  # noqa: E402


def test_a_script_s_own_profiler_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch 2.11 says of it "Can't disable Kineto profiler when it's not running" (H200), 2.13 crashes (CPU)."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(
        torch.autograd.profiler.profile, "_prepare_trace", torch.autograd.profiler.profile._prepare_trace
    )
    profiled = Profiled(tmp_path / "trace.json.gz")
    profiled.start()
    with pytest.raises(AuditError, match="profiler of torch itself") as caught, torch.profiler.profile():
        torch.ones(3).sum()
    assert "--engine nsys" in str(caught.value)
    profiled.stop()
    assert (tmp_path / "trace.json.gz").stat().st_size > 0
