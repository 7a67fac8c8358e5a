"""FA107: chain already fused by torch.compile."""

from __future__ import annotations

from builders import MEGA, call, compiled, graph, run, t

from fusionaudit.config import Config
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


def test_what_two_kernels_hand_over_is_not_hidden():
    first = call("triton_poi_0", [t("x", MEGA)], [t("y", MEGA)], aten=["mul", "add"])
    second = call(
        "triton_per_1", [t("y", MEGA)], [t("z", 8)], aten=["exp", "mul", "sum"], kernel="persistent_reduction"
    )
    writer, reader = run(fa107, compiled(graph(first, second, outputs=["z"])), config=Config(ignore=("FA111",)))
    assert "by hand; 4.19 MB still go through memory between it and the one kernel that reads them" in writer.message
    assert reader.message.endswith("the one kernel that writes them")
    kept = run(fa107, compiled(graph(first, second, outputs=["y", "z"])), config=Config(ignore=("FA111",)))
    assert not any("through memory" in f.message for f in kept)
