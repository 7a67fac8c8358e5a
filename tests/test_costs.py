"""Bytes and kinds of ops against figures worked out by hand."""

from __future__ import annotations

import pytest
import torch
from builders import op, t
from torch.utils._python_dispatch import TorchDispatchMode

from fusionaudit.capture.calls import Encoded, read_schema
from fusionaudit.inductor.extern_ops import extern_bytes
from fusionaudit.program.costs import category, op_bytes, op_kind, unknown_reason
from fusionaudit.tensors import Tensor

N = 1024


def strided(storage: str, shape: tuple[int, ...], strides: tuple[int, ...], dtype: str = "float32", offset: int = 0):
    return Tensor(shape=shape, strides=strides, dtype=dtype, storage=storage, offset=offset)


@pytest.mark.parametrize(
    ("made", "expected", "kind"),
    [
        (op("add", [t("a", N), t("b", N)], t("c", N)), (8 * N, 4 * N), "pointwise"),
        (op("aten.mul.Tensor", [t("a", N), t("a", N)], t("c", N)), (4 * N, 4 * N), "pointwise"),
        (op("add", [t("a", 64, N), strided("b", (64, N), (0, 1))], t("c", 64, N)),
         (256 * N + 4 * N, 256 * N), "pointwise"),
        (op("add", [t("a", N, dtype="bfloat16"), t("b", N)], t("c", N)), (6 * N, 4 * N), "pointwise"),
        (op("aten.add_.Tensor", [t("a", N), t("b", N)], t("a", N), mutated=[0]), (8 * N, 4 * N), "pointwise"),
        (op("aten.add.out", [t("a", N), t("b", N), t("o", N)], t("o", N), mutated=[2]), (8 * N, 4 * N), "pointwise"),
        (op("gt", [t("a", N)], t("m", N, dtype="bool")), (4 * N, N), "pointwise"),
        (op("mul", [t("a", N, dtype="complex64"), t("b", N, dtype="complex64")], t("c", N, dtype="complex64")),
         (16 * N, 8 * N), "pointwise"),
        (op("aten.max.other", [t("a", N), t("b", N)], t("c", N)), (8 * N, 4 * N), "pointwise"),
        (op("aten._to_copy.default", [t("a", N)], t("c", N, dtype="float8_e4m3fn")), (4 * N, N), "cast"),
        (op("aten.copy_.default", [t("a", N), t("b", N, dtype="bfloat16")], t("a", N), mutated=[0]),
         (2 * N, 4 * N), "copy"),
        (op("clone", [strided("a", (16, 64), (1, 16))], t("c", 16, 64)), (4096, 4096), "copy"),
        (op("aten.zero_.default", [t("a", N)], t("a", N), mutated=[0]), (0, 4 * N), "fill"),
        (op("aten.full.default", [], t("a", N)), (0, 4 * N), "fill"),
        (op("rand_like", [t("a", N)], t("b", N)), (0, 4 * N), "random"),
        (op("native_dropout", [t("a", N)], t("b", N), t("m", N, dtype="bool")), (4 * N, 5 * N), "random"),
        (op("aten.sum.default", [t("a", N, N)], t("s")), (4 * N * N, 4), "reduction"),
        (op("aten.amax.default", [strided("a", (N, 8), (16, 1))], t("s", N)), (32 * N, 4 * N), "reduction"),
        (op("_softmax", [t("a", 8, N)], t("b", 8, N)), (32 * N, 32 * N), "softmax"),
        (op("native_layer_norm", [t("a", 8, N), t("w", N), t("b", N)], t("o", 8, N), t("m", 8), t("r", 8)),
         (40 * N, 32 * N + 64), "norm"),
        (op("cumsum", [t("a", N)], t("b", N)), (4 * N, 4 * N), "scan"),
        (op("aten.cat.default", [t("a", N), t("b", N)], t("c", 2 * N)), (8 * N, 8 * N), "join"),
        (op("aten.constant_pad_nd.default", [t("a", N)], t("c", 2 * N)), (4 * N, 12 * N), "join"),
        (op("embedding", [t("w", 50000, 64), t("i", 10, dtype="int64")], t("o", 10, 64)),
         (10 * 64 * 4 + 80, 2560), "gather"),
        (op("embedding", [t("w", 4, 64), t("i", 100, dtype="int64")], t("o", 100, 64)),
         (4 * 64 * 4 + 800, 25600), "gather"),
        (op("aten.index_put_.default", [t("x", 100, 64), t("v", 3, 64), t("i", 3, dtype="int64")], t("x", 100, 64),
            mutated=[0], arguments=({"tensor": 0}, [{"tensor": 2}], {"tensor": 1})),
         (3 * 64 * 4 + 24, 3 * 64 * 4), "scatter"),
        (op("aten.index_put_.default", [t("x", 100, 64), t("m", 100, dtype="bool"), t("i", 90, dtype="int64")],
            t("x", 100, 64), mutated=[0], arguments=({"tensor": 0}, [{"tensor": 1}, {"tensor": 2}], 1.0)),
         (100 + 720, 90 * 4), "scatter"),
        (op("aten.index_add_.default", [t("x", 100, 64), t("i", 3, dtype="int64"), t("v", 3, 64)], t("x", 100, 64),
            mutated=[0], arguments=({"tensor": 0}, 0, {"tensor": 1}, {"tensor": 2})), (24 + 768 + 768, 768), "scatter"),
        (op("aten.mm.default", [t("a", 8, 16), t("b", 16, 4)], t("c", 8, 4)), (512 + 256, 128), "matmul"),
        (op("aten._foreach_add_.Scalar", [t("a", N), t("b", N)], mutated=[0, 1]), (8 * N, 8 * N), "foreach"),
        (op("aten._fused_adamw_.default", [t("p", N), t("g", N), t("m", N), t("v", N)], mutated=[0, 2, 3]),
         (16 * N, 12 * N), "foreach"),
        (op("aten._local_scalar_dense.default", [t("a", 1)]), (4, 0), "scalar_read"),
        (op("aten._to_copy.default", [t("a", N, device="cpu")], t("b", N)), (0, 4 * N), "transfer"),
        (op("aten.view.default", [t("a", N)], t("a", N)), (0, 0), "view"),
        (op("aten.topk.default", [t("a", N)], t("v", 2), t("i", 2, dtype="int64")), (None, None), "sort"),
        (op("mylib.fancy.default", [t("a", N)], t("b", N)), (None, None), "opaque"),
        (op("aten.something_new.default", [t("a", N)], t("b", N)), (None, None), "opaque"),
        (op("add", [t("a", N, dtype="quint3")], t("b", N)), (None, 4 * N), "pointwise"),
    ],
)  # fmt: skip
def test_bytes_of_an_op(made, expected, kind):
    assert op_kind(made) == kind
    assert op_bytes(made) == expected
    assert (unknown_reason(made) is None) == (None not in expected)


