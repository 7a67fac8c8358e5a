"""FA102: elementwise producer not fused into the reduction that reads it."""

from __future__ import annotations

from builders import MEGA, eager, op, run, t, warnings

from fusionaudit.rules import fa102

N = 256 * MEGA


def test_abs_sum():
    """2^28 floats: 3.2 GB now, 1.07 GB needed."""
    (found,) = warnings(fa102, eager(op("abs", [t("x", N)], t("a", N), at=5), op("sum", [t("a", N)], t("s"), at=5)))
    assert found.avoidable_bytes == 2 * 4 * N
    assert found.location is not None
    assert found.location.line == 5


def test_producer_of_a_library_softmax():
    shape = (8192, 1024)
    (found,) = warnings(
        fa102,
        eager(
            op("add", [t("x", *shape), t("m", 1, 1024)], t("a", *shape)),
            op("_softmax", [t("a", *shape)], t("p", *shape)),
        ),
    )
    assert found.ops == ("aten.add.default", "aten._softmax.default")


def test_elements_that_are_needed_elsewhere_too_do_not_vanish():
    """mag is read by a sort as well: only one read is saved, and nothing of the write."""
    found = run(
        fa102,
        eager(
            op("abs", [t("x", N)], t("a", N)),
            op("sum", [t("a", N)], t("s")),
            op("sort", [t("a", N)], t("o", N)),
        ),
    )
    assert [f.avoidable_bytes for f in found] == [4 * N]
    assert "only the reduction" not in found[0].message
    assert "as it writes them for others" in found[0].message
    assert "still written" in found[0].remedy


def test_silent_on_a_reduction_of_something_else():
    assert not run(fa102, eager(op("abs", [t("x", N)], t("a", N)), op("sum", [t("y", N)], t("s"))))


def test_silent_on_another_stream():
    assert not run(fa102, eager(op("abs", [t("x", N)], t("a", N)), op("sum", [t("a", N)], t("s"), stream=3)))
