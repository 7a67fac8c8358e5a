"""FA307: a kernel computes in a wider dtype than its data asks for."""

from __future__ import annotations

from builders import MEGA, call, compiled, eager, graph, op, run, t, warnings

from fusionaudit.rules import fa307

N = 16 * MEGA


def test_a_small_float32_operand_widens_bfloat16_data():
    x, y = t("x", 16384, 1024, dtype="bfloat16"), t("y", 16384, 1024)
    (found,) = warnings(fa307, eager(op("mul", [x, t("scale", 1024)], y)))
    assert found.evidence == {"from": "bfloat16", "to": "float32", "share_of_step": found.evidence["share_of_step"]}
    assert "torch.bfloat16" in found.remedy


def test_float64_from_a_constant():
    (found,) = warnings(
        fa307, eager(op("add", [t("x", 64, MEGA), t("c", MEGA, dtype="float64")], t("y", 64, MEGA, dtype="float64")))
    )
    assert found.evidence["to"] == "float64"


def test_a_generated_kernel_in_float64():
    g = graph(call("triton_poi_0", [t("x", N)], [t("y", N)], source="tmp1 = tmp0.to(tl.float64)"), outputs=["y"])
    assert len(run(fa307, compiled(g))) == 1


def test_silent_on_casts_scalars_and_same_dtypes():
    x = t("x", N, dtype="bfloat16")
    assert not run(fa307, eager(op("aten._to_copy.default", [x], t("y", N))))
    assert not run(fa307, eager(op("mul", [x, t("s")], t("y", N, dtype="bfloat16"))))
    assert not run(fa307, eager(op("mul", [x, t("z", N)], t("y", N))))