@pytest.mark.parametrize("name", ["view", "t", "expand", "detach", "_unsafe_view", "empty_like", "view_as_complex"])
def test_views_and_allocations_launch_nothing(name):
    assert category(op(name, [t("a", N)], t("a", N))) is None


def test_a_reshape_that_copies_is_a_copy():
    assert category(op("clone", [t("a", N)], t("b", N))) == "copy"


def test_an_op_on_no_elements_launches_nothing():
    assert category(op("add", [t("a", 0)], t("b", 0))) is None


def test_copies_between_host_and_device_are_memcpy():
    assert category(op("aten._to_copy.default", [t("a", N)], t("b", N, device="cpu"))) == "memcpy"


def test_accumulating_index_put_is_unknown_with_a_reason():
    made = op("aten.index_put_.default", [t("x", 8), t("v", 2), t("i", 2, dtype="int64")], mutated=[0],
              arguments=({"tensor": 0}, [{"tensor": 2}], {"tensor": 1}, True))  # fmt: skip
    assert op_bytes(made) == (None, None)
    assert "accumulation" in (unknown_reason(made) or "")


def test_scatters_of_a_graph_move_what_their_indices_name():
    """As the same ops in eager: not the whole of what they write into."""
    x, v, i = t("x", 100, 64), t("v", 3, 64), t("i", 3, dtype="int64")
    row, mask = 64 * 4, t("m", 100, dtype="bool")
    assert extern_bytes("aten.index_put_", [x, i, v], [], [x], [x, [i], v, False]) == (3 * row + 24, 3 * row)
    assert extern_bytes("aten.index_put_", [x, i, v], [], [x], [x, [None, i], v, False]) == (3 * row + 24, 3 * 400)
    assert extern_bytes("aten.index_put_", [x, mask, i], [], [x], [x, [mask, i], 1.0, False]) == (100 + 24, 3 * 4)
    assert extern_bytes("aten.index_put_", [x, mask], [], [x], [x, [mask], 1.0, False]) == (None, None)
    assert extern_bytes("aten.index_put_", [x, i, v], [], [x], [x, [i], v, True]) == (None, None)
    wide = t("j", 3, 64, dtype="int64")
    added = extern_bytes("aten.scatter_add_", [x, wide, v], [], [x], [x, 0, wide, v])
    assert added == (3 * 64 * 8 + 2 * 3 * row, 3 * row)


