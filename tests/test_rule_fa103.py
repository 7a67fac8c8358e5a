"""FA103: reduction followed by elementwise work that one kernel does."""

from __future__ import annotations

from builders import DEVICE, eager, op, run, t, warnings

from fusionaudit.rules import fa103

ROWS, ROW = (16384, 1024), (16384, 1)


def rms_norm():
    return (
        op("pow", [t("x", *ROWS)], t("q", *ROWS)),
        op("mean", [t("q", *ROWS)], t("m", *ROW)),
        op("add", [t("m", *ROW)], t("e", *ROW)),
        op("rsqrt", [t("e", *ROW)], t("r", *ROW)),
        op("mul", [t("x", *ROWS), t("r", *ROW)], t("n", *ROWS)),
        op("mul", [t("n", *ROWS), t("w", 1024)], t("y", *ROWS)),
    )


def test_rms_norm_by_hand_names_the_library_call():
    (found,) = warnings(fa103, eager(*rms_norm()))
    assert "rms_norm" in found.remedy
    # Entering: x and w; leaving: y.
    assert found.evidence["minimum_bytes"] == 2 * 4 * 16384 * 1024 + 4096


def test_softmax_by_hand():
    ops = (
        op("amax", [t("x", *ROWS)], t("m", *ROW)),
        op("sub", [t("x", *ROWS), t("m", *ROW)], t("d", *ROWS)),
        op("exp", [t("d", *ROWS)], t("e", *ROWS)),
        op("sum", [t("e", *ROWS)], t("s", *ROW)),
        op("div", [t("e", *ROWS), t("s", *ROW)], t("o", *ROWS)),
    )
    (found,) = warnings(fa103, eager(*ops))
    assert "torch.softmax" in found.remedy


def test_dropout_after_a_library_softmax():
    ops = (
        op("_softmax", [t("x", *ROWS)], t("p", *ROWS)),
        op("native_dropout", [t("p", *ROWS)], t("o", *ROWS), t("k", *ROWS, dtype="bool")),
    )
    assert len(warnings(fa103, eager(*ops))) == 1


def test_silent_where_all_rows_would_have_to_wait():
    """One statistic of the whole tensor cannot go back over it in the same kernel."""
    ops = (op("amax", [t("x", *ROWS)], t("m")), op("div", [t("x", *ROWS), t("m")], t("o", *ROWS)))
    assert not run(fa103, eager(*ops))


def test_silent_on_a_library_norm_alone():
    assert not run(fa103, eager(op("native_layer_norm", [t("x", *ROWS)], t("y", *ROWS), t("m", *ROW), t("r", *ROW))))


def test_one_giant_row_is_two_kernels_and_no_library_call():
    big = 1 << 26
    ops = (
        op("exp", [t("x", big)], t("e", big)),
        op("sum", [t("e", big)], t("s")),
        op("div", [t("e", big), t("s")], t("o", big)),
    )
    (found,) = warnings(fa103, eager(*ops))
    assert "two kernels that each read the input" in found.message
    assert "torch.softmax" not in (found.remedy or "")
    assert found.avoidable_bytes == 2 * 4 * big + 4


def test_a_norms_backward_with_weights_is_two_kernels():
    """a + b -> gradient: its kernel for the columns reads a and b again, or what is kept of their sum."""
    size = 4 * 16384 * 1024
    inputs = [t("g", *ROWS), t("x", *ROWS), t("m", *ROW), t("r", *ROW), t("w", 1024)]
    norm = op("native_layer_norm_backward", inputs, t("d", *ROWS), t("dw", 1024), t("db", 1024))
    ops = (
        op("add", [t("a", *ROWS), t("b", *ROWS)], t("g", *ROWS)),
        norm,
        op("mul", [t("d", *ROWS), t("s", 1024)], t("o", *ROWS)),
    )
    (found,) = run(fa103, eager(*ops))
    assert "two kernels that each read the input" in found.message
    # Now: 3 + 3 + 2 times the rows; the fewest: a, b, x in, o out, and the sum once more.
    assert found.avoidable_bytes == 3 * size
    small = (32, 1024)
    two = [t("g", *small), t("x", *small), t("m", 32, 1), t("r", 32, 1), t("w", 1024)]
    tiny = (
        op("add", [t("a", *small), t("b", *small)], t("g", *small)),
        op("native_layer_norm_backward", two, t("d", *small), t("dw", 1024), t("db", 1024)),
        op("mul", [t("d", *small), t("s", 1024)], t("o", *small)),
    )
    (found,) = run(fa103, eager(*tiny))
    assert found.saving_ns == DEVICE.launch_ns


def test_work_on_the_sums_alone_goes_over_no_row_again():
    ops = (op("sum", [t("x", *ROWS)], t("s", *ROW)), op("_to_copy", [t("s", *ROW)], t("c", *ROW, dtype="bfloat16")))
    (found,) = run(fa103, eager(*ops))
    assert "reduce rows and work on the results" in found.message
    assert found.avoidable_bytes == 2 * 4 * 16384
