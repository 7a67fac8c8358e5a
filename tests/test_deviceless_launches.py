"""Predicted launches of aten ops, against what ATen's sources and recorded runs say."""

from __future__ import annotations

import pytest

from fusionaudit.capture.unmeasured import AUTOTUNE
from fusionaudit.device import TARGETS, find_target
from fusionaudit.errors import AuditError
from fusionaudit.program.launches import multi_tensor_launches, predicted_launches
from fusionaudit.tensors import Tensor
from fusionaudit.trace.schema import Op


def tensor(*shape: int, storage: str = "a", dtype: str = "float32") -> Tensor:
    return Tensor.contiguous(shape, dtype, storage)


def kinds(name: str, *inputs: Tensor, outputs: tuple[Tensor, ...] = (), **rest: object) -> list[str]:
    op = Op(id=0, name=name, inputs=inputs, outputs=outputs, **rest)  # type: ignore[arg-type]
    return [launch.category for launch in predicted_launches(op)]


def test_sum_abs_is_two_launches_and_three_passes_over_the_data() -> None:
    x, y, s = tensor(1 << 20), tensor(1 << 20, storage="b"), tensor(storage="c")
    launches = [
        *predicted_launches(Op(id=0, name="aten.abs.default", inputs=(x,), outputs=(y,))),
        *predicted_launches(Op(id=1, name="aten.sum.default", inputs=(y,), outputs=(s,))),
    ]
    assert [launch.category for launch in launches] == ["pointwise", "reduction"]
    assert sum((launch.read_bytes or 0) + (launch.write_bytes or 0) for launch in launches) == 3 * (4 << 20) + 4


def test_views_launch_nothing() -> None:
    assert kinds("aten.transpose.int", tensor(4, 8), outputs=(tensor(8, 4),)) == []


def test_contiguous_copies_are_memcpys_and_layout_changes_are_kernels() -> None:
    x = tensor(4, 8)
    turned = Tensor(shape=(4, 8), strides=(1, 4), dtype="float32", storage="b")
    assert kinds("aten.clone.default", x, outputs=(tensor(4, 8, storage="c"),)) == ["memcpy"]
    assert kinds("aten.clone.default", turned, outputs=(tensor(4, 8, storage="c"),)) == ["copy"]


def test_multi_tensor_apply_fills_its_launches() -> None:
    assert multi_tensor_launches([100] * 110, 1) == 1
    assert multi_tensor_launches([100] * 111, 1) == 2
    assert multi_tensor_launches([65536 * 320], 2) == 1
    assert multi_tensor_launches([65536 * 320 + 1], 2) == 2


def test_unknown_targets_name_the_nearest() -> None:
    with pytest.raises(AuditError, match="h200"):
        find_target("h2000")
    assert all(device.source and device.peak_bandwidth_bytes_per_s for device in TARGETS.values())


@pytest.mark.parametrize("key", sorted(TARGETS))
def test_limits_of_an_sm_are_those_of_its_compute_capability(key: str) -> None:
    """CUDA Programming Guide, Compute Capabilities: threads, blocks, KiB of shared memory an SM and a block."""
    table = {(8, 0): (2048, 32, 164, 163), (8, 9): (1536, 24, 100, 99), (9, 0): (2048, 32, 228, 227),
             (10, 0): (2048, 32, 228, 227), (9, 4): (2048, 32, 64, 64)}  # fmt: skip
    device = TARGETS[key]
    kib = [n // 1024 if n else None for n in (device.shared_bytes_per_sm, device.shared_bytes_per_block_optin)]
    assert (device.threads_per_sm, device.blocks_per_sm, *kib) == table[device.compute_capability or (0, 0)]


def test_notes_are_one_line() -> None:
    assert "\n" not in AUTOTUNE


def test_norms_of_scattered_rows_copy_them_first() -> None:
    rows = Tensor(shape=(4, 8), strides=(16, 1), dtype="float32", storage="a")
    out = (tensor(4, 8, storage="b"), tensor(4, 1, storage="c"))
    assert kinds("aten._fused_rms_norm.default", tensor(4, 8), outputs=out) == ["norm"]
    assert kinds("aten._fused_rms_norm.default", rows, outputs=out) == ["copy", "norm"]
    wanted = (tensor(4, 8, storage="d"), tensor(8, storage="e"))
    made = kinds("aten._fused_rms_norm_backward.default", tensor(4, 8), rows, outputs=wanted)
    assert made == ["copy", "norm", "reduction"]


def test_a_stack_of_four_dimensions_is_one_launch() -> None:
    parts = tuple(tensor(2, 3, 4, 5, storage=s) for s in "abc")
    assert kinds("aten.stack.default", *parts, outputs=(tensor(3, 2, 3, 4, 5, storage="d"),)) == ["copy"]


def test_the_norms_of_2000_tensors_as_an_h200_launched_them() -> None:
    parts = tuple(tensor(64, storage=str(i)) for i in range(2000))
    listed = [[{"tensor": i} for i in range(2000)], 2]
    made = kinds("aten._foreach_norm.Scalar", *parts, outputs=parts, arguments=listed)
    assert made == ["pointwise", *["foreach"] * 24]


def test_sums_cast_first_and_powers_of_one_copy() -> None:
    total = (tensor(storage="b", dtype="int64"),)
    assert kinds("aten.sum.default", tensor(8, dtype="bool"), outputs=total) == ["copy", "reduction"]
    assert kinds("aten.sum.default", tensor(8, dtype="bfloat16"), outputs=(tensor(storage="b"),)) == ["reduction"]
    out = (tensor(8, storage="b"),)
    assert kinds("aten.pow.Tensor_Scalar", tensor(8), outputs=out, arguments=[{"tensor": 0}, 1.0]) == ["memcpy"]
    assert kinds("aten.pow.Tensor_Scalar", tensor(8), outputs=out, arguments=[{"tensor": 0}, 2]) == ["pointwise"]


def test_sorted_writes_as_an_h200_launched_them() -> None:
    indices = tensor(1 << 20, storage="i", dtype="int64")
    made = kinds("aten.embedding_dense_backward.default", tensor(1 << 20, 8), indices, outputs=(tensor(64, 8),))
    assert len(made) == 21
    assert made.count("sort") == 10
    four = tensor(4, storage="i", dtype="int64")
    added = kinds("aten.index_put_.default", tensor(64, 8), four, tensor(4, 8), mutated=(0,), arguments=[True])
    assert len(added) == 12
    assert added.count("sort") == 1
    given = [{"tensor": 0}, [{"tensor": 1}], {"tensor": 2}, True, True]
    unsafe = kinds("aten._index_put_impl_.default", tensor(64, 8), four, tensor(4, 8), mutated=(0,), arguments=given)
    assert len(unsafe) == len(added) - 6, "the gradient of an index does not check it again"


def test_a_mask_is_made_indices() -> None:
    mask = tensor(1 << 20, storage="m", dtype="bool")
    assert kinds("aten.nonzero.default", mask, outputs=(tensor(9, 1),)).count("memcpy") == 1
    made = kinds("aten.index.Tensor", tensor(1 << 20), mask, outputs=(tensor(9),))
    assert len([k for k in made if k != "memcpy"]) == 5