def test_sorts_are_unknown_in_eager_and_in_graphs_alike():
    x, values, indices = t("a", N), t("v", N), t("i", N, dtype="int64")
    assert op_bytes(op("aten.sort.default", [x], values, indices)) == (None, None)
    for target in ("torch.ops.aten.sort.stable", "torch.ops.aten.topk.default"):
        assert extern_bytes(target, [x], [values, indices]) == (None, None)
    assert extern_bytes("torch.ops.aten.cumsum.default", [x], [values]) == (4 * N, 4 * N)


def _fused(name: str, *lists: str, count: int = 3, **named: object):
    """A fused optimizer's call over ``count`` tensors a list, all but the steps marked as written, as its schema says;
    ``scale`` and ``lr`` are tensors."""
    inputs, arguments, mutated = [], [], []
    for letter in lists:
        here = [t(f"{letter}{i}", *(() if letter == "s" else (N,))) for i in range(count if letter else 0)]
        places = range(len(inputs), len(inputs) + len(here))
        arguments.append([{"tensor": i} for i in places])
        mutated += places if letter != "s" or "adagrad" in name else []
        inputs += here
    for key in ("grad_scale", "found_inf"):
        if named.get(key):
            named[key] = {"tensor": len(inputs)}
            inputs.append(t(key))
    return op(f"aten.{name}.default", inputs, mutated=mutated, arguments=(*arguments, {"kwargs": named}))


@pytest.mark.parametrize(
    ("made", "read", "written"),
    [
        # Parameters, gradients and both moments of 3 tensors, and 3 steps; all but the gradients and steps written.
        (_fused("_fused_adamw_", "p", "g", "m", "v", "", "s", amsgrad=False), 3 * (16 * N + 4), 3 * 12 * N),
        (_fused("_fused_adam_", "p", "g", "m", "v", "", "s", grad_scale=None), 3 * (16 * N + 4), 3 * 12 * N),
        (_fused("_fused_adam_", "p", "g", "m", "v", "x", "s", amsgrad=True), 3 * (20 * N + 4), 3 * 16 * N),
        # A loss scaler's step: the kernel stores what it unscaled, and looks whether there is an infinity.
        (_fused("_fused_adam_", "p", "g", "m", "v", "", "s", grad_scale=True, found_inf=True),
         3 * (16 * N + 4) + 8, 3 * 16 * N),
        (_fused("_fused_adam_", "p", "g", "m", "v", "", "s", found_inf=True), 3 * (16 * N + 4) + 4, 3 * 12 * N),
        (_fused("_fused_sgd_", "p", "g", "", momentum=0.0), 3 * 8 * N, 3 * 4 * N),
        # The buffers are loaded in the first step, too, which does not use what is in them.
        (_fused("_fused_sgd_", "p", "g", "m", momentum=0.9, is_first_step=True), 3 * 12 * N, 3 * 8 * N),
        (_fused("_fused_sgd_", "p", "g", "m", momentum=0.9, grad_scale=True), 3 * 12 * N + 4, 3 * 12 * N),
        (_fused("_fused_adagrad_", "p", "g", "h", "s", lr=0.01), 3 * (12 * N + 4), 3 * 8 * N),
        (_fused("_fused_adagrad_", "p", "g", "h", "s", grad_scale=True), 3 * (12 * N + 4) + 4, 3 * 12 * N),
    ],
)  # fmt: skip
def test_a_fused_optimizer_writes_gradients_only_where_it_unscales_them(made, read, written):
    assert op_bytes(made) == (read, written)


def test_a_recorded_fused_step_moves_seven_values_a_parameter():
    """The call as the recorder sees it, of the optimizer itself: torch names no ``grad_scale`` where there is none."""
    made = []

    class Recorder(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if "_fused_adamw_" in str(func):
                given = Encoded(read_schema(func), args, kwargs or {})
                inputs = [t(f"t{i}", *tensor.shape) for i, tensor in enumerate(given.tensors)]
                made.append(op(read_schema(func).name, inputs, mutated=given.mutated, arguments=tuple(given.arguments)))
            return func(*args, **(kwargs or {}))

    parameters = [torch.nn.Parameter(torch.ones(N)) for _ in range(3)]
    for p in parameters:
        p.grad = torch.ones(N)
    with Recorder():
        torch.optim.AdamW(parameters, fused=True).step()
    assert [op_bytes(o) for o in made] == [(3 * (16 * N + 4), 3 * 12 * N)]
