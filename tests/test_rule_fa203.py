"""FA203: CUDA graph requested and skipped."""

from __future__ import annotations

from dataclasses import replace

from builders import DEVICE, call, compiled, eager, graph, line, run, t

from fusionaudit.inductor.model import CudagraphSkip, InductorLog
from fusionaudit.rules import fa203


def skipped(*reasons: str):
    log = InductorLog(
        cudagraph_skips=tuple(CudagraphSkip(reason=r, location=line(3), compile_id="0/0") for r in reasons)
    )
    return replace(eager(name="compiled"), log=log)


def test_a_reason_is_a_warning_with_a_remedy():
    (found,) = run(fa203, skipped("skipping cudagraphs due to cpu device (arg1_1)"))
    assert found.severity == "warning"
    assert "GPU" in found.remedy


def test_numbers_in_a_reason_do_not_make_it_another():
    (found,) = run(fa203, skipped("op12: reason=cpu ops", "op3: reason=cpu ops"))
    assert found.evidence["times"] == 2


def asked(name: str, symbols: dict[str, int], *others: str):
    made = [graph(call("triton_poi_0", [t("x", 64)], [t("y", 64)]), outputs=["y"], name=n) for n in (name, *others)]
    first = replace(made[0], symbols=symbols, source="def partition_0(args):")
    return replace(compiled(*made), log=InductorLog(graphs=(first, *made[1:])))


def test_foreseen_from_symbolic_sizes():
    (found,) = run(fa203, asked("0/1/inference", {"s50": 52}))
    assert "distinct size" in (found.reason or "")
    assert "pad" in found.remedy


def test_foreseen_from_a_forward_without_backward():
    (found,) = run(fa203, asked("0/0/forward", {}))
    assert "no_grad" in found.remedy
    assert not run(fa203, asked("0/0/forward", {}, "0/0/backward"))


def many(count: int):
    made = graph(*[call(f"triton_poi_{i}", [t("x", 64)], [t("y", 64)]) for i in range(count)], name="0/0/inference")
    return replace(compiled(made), log=replace(skipped("cpu device (arg1_1)").log, graphs=(made,)))


def test_the_launches_that_stay_are_priced_by_the_model_or_the_clean_pass():
    (found,) = run(fa203, many(40))
    assert found.evidence["launches"] == 40
    assert found.saving_ns == 40 * (DEVICE.launch_ns - 1000)
    assert "its 40 launches stay" in found.message
    clean = replace(many(80), name="clean", engine="nsys", step_ns=400_000, idle_ns=280_000, steps=3)
    (found,) = run(fa203, replace(many(40), engine="nsys"), clean)
    assert found.saving_ns == 280_000 - 80 * 1000


def test_a_tiny_price_does_not_make_it_information():
    (found,) = [f for f in run(fa203, many(0)) if f.severity == "warning"]
    assert found.saving_ns is None


def test_silent_without_skips():
    assert not run(fa203, eager(name="compiled"))
    assert not run(fa203, asked("0/0/inference", {}))
