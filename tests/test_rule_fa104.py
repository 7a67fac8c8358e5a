"""FA104: matmul epilogue left as kernels of its own."""

from __future__ import annotations

from builders import call, compiled, eager, graph, op, run, t, warnings

from fusionaudit.rules import fa104

A, W, C = t("a", 8192, 64), t("w", 64, 8192), t("c", 8192, 8192)


def test_a_bias_of_its_own_is_a_warning():
    (found,) = warnings(fa104, eager(op("mm", [A, W], C), op("add", [C, t("b", 8192)], t("d", 8192, 8192))))
    assert "addmm" in found.remedy


def test_an_activation_is_information():
    (found,) = run(fa104, eager(op("mm", [A, W], C), op("relu", [C], t("d", 8192, 8192))))
    assert found.severity == "info"


def test_compiled_epilogue_of_a_library_matmul_is_information():
    g = graph(
        call("extern_kernels.mm", [A, W], [C], kind="extern", kernel="matmul", aten=["mm"]),
        call("triton_poi_0", [C], [t("d", 8192, 8192)], aten=["relu"]),
        outputs=["d"],
    )
    (found,) = run(fa104, compiled(g))
    assert found.severity == "info"
    assert found.avoidable_bytes == 2 * 4 * 8192 * 8192


def test_silent_on_addmm_alone_and_on_unrelated_work():
    assert not run(fa104, eager(op("addmm", [t("b", 8192), A, W], C), op("exp", [t("x", 64)], t("y", 64))))
