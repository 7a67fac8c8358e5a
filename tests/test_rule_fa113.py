"""FA113: recompilation changed the kernels."""

from __future__ import annotations

from dataclasses import replace

import pytest
from builders import eager, line, run

from fusionaudit.inductor.model import InductorLog, Recompile
from fusionaudit.rules import fa113


def recompiled(*guards: str):
    log = InductorLog(recompiles=tuple(Recompile(location=line(7), function="f", guard=g) for g in guards))
    return replace(eager(name="compiled"), log=log)


@pytest.mark.parametrize(
    ("guards", "severity"),
    [
        (["L['lr'] == 0.01"], "warning"),
        (["self.calls == 0  # (HINT: torch._dynamo.config.allow_unspec_int_on_nn_module = True)"], "warning"),
        (["tensor 'x' size mismatch at index 0. expected 37, actual 52"], "info"),
        (["tensor 'x' size mismatch at index 0. expected 37, actual 52"] * 3, "warning"),
        (["GLOBAL_STATE changed: grad_mode"], "info"),
    ],
)
def test_severity_by_guard(guards, severity):
    (found,) = run(fa113, recompiled(*guards))
    assert found.severity == severity
    assert found.evidence["recompilations"] == len(guards)


def test_the_setting_that_the_log_hints_at_is_named():
    (found,) = run(fa113, recompiled("self.calls == 0 # (HINT: torch._dynamo.config.allow_unspec_int_on_nn_module)"))
    assert "allow_unspec_int_on_nn_module" in found.remedy


def test_silent_without_recompiles():
    assert not run(fa113, eager(name="compiled"))
