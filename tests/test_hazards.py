"""One kernel must not overwrite what another of its threads has yet to read."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

from builders import MEGA, call, compiled, eager, graph, op, run, t

from fusionaudit.inductor.kernels import shifts
from fusionaudit.program.chains import chains
from fusionaudit.rules import fa105
from fusionaudit.tensors import Tensor, overlap

N = 16 * MEGA
X = t("x", N)
HEAD, TAIL = replace(X, shape=(N - 1,)), replace(X, shape=(N - 1,), offset=1)
SQUARE = t("x", 4096, 4096)
TURNED = replace(SQUARE, strides=(1, 4096))


def groups(*ops):
    return [tuple(o.split(".")[1] for o in c.ops) for c in chains(eager(*ops))]


def test_a_neighbour_is_not_overwritten_by_the_kernel_that_reads_it():
    t_ = t("t", N - 1)
    assert groups(op("mul", [HEAD], t_), op("aten.add_.Tensor", [TAIL, t_], TAIL, mutated=[0])) == []


def test_a_copy_that_keeps_the_neighbour_is_no_copy_too_many():
    kept = t("t", N - 1)
    ops = (
        op("exp", [t("y", N)], X),
        op("clone", [HEAD], kept),
        op("aten.add_.Tensor", [TAIL, kept], TAIL, mutated=[0]),
    )
    assert not run(fa105, eager(*ops))
    assert not run(fa105, eager(*ops[1:]))


def test_a_copy_of_what_is_overwritten_at_the_same_place_joins():
    kept = t("t", N)
    ops = (op("clone", [X], kept), op("aten.add_.Tensor", [X, kept], X, mutated=[0]))
    assert groups(*ops) == [("clone", "add_")]


def test_an_update_from_other_places_is_a_kernel_of_its_own():
    rolled, doubled, out = t("r", N), t("t", N), t("o", N)
    found = groups(
        op("mul", [X], doubled),
        op("roll", [X], rolled),
        op("aten.copy_.default", [X, rolled], X, mutated=[0]),
        op("add", [doubled, X], out),
    )
    assert found == [("mul", "copy_", "add")]


def test_a_transposed_update_in_place_races():
    made = t("t", 4096, 4096)
    assert groups(op("add", [TURNED], made), op("aten.copy_.default", [SQUARE, made], SQUARE, mutated=[0])) == []
    turned = replace(made, strides=(1, 4096))
    # The intermediate is turned instead: the same race.
    assert groups(op("add", [SQUARE], made), op("aten.copy_.default", [SQUARE, turned], SQUARE, mutated=[0])) == []
    # Turned on both sides, each element stays where it is.
    assert groups(op("add", [TURNED], turned), op("aten.copy_.default", [TURNED, turned], TURNED, mutated=[0])) != []


def test_softmax_in_place_is_one_kernel():
    rows, row = (4096, 1024), (4096, 1)
    x, e, s, o = t("x", *rows), t("e", *rows), t("s", *row), t("o", *rows)
    found = groups(
        op("exp", [x], e),
        op("sum", [e], s),
        op("div", [e, s], o),
        op("aten.copy_.default", [x, o], x, mutated=[0]),
    )
    assert found == [("exp", "sum", "div", "copy_")]


def test_halves_that_share_no_element_do_not_race():
    """Rotary embedding in place: each half is written from both."""
    left = replace(t("x", 4096, 64), shape=(4096, 32))
    right = replace(left, offset=32)
    a, b = t("a", 4096, 32), t("b", 4096, 32)
    found = groups(
        op("sub", [left, right], a),
        op("add", [left, right], b),
        op("aten.copy_.default", [left, a], left, mutated=[0]),
        op("aten.copy_.default", [right, b], right, mutated=[0]),
    )
    assert found == [("sub", "copy_"), ("add", "copy_")] or len(found) == 1


def test_a_matmul_does_not_overwrite_its_own_operand():
    made, w = t("t", 4096, 4096), t("w", 4096, 4096)
    assert groups(op("mm", [SQUARE, w], made), op("aten.copy_.default", [SQUARE, made], SQUARE, mutated=[0])) == []


def test_overlap_is_exact_for_slices_and_never_misses():
    random.seed(1)

    def view() -> Tensor:
        rank = random.randint(1, 3)
        return Tensor(
            shape=tuple(random.randint(1, 5) for _ in range(rank)),
            strides=tuple(random.choice((0, 1, 2, 5, 8, 16)) for _ in range(rank)),
            dtype="float32",
            storage="x",
            offset=random.randint(0, 20),
        )

    def elements(tensor: Tensor) -> set[int]:
        places = itertools.product(*map(range, tensor.shape))
        return {tensor.offset + sum(i * s for i, s in zip(p, tensor.strides, strict=True)) for p in places}

    for _ in range(2000):
        a, b = view(), view()
        if elements(a) & elements(b):
            assert overlap(a, b)
    whole = t("x", 64)
    assert not overlap(replace(whole, shape=(32,), strides=(2,)), replace(whole, shape=(32,), strides=(2,), offset=1))
    assert not overlap(
        replace(whole, shape=(8, 4), strides=(8, 1)), replace(whole, shape=(8, 4), offset=4, strides=(8, 1))
    )


UPDATE = """
def triton_poi_0(in_ptr0, out_ptr0, xnumel, XBLOCK : tl.constexpr):
    xnumel = 1024
    xindex = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)[:]
    xmask = xindex < xnumel
    x0 = xindex
    tmp0 = tl.load(in_ptr0 + (x0), xmask)
    tmp1 = tl.load(in_ptr0 + (SHIFT + x0), xmask)
    tl.store(out_ptr0 + (x0), tmp0 + tmp1, xmask)
