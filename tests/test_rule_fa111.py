"""FA111: Inductor kept fusible kernels apart."""

from __future__ import annotations

from dataclasses import replace

from builders import MEGA, call, compiled, graph, run, t, warnings

from fusionaudit.inductor.kernels import accesses
from fusionaudit.inductor.model import FusionDecision
from fusionaudit.rules import fa107, fa111, fa117

X = t("x", 4096, 4096)


def decision(reason: str, first: str, second: str) -> FusionDecision:
    return FusionDecision(
        graph="0/0/forward",
        first="op0",
        second="op1",
        reason=reason,
        cause="numel",
        first_nodes=(first,),
        second_nodes=(second,),
    )


def split_sum(size: int):
    part = t("p", 1024)
    return graph(
        call("triton_red_0", [t("x", size)], [part], aten=["abs", "sum"], nodes=["abs_1", "sum_1"], kernel="reduction",
             numels={"x": 1024, "r0_": size // 1024}, split=True),
        call("triton_per_1", [part], [t("s")], aten=["abs", "sum"], nodes=["sum_1b"], kernel="persistent_reduction",
             numels={"x": 1, "r0_": 1024}),
        outputs=["s"],
    )  # fmt: skip


def test_second_stage_of_a_large_reduction_is_information_with_inductors_reason():
    why = "numel/rnumel mismatch (reduce) (1024, 1), (262144, 1024)"
    (found,) = run(fa111, compiled(split_sum(256 * MEGA), decisions=[decision(why, "sum_1", "sum_1b")]))
    assert found.severity == "info"
    assert found.reason is not None
    assert why in found.reason
    assert "cooperative_reductions" in found.remedy
    (measured,) = run(fa111, compiled(split_sum(256 * MEGA), engine="nsys", duration_ns=1000))
    assert measured.saving_ns == 0
    assert measured.remedy == "nothing to do at this size"


def test_second_stage_of_a_small_one_is_a_warning():
    (found,) = warnings(fa111, compiled(split_sum(4 * MEGA)))
    assert "a reduction that runs in stages (abs, sum) is 2 kernels" in found.message
    assert "cooperative_reductions" in found.remedy


def test_the_same_of_several_layers_is_one_finding():
    def layer(i: int):
        a, b = t(f"a{i}", 4096, 4096), t(f"b{i}", 4096, 4096)
        return [
            call("triton_poi_0", [t(f"x{i}", 4096, 4096)], [a], aten=["exp"], numels={"x": 4096 * 4096}),
            call("triton_poi_1", [a], [b], aten=["neg"], numels={"x": 4096 * 4096}),
        ]

    g = graph(*(c for i in range(3) for c in layer(i)), outputs=["b0", "b1", "b2"])
    (found,) = warnings(fa111, compiled(g))
    assert found.avoidable_bytes == 3 * 2 * 4 * 4096 * 4096
    assert len(found.kernel_ids) == 6
    assert "2 kernels (exp, neg) (3 times a step) could be one" in found.message


def test_fa107_tells_the_same_story():
    (apart,) = run(fa111, compiled(split_sum(256 * MEGA)))
    first, *_ = run(fa107, compiled(split_sum(256 * MEGA)))
    assert "kernel" in apart.message
    assert "its reduction runs in stages, 2 kernels by design (FA111)" in first.message


def test_two_kernels_over_the_same_elements():
    g = graph(
        call("triton_poi_0", [X], [t("a", 4096, 4096)], numels={"x": 4096 * 4096}),
        call("triton_poi_1", [t("a", 4096, 4096)], [t("b", 4096, 4096)], numels={"x": 4096 * 4096}),
        outputs=["b"],
    )
    (found,) = warnings(fa111, compiled(g))
    assert found.avoidable_bytes == 2 * 4 * 4096 * 4096


def test_rows_of_one_length_name_combo_kernels():
    tables = t("cos", 2048, 64)
    g = graph(
        call("triton_per_0", [t("q", 32768, 128), tables], [t("a", 32768, 128)], kernel="persistent_reduction",
             numels={"x": 32768, "r0_": 128}),
        call("triton_per_1", [t("k", 16384, 128), tables], [t("b", 16384, 128)], kernel="persistent_reduction",
             numels={"x": 16384, "r0_": 128}),
        outputs=["a", "b"],
    )  # fmt: skip
    (found,) = run(fa111, compiled(g))
    assert "combo_kernels" in found.remedy


def test_a_pad_of_another_size():
    h = t("h", 256, 2880)
    g = graph(
        call("triton_per_0", [t("x", 256, 2880)], [h], kernel="persistent_reduction", numels={"x": 256, "r0_": 2880}),
        call("triton_poi_1", [h], [t("p", 256, 3072)], aten=["constant_pad_nd"], numels={"x": 256 * 3072}),
        call("extern_kernels.mm", [h], [t("l", 256, 32)], kind="extern", kernel="matmul", aten=["mm"]),
        outputs=["p", "l"],
    )
    (found,) = warnings(fa111, compiled(g))
    assert "pad" in (found.reason or "")


def test_dequantisation_before_a_matmul():
    g = graph(
        call(
            "triton_poi_0",
            [t("q", 2048, 4096, dtype="uint8")],
            [t("w", 4096, 4096, dtype="float16")],
            aten=["sub", "mul"],
        ),
        call(
            "extern_kernels.mm",
            [t("w", 4096, 4096, dtype="float16")],
            [t("o", 4, 4096)],
            kind="extern",
            kernel="matmul",
        ),
        outputs=["o"],
    )
    (found,) = warnings(fa111, compiled(g))
    assert "matmul" in (found.reason or "")


def test_silent_without_shared_data():
    g = graph(
        call("triton_poi_0", [X], [t("a", 4096, 4096)], numels={"x": 4096 * 4096}),
        call("triton_poi_1", [t("y", 4096, 4096)], [t("b", 4096, 4096)], numels={"x": 4096 * 4096}),
        outputs=["a", "b"],
    )
    assert not run(fa111, compiled(g, decisions=[decision("no shared data", "a", "b")]))


def test_silent_with_a_library_call_between():
    g = graph(
        call("triton_poi_0", [X], [t("a", 4096, 4096)], numels={"x": 4096 * 4096}),
        call("extern_kernels.mm", [t("a", 4096, 4096)], [t("c", 4096, 4096)], kind="extern", kernel="matmul"),
        call("triton_poi_1", [t("a", 4096, 4096), t("c", 4096, 4096)], [t("b", 4096, 4096)], numels={"x": 4096 * 4096}),
        outputs=["b"],
    )
    assert not run(fa111, compiled(g))


def test_silent_on_reductions_of_two_lengths():
    """Row statistics, then statistics of blocks of 32: two kernels are the floor."""
    h = t("h", 32, 8192)
    g = graph(
        call("triton_red_0", [t("x", 32, 8192)], [h], kernel="reduction", numels={"x": 32, "r0_": 8192}),
        call("triton_per_1", [h], [t("q", 32, 8192)], kernel="persistent_reduction", numels={"x": 8192, "r0_": 32}),
        outputs=["q"],
    )
    assert not run(fa111, compiled(g))


def test_padding_that_a_kernel_of_its_own_fills():
    """The norm writes into the padded buffer; the rest of it is filled by another launch."""
    padded = t("p", 256, 192)
    g = graph(
        call(
            "triton_red_0", [t("x", 256, 2880)], [t("p", 256, 2880)], kernel="reduction", numels={"x": 256, "r0_": 2880}
        ),
        call("triton_poi_1", [], [padded], aten=["constant_pad_nd"], numels={"x": 256 * 192}),
        outputs=["p"],
    )
    (found,) = warnings(fa111, compiled(g))
    assert "padding" in (found.reason or "")


def test_two_kernels_of_a_few_elements():
    g = graph(
        call("triton_poi_0", [t("x", 3, 5)], [t("l", 3)], numels={"x": 3}),
        call("triton_poi_1", [t("l", 3)], [t("s")], numels={"x": 1}),
        outputs=["s"],
    )
    (found,) = warnings(fa111, compiled(g))
    assert found.saving_ns == 2500


def test_a_graph_for_any_size_is_fa117():
    """The sizes are equal once the symbols have values; a graph of fixed sizes would fuse the two."""
    made = graph(
        call("triton_poi_0", [X], [t("a", 4096, 4096)], numels={"x": 4096 * 4096}),
        call("triton_poi_1", [t("a", 4096, 4096)], [t("b", 4096, 4096)], numels={"x": 4096 * 4096}),
        outputs=["b"],
    )
    symbolic = tuple(replace(k, numels={"x": None}) for k in made.kernels)
    made = replace(made, kernels=symbolic, symbols={"s0": 4096})
    assert not run(fa111, compiled(made))
    (found,) = run(fa117, compiled(made))
    assert found.rule == "FA117"
    assert "s0=4096" in found.message


def softmax_of_everything(size: int):
    part, total = t("p", 512), t("s")
    first = call("triton_red_0", [t("x", size)], [part], aten=["exp", "sum"], kernel="reduction",
                 numels={"x": 512, "r0_": size // 512}, split=True)  # fmt: skip
    second = call("triton_per_1", [part], [total], aten=["sum"], kernel="persistent_reduction",
                  numels={"x": 1, "r0_": 512})  # fmt: skip
    third = call("triton_poi_2", [t("x", size), total], [t("o", size)], aten=["exp", "div"], numels={"x": size})
    return compiled(graph(first, second, third, outputs=["o"]))


def test_what_waits_for_a_reduction_of_everything_is_not_one_kernel():
    """Beyond the L2 cache the input is read again in any case: only the stages of the reduction are named."""
    (found,) = run(fa111, softmax_of_everything(64 * MEGA))
    assert "runs in stages" in found.message
    assert not any("could be one" in f.message for f in run(fa111, softmax_of_everything(64 * MEGA)))
    assert any("could be one" in f.message for f in run(fa111, softmax_of_everything(4 * MEGA)))


SCATTER = """
@triton_heuristics.pointwise(
    size_hints={'x': 16777216},
    triton_meta={'signature': {'in_ptr0': '*i64', 'in_ptr1': '*fp32', 'out_ptr0': '*fp32', 'xnumel': 'i32'}},
    inductor_meta={'kernel_name': 'triton_poi_1', 'mutated_arg_names': ['out_ptr0']},
)
@triton.jit
def triton_poi_1(in_ptr0, in_ptr1, out_ptr0, xnumel, XBLOCK : tl.constexpr):
    xindex = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)[:]
    xmask = xindex < xnumel
    x0 = xindex
    tmp0 = tl.load(in_ptr0 + (x0), xmask)
    tmp1 = tl.load(in_ptr1 + (x0), xmask)
    tl.atomic_add(out_ptr0 + (tmp0), tmp1, xmask, sem="relaxed")
"""


def test_a_scatter_waits_for_what_it_adds_to_and_is_waited_for():
    """zeros, scatter_add, mul: one kernel would add to what is not yet zeroed, and read what is not yet added."""
    size, z = 16 * MEGA, t("z", 16 * MEGA)
    g = graph(
        call("triton_poi_0", [], [z], aten=["zeros_like"], numels={"x": size}),
        call("triton_poi_1", [t("i", size, dtype="int64"), t("x", size), z], [z], aten=["scatter_add"],
             numels={"x": size}, source=SCATTER),
        call("triton_poi_2", [z], [t("y", size)], aten=["mul"], numels={"x": size}),
        outputs=["y"],
    )  # fmt: skip
    g = replace(g, kernels=tuple(replace(k, accesses=accesses(k.name, k.source)) for k in g.kernels))
    assert run(fa111, compiled(g)) == []


def column(number: int) -> str:
    """A kernel over [65536, 64] that reads its own 64 columns of 576 of one buffer."""
    return f"""
@triton_heuristics.pointwise(
    size_hints={{'x': 4194304}},
    triton_meta={{'signature': {{'in_ptr0': '*fp32', 'out_ptr0': '*fp32', 'xnumel': 'i32'}}}},
    inductor_meta={{'kernel_name': 'triton_poi_{number}'}},
)
@triton.jit
def triton_poi_{number}(in_ptr0, out_ptr0, xnumel, XBLOCK : tl.constexpr):
    xnumel = 4194304
    xindex = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)[:]
    x0 = (xindex % 64)
    x1 = xindex // 64
    tmp0 = tl.load(in_ptr0 + ({64 * number} + x0 + 576*x1), None)
    tl.store(out_ptr0 + (x0 + 64*x1), tmp0, None)
"""


def columns(*numbers: int):
    """Kernels that each read one column of a [65536, 576] buffer."""
    calls = [
        call(f"triton_poi_{n}", [t("x", 65536, 576)], [t(f"o{i}", 65536, 64)], aten=["select", "exp"],
             numels={"x": 65536 * 64}, source=column(n))
        for i, n in enumerate(numbers)
    ]  # fmt: skip
    return compiled(graph(*calls, inputs=[t("x", 65536, 576)], outputs=[f"o{i}" for i, _ in enumerate(numbers)]))


def test_kernels_that_read_their_own_parts_of_a_buffer_share_nothing():
    assert run(fa111, columns(0, 1, 2, 3)) == []


def test_kernels_share_the_elements_that_they_both_read():
    (found,) = run(fa111, columns(3, 3))
    assert found.avoidable_bytes == 65536 * 64 * 4


def test_a_matmul_waits_for_a_scatter_of_its_operand():
    """embedding_dense_backward writes few rows in no order: no matmul can unpack that."""
    size = 16 * MEGA
    z = t("z", size)
    g = graph(
        call("triton_poi_1", [t("i", 1024, dtype="int64"), t("x", 1024)], [z], aten=["embedding_dense_backward"],
             numels={"x": 1024}, source=SCATTER),
        call("extern_kernels.addmm", [z], [t("y", size)], kind="extern", kernel="matmul", aten=["addmm"]),
        outputs=["y"],
    )  # fmt: skip
    g = replace(g, kernels=tuple(replace(k, accesses=accesses(k.name, k.source)) for k in g.kernels))
    assert run(fa111, compiled(g)) == []
