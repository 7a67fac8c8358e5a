"""FA107: chain already fused by torch.compile."""

from __future__ import annotations

from builders import MEGA, call, compiled, graph, run, t

from fusionaudit.rules import fa107


def test_a_fused_kernel_is_information():
    g = graph(call("triton_poi_0", [t("x", MEGA)], [t("y", MEGA)], aten=["mul", "add", "relu"], at=4), outputs=["y"])
    (found,) = run(fa107, compiled(g))
    assert found.severity == "info"
    assert found.ops == ("mul", "add", "relu")
    assert found.location is not None
    assert found.location.line == 4


def test_silent_on_a_kernel_of_one_op_and_on_library_calls():
    g = graph(
        call("triton_poi_0", [t("x", MEGA)], [t("y", MEGA)], aten=["view", "relu", "_to_copy"]),
        call("extern_kernels.mm", [t("y", MEGA)], [t("z", MEGA)], kind="extern", kernel="matmul", aten=["mm", "add"]),
        outputs=["z"],
    )
    assert not run(fa107, compiled(g))
