"""A convolution's bias is a kernel beside cuDNN's: predicted and measured passes give each its bytes."""

from __future__ import annotations

import pytest
from builders import op, t

from fusionaudit.inductor.model import InductorLog
from fusionaudit.program.launches import predicted_launches
from fusionaudit.program.measured import measured_pass
from fusionaudit.tensors import Tensor
from fusionaudit.trace.schema import Activity, Op, OpLog, RangeOp, Trace

BIG = 32 * 64 * 64 * 64 * 4
X, Y = t("x", 32, 64, 64, 64), t("y", 32, 64, 64, 64)
W, BIAS = t("w", 64, 64, 3, 3), t("b", 64)
WEIGHT, SMALL = 64 * 64 * 9 * 4, 64 * 4

CUDNN = "sm90_xmma_fprop_implicit_gemm_f32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize128x64x32_warpgroupsize1x1x1"
ADD = "void at::native::elementwise_kernel<128, 2, at::native::gpu_kernel_impl_nocast<at::native::CUDAFunctor_add>>"
SUM = "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::func_wrapper_t<float>>>"


def forward(*inputs: Tensor) -> Op:
    return op("convolution", inputs, Y)


def backward(*outputs: Tensor) -> Op:
    return op("convolution_backward", [t("g", 32, 64, 64, 64), X, W], *outputs, phase="backward")


def predicted(made: Op) -> list[tuple[str, int | None, int | None]]:
    return [(launch.category, launch.read_bytes, launch.write_bytes) for launch in predicted_launches(made)]


def test_a_bias_is_added_over_the_result() -> None:
    convolved = ("convolution", BIG + WEIGHT, BIG)
    assert predicted(forward(X, W)) == [convolved]
    assert predicted(forward(X, W, BIAS)) == [convolved, ("pointwise", BIG + SMALL, BIG)]


def test_the_gradients_are_kernels_that_each_read_the_outputs() -> None:
    given, weight, bias = t("gx", 32, 64, 64, 64), t("gw", 64, 64, 3, 3), t("gb", 64)
    assert predicted(backward(given, weight, bias)) == [
        ("convolution", BIG + WEIGHT, BIG),
        ("convolution", 2 * BIG, WEIGHT),
        ("reduction", BIG, SMALL),
    ]
    assert predicted(backward(weight, bias)) == [("convolution", 2 * BIG, WEIGHT), ("reduction", BIG, SMALL)]


def test_launches_of_an_op_without_known_bytes_are_unknown() -> None:
    launches = predicted_launches(op("nonzero", [t("m", 1024, dtype="bool")], t("i", 10, 1, dtype="int64")))
    assert len(launches) > 1
    assert {(launch.read_bytes, launch.write_bytes) for launch in launches} == {(None, None)}


@pytest.mark.parametrize(
    ("made", "names", "expected"),
    [
        (
            forward(X, W, BIAS),
            (CUDNN, ADD),
            [("convolution", BIG + WEIGHT, BIG), ("pointwise", BIG + SMALL, BIG)],
        ),
        (
            backward(t("gw", 64, 64, 3, 3), t("gb", 64)),
            (CUDNN, SUM),
            [("convolution", 2 * BIG, WEIGHT), ("reduction", BIG, SMALL)],
        ),
        # A layout change of cuDNN's own: the convolution's share is not known, the bias's is.
        (
            forward(X, W, BIAS),
            ("void cudnn::engines_precompiled::nchwToNhwcKernel<float, float>", CUDNN, ADD),
            [("convolution", None, None), ("convolution", None, None), ("pointwise", BIG + SMALL, BIG)],
        ),
    ],
)
def test_measured_kernels_get_the_bytes_of_their_part(made: Op, names: tuple[str, ...], expected: object) -> None:
    activities = tuple(
        Activity(
            kind="kernel", name=name, start_ns=i * 10, end_ns=i * 10 + 5, device=0, stream=7,
            op=RangeOp(name=made.name, op_id=made.id, recorded=True),
        )
        for i, name in enumerate(names)
    )  # fmt: skip
    trace = Trace(format="kineto", activities=activities, device=None)
    p = measured_pass("eager", "kineto", trace, OpLog(records=(made,)), InductorLog())
    assert [(k.category, k.read_bytes, k.write_bytes) for k in p.kernels] == expected
