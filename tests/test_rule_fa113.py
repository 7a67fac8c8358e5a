"""FA113: recompilation changed the kernels."""

from __future__ import annotations

from dataclasses import replace

import pytest
from builders import MEGA, call, compiled, eager, graph, line, op, run, t

from fusionaudit.inductor.model import InductorLog, Recompile
from fusionaudit.rules import fa113

N = 64 * MEGA


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


def version(number: int, *targets: str):
    made = [call(f"triton_{name}", [t("x", N)], [t("y", N)], at=3) for name in targets]
    return graph(*made, name=f"0/{number}/inference")


def again(limit: int | None = None):
    return InductorLog(
        recompiles=(Recompile(location=line(7), function="f", guard="k == 0", compile_id="0/1", limit=limit),)
    )


def test_a_version_with_more_kernels_is_priced():
    first, newest = version(0, "a"), version(1, "a", "b", "c")
    ran = replace(compiled(newest), log=replace(again(), graphs=(first, newest)))
    (found,) = run(fa113, ran)
    assert "3 launches where the first made 1" in found.message
    assert found.evidence["more_launches"] == 2


def test_past_the_limit_the_function_costs_what_its_eager_chains_do():
    first = version(0, "a")
    chain = eager(op("mul", [t("x", N)], t("a", N), at=3), op("relu", [t("a", N)], t("y", N), at=3))
    ran = replace(compiled(first), log=replace(again(limit=8), graphs=(first,)))
    (found,) = run(fa113, chain, ran)
    assert "at 8 versions torch.compile gave up" in found.message
    assert (found.avoidable_bytes, found.evidence["more_launches"]) == (2 * 4 * N, 1)
    assert found.saving_ns is not None
    eight = replace(ran, log=replace(ran.log, recompiles=ran.log.recompiles * 8))
    (found,) = run(fa113, chain, eight)
    assert "compiled 7 times more" in found.message, "of eight versions seven came later; the eighth try was given up"


def test_a_librarys_pattern_and_what_is_around_it_are_in_the_price():
    """``x * sigmoid(x) * 2``: three kernels that move seven tensors, one that moves two."""
    x, s, y, z = (t(name, N) for name in "xsyz")
    first, second = {"tensor": 0}, {"tensor": 1}
    ops = [
        op("aten.sigmoid.default", [x], s, at=3, arguments=(first,)),
        op("aten.mul.Tensor", [x, s], y, at=3, arguments=(first, second)),
        op("aten.mul.Tensor", [y], z, at=3, arguments=(first, 2.0)),
    ]
    version_of_it = version(0, "a")
    ran = replace(compiled(version_of_it), log=replace(again(limit=8), graphs=(version_of_it,)))
    (found,) = run(fa113, eager(*ops), ran)
    assert (found.avoidable_bytes, found.evidence["more_launches"]) == (5 * 4 * N, 2)
    alone = eager(*ops[:2])
    (less,) = run(fa113, alone, ran)
    assert found.saving_ns > less.saving_ns > 0


def test_silent_without_recompiles():
    assert not run(fa113, eager(name="compiled"))
