from __future__ import annotations

from fusionaudit.tensors import Tensor, total_bytes


def strided(
    shape: tuple[int, ...], strides: tuple[int, ...], dtype: str = "float32", storage: str | None = None
) -> Tensor:
    return Tensor(shape=shape, strides=strides, dtype=dtype, storage=storage)


def test_bytes_count_distinct_elements() -> None:
    assert strided((4, 8), (8, 1)).nbytes == 128
    assert strided((4, 8), (0, 1)).nbytes == 32, "a broadcast counts what is stored"
    assert strided((8, 4), (1, 8)).nbytes == 128, "a transpose moves the same bytes"
    assert strided((4, 2), (8, 1)).nbytes == 32, "a slice counts what it touches"
    assert strided((6, 3), (1, 1)).nbytes == 32, "overlapping windows count their span"
    assert strided((0, 8), (8, 1)).nbytes == 0
    assert strided((), (), "bfloat16").nbytes == 2
    assert strided((4,), (1,), "no_such_dtype").nbytes is None


def test_total_counts_one_region_once() -> None:
    a = strided((4, 8), (8, 1), storage="s")
    assert total_bytes([a, a]) == 128
    assert total_bytes([a, strided((4, 8), (8, 1), storage="t")]) == 256
    assert total_bytes([a, strided((4,), (1,), "unknown")]) is None


def test_contiguity_ignores_dimensions_of_one() -> None:
    assert strided((4, 1, 8), (8, 999, 1)).is_contiguous
    assert not strided((4, 8), (1, 4)).is_contiguous


def test_json_round_trip() -> None:
    tensor = Tensor(shape=(2, 3), strides=(3, 1), dtype="bool", storage="s1", offset=4, device="cpu", is_parameter=True)
    assert Tensor.from_json(tensor.to_json()) == tensor
