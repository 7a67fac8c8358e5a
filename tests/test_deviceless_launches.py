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


def test_notes_are_one_line() -> None:
    assert "\n" not in AUTOTUNE
