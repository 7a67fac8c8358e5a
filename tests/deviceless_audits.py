"""Whole deviceless audits in this process: what ``fusionaudit run`` does, without the start of two interpreters."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from fusionaudit import pipeline
from fusionaudit.capture import session
from fusionaudit.capture.process import Ended
from fusionaudit.capture.spec import PassSpec


def audit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, code: str, **options: Any) -> Any:
    """Audit a script; each pass runs here instead of in a child."""
    import torch
    import torch._dynamo

    from fusionaudit.capture.child import run_pass

    def here(command: list[str], *, environment: dict[str, str], **_: Any) -> Ended:
        torch._dynamo.reset()
        before = dict(os.environ)
        os.environ.update(environment)
        state = torch.random.get_rng_state()
        try:
            # A script that names no compiler changes this for the rest of its process.
            with torch._dynamo.config.patch(suppress_errors=False), contextlib.redirect_stdout(sys.stderr):
                told = run_pass(PassSpec.read(Path(command[3])))
        finally:
            torch.random.set_rng_state(state)
            os.environ.clear()
            os.environ.update(before)
        return Ended(returncode=told.exit_code)

    monkeypatch.setattr(session, "run_child", here)
    script = tmp_path / "script.py"
    script.write_text(code)
    capture = pipeline.capture_script(
        session.RunOptions(
            script=str(script), out=tmp_path / "capture", engine="deviceless", target="h200",
            quiet=True, **options,
        )
    )  # fmt: skip
    return pipeline.audit(capture)
