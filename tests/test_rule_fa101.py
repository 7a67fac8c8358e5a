"""FA101: unfused elementwise chain."""

from __future__ import annotations

from builders import MEGA, eager, op, run, t, warnings

from fusionaudit.rules import fa101

N = 64 * MEGA


def scale_bias_relu(at: int = 3):
    return (
        op("mul", [t("x", N), t("s", 1)], t("a", N), at=at),
        op("add", [t("a", N), t("b", 1)], t("c", N), at=at),
        op("relu", [t("c", N)], t("y", N), at=at),
    )


def test_three_elementwise_kernels_are_one_finding():
    """x -mul-> a -add-> c -relu-> y: six times x moved, two needed."""
    (found,) = warnings(fa101, eager(*scale_bias_relu()))
    assert found.avoidable_bytes == 4 * 4 * N
    assert found.basis == "predicted"
    assert found.location is not None
    assert found.location.line == 3
    assert "mul, add, relu" in found.message


def test_the_same_chain_each_turn_is_one_finding_with_all_bytes():
    second = tuple(
        op(
            o.name,
            [t(x.storage + "2", *x.shape) for x in o.inputs],
            *[t(y.storage + "2", *y.shape) for y in o.outputs],
            at=3,
        )
        for o in scale_bias_relu()
    )
    (found,) = warnings(fa101, eager(*scale_bias_relu(), *second))
    assert found.evidence["times"] == 2
    assert found.avoidable_bytes == 2 * 16 * N


def test_a_library_call_is_named():
    silu = (op("sigmoid", [t("x", N)], t("a", N)), op("mul", [t("x", N), t("a", N)], t("y", N)))
    (found,) = warnings(fa101, eager(*silu))
    assert "torch.nn.functional.silu" in found.remedy


def test_information_only_where_the_script_compiles_it_anyway():
    compiled = eager(name="compiled")
    (found,) = run(fa101, eager(*scale_bias_relu()), compiled, uses_compile=True)
    assert found.severity == "info"
    assert found.reason is not None


def test_silent_on_unrelated_neighbours_and_on_copies():
    assert not run(fa101, eager(op("exp", [t("x", N)], t("a", N)), op("log", [t("y", N)], t("b", N))))
    assert not run(fa101, eager(op("exp", [t("x", N)], t("a", N)), op("clone", [t("a", N)], t("b", N))))


def test_small_against_the_step_is_information():
    big = [op("mul", [t(f"p{i}", N), t(f"q{i}", N)], t(f"r{i}", N), at=9) for i in range(4)]
    small = (op("exp", [t("x", 64)], t("a", 64)), op("neg", [t("a", 64)], t("b", 64)))
    assert not warnings(fa101, eager(*big, *small))


def test_fingerprint_does_not_depend_on_ids_or_folders():
    (one,) = run(fa101, eager(*scale_bias_relu()))
    (two,) = run(fa101, eager(op("sort", [t("k", 8)], t("l", 8)), *scale_bias_relu()))
    assert one.fingerprint == two.fingerprint
