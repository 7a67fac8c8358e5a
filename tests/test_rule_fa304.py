"""FA304: kernel far under the bandwidth that its bytes need."""

from __future__ import annotations

from dataclasses import replace

from builders import MEGA, eager, op, run, t, warnings

from fusionaudit.program.kernel_names import short_label
from fusionaudit.rules import fa304

SOFTMAX = op("_softmax", [t("x", 4096, 2048)], t("y", 4096, 2048))


def measured(ns: int, made=SOFTMAX):
    p = eager(made, engine="nsys")
    return replace(p, kernels=tuple(replace(k, duration_ns=ns, time_basis="measured") for k in p.kernels))


def test_an_outer_softmax():
    """67 MB in 3.9 ms: 17 GB/s."""
    (found,) = warnings(fa304, measured(3_900_000))
    assert found.evidence["bandwidth_share"] < 0.01


def test_silent_near_the_roof_on_short_kernels_and_without_times():
    assert not run(fa304, measured(25_000))
    small = op("exp", [t("x", 1024)], t("y", 1024))
    assert not run(fa304, measured(5_000, small))
    assert not run(fa304, eager(SOFTMAX))


def test_silent_on_random_numbers():
    assert not run(fa304, measured(400_000, op("native_dropout", [t("x", MEGA)], t("y", MEGA))))


def test_the_eager_form_of_a_step_that_the_script_compiles_is_information():
    p = measured(3_900_000)
    (found,) = run(fa304, p, uses_compile=True)
    assert (found.severity, found.reason) == ("info", "the step is compiled in the script; this is its eager form")


def test_a_long_kernel_name_is_cut_at_a_word():
    """A reduction of ATen, as CUPTI writes it."""
    name = (
        "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::func_wrapper_t<float, "
        "at::native::MaxNanFunctor<float> >, unsigned int, float, 4, 4> >(at::native::ReduceOp<float>)"
    )
    p = measured(3_900_000)
    (found,) = warnings(fa304, replace(p, kernels=tuple(replace(k, name=name) for k in p.kernels)))
    label = found.message.partition(" (")[0]
    assert label == short_label(name)
    assert short_label(name, 40) == "reduce_kernel<ReduceOp<float..."
    assert short_label("triton_red_fused_add_native_layer_norm_0", 30) == "triton_red_fused_add_native..."
    assert short_label("x" * 90) == "x" * 77 + "..."
    assert short_label("triton_poi_fused_0") == "triton_poi_fused_0"
    for width in range(8, 90):
        assert len(short_label(name, width)) <= width
