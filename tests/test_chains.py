"""Chains follow tensors: what joins, what splits, what stays an output."""

from __future__ import annotations

from dataclasses import replace

from builders import eager, op, t

from fusionaudit.device import find_target
from fusionaudit.program.chains import chains
from fusionaudit.program.model import Kernel, Pass
from fusionaudit.tensors import Tensor
from fusionaudit.trace.schema import Op

N = 1 << 20


def kinds(*ops):
    return [(c.kind, tuple(o.split(".")[1] for o in c.ops)) for c in chains(eager(*ops))]


def test_abs_sum_moves_three_times_what_it_needs():
    """x -abs-> a -sum-> s: 4N + 4N, 4N + 4 bytes now; 4N + 4 needed."""
    (chain,) = chains(eager(op("abs", [t("x", N)], t("a", N)), op("sum", [t("a", N)], t("s"))))
    assert chain.kind == "into_reduction"
    assert (chain.global_bytes, chain.minimum_bytes, chain.avoidable_bytes) == (12 * N + 4, 4 * N + 4, 8 * N)


def test_neighbours_without_a_shared_tensor_are_no_chain():
    assert kinds(op("exp", [t("x", N)], t("a", N)), op("log", [t("y", N)], t("b", N))) == []


def test_an_intermediate_that_is_read_again_later_stays_an_output():
    """a is read by the matmul outside: its write stays, only its second read is saved."""
    (chain,) = chains(
        eager(
            op("exp", [t("x", 1024, 1024)], t("a", 1024, 1024)),
            op("neg", [t("a", 1024, 1024)], t("b", 1024, 1024)),
            op("mm", [t("a", 1024, 1024), t("w", 1024, 1024)], t("c", 1024, 1024)),
        )
    )
    size = 4 << 20
    assert [x.storage for x in chain.outputs] == ["a", "b"]
    assert chain.avoidable_bytes == size