"""
BACK = """
def triton_poi_1(in_ptr0, out_ptr0, xnumel, XBLOCK : tl.constexpr):
    xnumel = 1024
    xindex = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)[:]
    xmask = xindex < xnumel
    x0 = xindex
    tmp0 = tl.load(in_ptr0 + (x0), xmask)
    tl.store(out_ptr0 + (x0), tmp0, xmask)
"""


def test_shifts_of_a_kernel():
    assert shifts("triton_poi_0", UPDATE.replace("SHIFT", "1")) == {(0, 0): frozenset({0, -1})}
    assert shifts("triton_poi_1", BACK) == {(0, 0): frozenset({0})}


def copied_back(shift: str):
    x, tmp = t("x", N), t("tmp", N)
    update = call("triton_poi_0", [x], [tmp], aten=["add"], source=UPDATE.replace("SHIFT", shift))
    back = call("triton_poi_1", [tmp], [x], aten=["copy_"], kernel="copy", source=BACK)
    return run(fa105, compiled(graph(update, back, inputs=[x])))


def test_a_copy_back_that_a_race_needs_is_no_finding():
    assert copied_back("1") == []


def test_a_copy_back_that_nothing_needs_is_one_finding():
    (found,) = copied_back("0")
    assert "full-size temporary" in found.message


SCATTER = """
def triton_poi_2(in_ptr0, in_ptr1, out_ptr0, xnumel, XBLOCK : tl.constexpr):
    xnumel = 16
    xindex = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)[:]
    xmask = xindex < xnumel
    x0 = xindex
    tmp0 = tl.load(in_ptr0 + (x0), xmask)
    tmp1 = tl.load(in_ptr1 + (x0), xmask)
    tl.atomic_add(out_ptr0 + (tmp0), tmp1, xmask, sem="relaxed")
"""


def test_a_scatter_into_the_temporary_moves_nothing_of_the_input():
    x, tmp = t("x", N), t("tmp", N)
    update = call("triton_poi_0", [x], [tmp], aten=["slice_scatter"], source=UPDATE.replace("SHIFT", "0"))
    indices, values = t("i", 16, dtype="int64"), t("v", 16)
    scatter = call("triton_poi_2", [indices, values, tmp], [tmp], aten=["index_put"], source=SCATTER)
    back = call("triton_poi_1", [tmp], [x], aten=["copy_"], kernel="copy", source=BACK)
    (found,) = run(fa105, compiled(graph(update, scatter, back, inputs=[x])))
    assert "full-size temporary" in found.message