def test_views_in_between_are_fine():
    assert kinds(
        op("exp", [t("x", N)], t("a", N)),
        op("view", [t("a", N)], t("a", N // 2, 2)),
        op("neg", [t("a", N // 2, 2)], t("b", N // 2, 2)),
    ) == [("elementwise", ("exp", "neg"))]


def test_a_slice_of_the_producer_is_no_chain():
    assert kinds(op("exp", [t("x", N)], t("a", N)), op("neg", [t("a", N // 2)], t("b", N // 2))) == []


def test_in_place_ops_chain_and_count_both_ways():
    (chain,) = chains(
        eager(
            op("aten.mul.Tensor", [t("x", N), t("y", N)], t("a", N)),
            op("aten.add_.Tensor", [t("a", N), t("z", N)], t("a", N), mutated=[0]),
        )
    )
    assert chain.global_bytes == 24 * N
    assert chain.minimum_bytes == 16 * N


def test_an_overwritten_value_is_another_value():
    """x is overwritten between the two reads: sin reads the new x, so exp and sin share nothing."""
    found = chains(
        eager(
            op("exp", [t("x", N)], t("a", N)),
            op("aten.copy_.default", [t("x", N), t("y", N)], t("x", N), mutated=[0]),
            op("sin", [t("x", N)], t("b", N)),
        )
    )
    assert all("aten.exp.default" not in c.ops for c in found)


def test_out_variant_writes_its_target_only():
    (chain,) = chains(
        eager(op("exp", [t("x", N)], t("a", N)), op("aten.neg.out", [t("a", N), t("o", N)], t("o", N), mutated=[1]))
    )
    assert chain.minimum_bytes == 8 * N


def test_streams_phases_and_host_reads_split():
    one = op("exp", [t("x", N)], t("a", N))
    assert kinds(one, op("neg", [t("a", N)], t("b", N), stream=7)) == []
    assert kinds(one, op("neg", [t("a", N)], t("b", N), phase="backward")) == []
    read = op("aten._local_scalar_dense.default", [t("flag", 1)])
    assert kinds(one, read, op("neg", [t("a", N)], t("b", N))) == []


def test_softmax_by_hand_is_one_group():
    rows, row = (4096, 1024), (4096, 1)
    found = kinds(
        op("amax", [t("x", *rows)], t("m", *row)),
        op("sub", [t("x", *rows), t("m", *row)], t("d", *rows)),
        op("exp", [t("d", *rows)], t("e", *rows)),
        op("sum", [t("e", *rows)], t("s", *row)),
        op("div", [t("e", *rows), t("s", *row)], t("o", *rows)),
    )
    assert found == [("reduction_epilogue", ("amax", "sub", "exp", "sum", "div"))]


def test_a_full_reduction_cannot_go_back_over_a_large_tensor():
    """The scale of the whole tensor needs all of it first: two kernels at least."""
    found = kinds(
        op("abs", [t("x", N)], t("a", N)),
        op("amax", [t("a", N)], t("m")),
        op("div", [t("x", N), t("m")], t("o", N)),
    )
    assert found == [("into_reduction", ("abs", "amax"))]


def test_rows_and_columns_of_a_square_do_not_share_a_kernel():
    """As many rows as columns: the sizes are alike, the axes are not."""
    x, a = t("x", 1024, 1024), t("a", 1024, 1024)
    rows = op("sum", [a], t("r", 1024), arguments=({"tensor": 0}, [1]))
    columns = op("sum", [a], t("c", 1024), arguments=({"tensor": 0}, [0]))
    assert kinds(op("exp", [x], a), rows, columns) == [("into_reduction", ("exp", "sum"))]
    again = op("amax", [a], t("m", 1024), arguments=({"tensor": 0}, [1]))
    assert kinds(op("exp", [x], a), rows, again) == [("into_reduction", ("exp", "sum", "amax"))]


def test_columns_are_the_same_in_all_views():
    """A sum over two dimensions, and over what a view made one of them."""
    a, flat = t("a", 8, 128, 1024), t("a", 1024, 1024)
    first = op("sum", [a], t("c", 1, 1, 1024), arguments=({"tensor": 0}, [0, 1], True))
    second = op("sum", [flat], t("d", 1024), arguments=({"tensor": 0}, [0]))
    found = kinds(op("exp", [t("x", 8, 128, 1024)], a), first, op("view", [a], flat), second)
    assert found == [("into_reduction", ("exp", "sum", "sum"))]


def test_a_norms_backward_goes_over_rows_and_its_bias_gradient_over_columns():
    """256 rows of 256: the sum over all rows is no work of the kernel that goes along them."""
    size, row = (256, 256), (256, 1)
    norm = op("native_layer_norm_backward", [t("g", *size), t("x", *size), t("m", *row), t("r", *row), t("w", 256)],
              t("d", *size), t("dw", 256), t("db", 256))  # fmt: skip
    scaled = op("mul", [t("d", *size), t("s", 256)], t("e", *size))
    total = op("sum", [t("e", *size)], t("c", 256), arguments=({"tensor": 0}, [0]))
    assert kinds(norm, scaled, total) == [("reduction_epilogue", ("native_layer_norm_backward", "mul"))]


def test_two_sizes_of_reduction_do_not_share_a_kernel():
    found = kinds(
        op("exp", [t("x", 4096, 1024)], t("a", 4096, 1024)),
        op("sum", [t("a", 4096, 1024)], t("r", 4096)),
        op("sum", [t("a", 4096, 1024)], t("c", 1024)),
    )
    assert [len(names) for _, names in found] == [2]


def test_no_way_out_and_back_in():
    """exp -> mm -> add with exp: the add needs the matmul, so exp and add cannot be one kernel."""
    found = kinds(
        op("exp", [t("x", 64, 64)], t("a", 64, 64)),
        op("sort", [t("a", 64, 64)], t("c", 64, 64)),
        op("add", [t("a", 64, 64), t("c", 64, 64)], t("b", 64, 64)),
    )
    assert found == []


def test_what_comes_before_a_matmul_is_no_epilogue():
    """silu -> mm, and mm * silu: the silu is a prologue, its result is read by both."""
    gate = op("silu", [t("x", 1024, 1024)], t("g", 1024, 1024))
    product = op("mm", [t("g", 1024, 1024), t("w", 1024, 1024)], t("c", 1024, 1024))
    (chain,) = chains(eager(gate, product, op("mul", [t("c", 1024, 1024), t("g", 1024, 1024)], t("o", 1024, 1024))))
    assert chain.ops == ("aten.mm.default", "aten.mul.default")
    # The product written and read; g is read by the mul in any case.
    assert chain.avoidable_bytes == 2 * (4 << 20)


def test_what_spreads_a_product_over_more_elements_is_no_epilogue():
    """A scan's decay: exp(A) of its own, softplus(mm) times each of 16 states: two groups."""
    wide = (1024, 256, 16)
    found = kinds(
        op("exp", [t("a", 256, 16)], t("e", 256, 16)),
        op("mm", [t("x", 1024, 8), t("w", 8, 256)], t("c", 1024, 256)),
        op("softplus", [t("c", 1024, 256)], t("d", 1024, 256)),
        op("mul", [t("d", 1024, 256, 1), t("e", 256, 16)], t("m", *wide)),
        op("exp", [t("m", *wide)], t("o", *wide)),
    )
    assert found == [("elementwise", ("exp", "mul", "exp")), ("matmul_epilogue", ("mm", "softplus"))]


def test_matmul_epilogue():
    assert kinds(
        op("mm", [t("x", 64, 64), t("w", 64, 64)], t("a", 64, 64)),
        op("relu", [t("a", 64, 64)], t("b", 64, 64)),
    ) == [("matmul_epilogue", ("mm", "relu"))]


def test_rows_that_are_reduced_end_an_epilogue():
    """mm -> scale -> softmax by hand: the matmul takes the scale in no more, the five are one group of their own."""
    rows, row = (4096, 1024), (4096, 1)
    product = op("mm", [t("q", 4096, 64), t("k", 64, 1024)], t("c", *rows))
    softmax = [
        op("amax", [t("x", *rows)], t("m", *row)),
        op("sub", [t("x", *rows), t("m", *row)], t("d", *rows)),
        op("exp", [t("d", *rows)], t("e", *rows)),
        op("sum", [t("e", *rows)], t("s", *row)),
        op("div", [t("e", *rows), t("s", *row)], t("o", *rows)),
    ]
    scale = op("mul", [t("c", *rows)], t("x", *rows))
    assert kinds(product, scale, *softmax) == [("reduction_epilogue", ("mul", "amax", "sub", "exp", "sum", "div"))]
    bias = op("add", [t("c", *rows), t("b", 1024)], t("x", *rows))
    assert kinds(product, bias, *softmax) == [
        ("matmul_epilogue", ("mm", "add")),
        ("reduction_epilogue", ("amax", "sub", "exp", "sum", "div")),
    ]
    library = op("aten._softmax.default", [t("x", *rows)], t("o", *rows))
    assert kinds(product, scale, library) == [("into_reduction", ("mul", "_softmax"))]


def test_what_a_reduction_shares_with_others_stays_an_epilogue():
    """A bias gradient beside the next matmul: the activation's gradient is written anyway."""
    size = (512, 1024)
    assert kinds(
        op("mm", [t("g", 512, 256), t("w", 256, 1024)], t("a", *size)),
        op("gelu_backward", [t("a", *size), t("x", *size)], t("b", *size)),
        op("sum", [t("b", *size)], t("s", 1, 1024)),
        op("mm", [t("b", *size), t("v", 1024, 256)], t("c", 512, 256)),
    ) == [("matmul_epilogue", ("mm", "gelu_backward"))]


def test_parts_of_a_cat_join():
    half, whole = (1024, 64), (1024, 128)
    assert kinds(
        op("mul", [t("x", *half), t("c", *half)], t("a", *half)),
        op("mul", [t("y", *half), t("s", *half)], t("b", *half)),
        op("aten.cat.default", [t("a", *half), t("b", *half)], t("o", *whole)),
    ) == [("elementwise", ("mul", "mul", "cat"))]


def test_a_partly_overwritten_value_is_still_needed():
    """y is read by neg, then a part of it is filled and the rest used: y stays an output of the group."""
    part = t("y", N // 2)
    (first, *_) = chains(
        eager(
            op("exp", [t("x", N)], t("y", N)),
            op("neg", [t("y", N)], t("z", N)),
            op("aten.zero_.default", [part], part, mutated=[0]),
            op("sort", [t("y", N)], t("w", N)),
        )
    )
    assert "y" in {x.storage for x in first.outputs}


def test_random_data_made_from_nothing_heads_no_chain() -> None:
    x, y, z = (Tensor.contiguous((1 << 20,), "float32", s) for s in "xyz")
    ops = (
        Op(id=0, name="aten.randn.default", outputs=(x,)),
        Op(id=1, name="aten.mul.Tensor", inputs=(x,), outputs=(y,)),
        Op(id=2, name="aten.relu.default", inputs=(y,), outputs=(z,)),
    )
    kernels = tuple(
        Kernel(id=i, name=o.name, category="pointwise", ops=(i,), reads=o.inputs, writes=o.outputs)
        for i, o in enumerate(ops)
    )
    (found,) = chains(Pass(name="eager", engine="deviceless", kernels=kernels, ops=ops))
    assert found.op_ids == (1, 2)


def test_ones_like_reads_no_value():
    """mean -> ones_like (backward's first gradient): the shape is looked at, so the two are no chain."""
    assert kinds(op("mean", [t("x", N)], t("m")), op("ones_like", [t("m")], t("g"))) == []


def test_a_copy_between_devices_is_no_stage_of_a_kernel():
    host, on = t("h", N, device="cpu"), t("x", N)
    to_device = op("aten._to_copy.default", [host], on)
    assert kinds(to_device, op("mul", [on, t("w", N)], t("y", N))) == []
    back = op("aten._to_copy.default", [t("y", N)], t("b", N, device="cpu"))
    assert kinds(op("exp", [on], t("y", N)), back) == []
    chain = kinds(to_device, op("sub", [on, t("m", N)], t("d", N)), op("mul", [t("d", N), t("w", N)], t("y", N)))
    assert chain == [("elementwise", ("sub", "mul"))]


def huge_softmax(*shape, target=None):
    row = (*shape[:-1], 1) if len(shape) > 1 else ()
    made = eager(
        op("exp", [t("x", *shape)], t("e", *shape)),
        op("sum", [t("e", *shape)], t("s", *row)),
        op("div", [t("e", *shape), t("s", *row)], t("o", *shape)),
    )
    return chains(made if target is None else replace(made, device=find_target(target)))


def test_a_reduction_of_everything_ends_before_its_result_is_used():
    """exp, sum, div over one row of 2^26: two kernels that each read x, not one."""
    size = 4 << 26
    (chain,) = huge_softmax(1 << 26)
    assert (chain.kernels, chain.global_bytes, chain.minimum_bytes) == (2, 5 * size + 8, 3 * size + 4)


def test_rows_that_stay_nowhere_on_the_chip_are_read_again():
    size = 4 << 26
    (chain,) = huge_softmax(64, 1 << 20)  # 4 MB a row: 64 of them are more than the L2 cache
    assert (chain.kernels, chain.minimum_bytes) == (1, 3 * size + 4 * 64)
    (chain,) = huge_softmax(1 << 10, 1 << 16)  # 262 KB: those of all SMs fit the L2 cache
    assert (chain.kernels, chain.minimum_bytes) == (1, 2 * size)


def test_rows_stay_on_the_chip_of_the_target():
    size, shape = 4 << 27, (1 << 10, 1 << 17)  # 524 KB a row: 132 of them are more than an H100's 50 MB of L2
    for target, times in (("h100", 3), ("b200", 2), ("l4", 2), ("a100", 3)):
        (chain,) = huge_softmax(*shape, target=target)
        assert chain.minimum_bytes is not None
        assert chain.minimum_bytes // size == times, target


def test_what_costs_more_to_make_again_is_kept_and_read():
    """Eight inputs: the second kernel reads their sum, which the first keeps, and not all of them again."""
    inputs = [t(f"x{i}", N) for i in range(8)]
    adds = [op("add", [inputs[0], inputs[1]], t("a1", N))]
    adds += [op("add", [t(f"a{i}", N), inputs[i + 1]], t(f"a{i + 1}", N)) for i in range(1, 7)]
    (chain,) = chains(eager(*adds, op("sum", [t("a7", N)], t("s")), op("div", [t("a7", N), t("s")], t("o", N))))
    # In: eight; out: o; a7 written, and read with s.
    assert (chain.kernels, chain.minimum_bytes) == (2, (8 + 1 + 2) * 4 * N + 8)


def test_only_what_feeds_a_reduction_is_in_its_group():
    """x is updated; four functions read it, one of them reduces: that one is the group."""
    made = [op("aten.add_.Tensor", [t("x", N)], t("x", N), mutated=[0])]
    made += [op("exp", [t("x", N)], t("e", N)), op("sum", [t("e", N)], t("s"))]
    made += [op(name, [t("x", N)], t(name, N)) for name in ("neg", "sin", "cos")]
    assert kinds(*made) == [("into_reduction", ("add_", "exp", "sum"))]


def test_what_follows_a_reduction_and_what_that_reads_stay_with_it():
    """The mean's last division belongs to its kernel."""
    found = kinds(
        op("exp", [t("x", N)], t("a", N)), op("sum", [t("a", N)], t("s")), op("div", [t("s"), t("n")], t("m"))
    )
    assert found == [("into_reduction", ("exp", "sum", "div"))]


def test_what_reads_a_reductions_input_beside_it_forms_a_group_of_its_own():
    found = kinds(
        op("exp", [t("x", N)], t("a", N)),
        op("sum", [t("a", N)], t("s")),
        op("neg", [t("a", N)], t("b", N)),
        op("sin", [t("b", N)], t("c", N)),
    )
    assert found == [("into_reduction", ("exp", "sum")), ("elementwise", ("neg", "sin"))]


def backward(i: int):
    gradient, made = t(f"g{i}", 4096, 1024), t(f"d{i}", 4096, 1024)
    phase = {"phase": "backward"}
    return (
        op("threshold_backward", [gradient, t(f"x{i}", 4096, 1024)], made, **phase),
        op("sum", [made], t(f"s{i}", 1024), **phase),
        op("aten.add_.Tensor", [t("grad", 1024), t(f"s{i}", 1024)], t("grad", 1024), mutated=[0], **phase),
        op("mm", [made, t("w", 1024, 1024)], t(f"o{i}", 4096, 1024), **phase),
    )


def test_gradients_of_micro_batches_are_no_one_kernel():
    one = ("into_reduction", ("threshold_backward", "sum", "add_"))
    assert kinds(*backward(0), *backward(1), *backward(2)) == [one] * 3


def test_two_sums_that_are_added_up_are_two_groups_unless_they_read_the_same():
    def added(second: str):
        return kinds(
            op("abs", [t("x", N)], t("a", N)),
            op("sum", [t("a", N)], t("s")),
            op("exp", [t(second, N)], t("b", N)),
            op("sum", [t("b", N)], t("r")),
            op("add", [t("s"), t("r")], t("o")),
        )

    assert sorted(len(ops) for _, ops in added("y")) == [2, 3]
    assert [len(ops) for _, ops in added("x")] == [5]


def test_a_tail_on_the_statistics_of_a_norm_is_no_second_look_at_its_rows():
    gradient = [t("g", 4096, 1024), t("x", 4096, 1024)]
    norm = op("cudnn_batch_norm_backward", [t("d", 4096, 1024)], t("o", 4096, 1024), t("w", 1024))
    tail = op("aten.add_.Tensor", [t("grad", 1024), t("w", 1024)], t("grad", 1024), mutated=[0])
    found = kinds(op("threshold_backward", gradient, t("d", 4096, 1024)), norm, tail)
    assert [kind for kind, _ in found] == ["into_reduction"]
