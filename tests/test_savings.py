"""What a fused form saves in time: durations, the idle time between launches, and epilogues of matmuls."""

from __future__ import annotations

from dataclasses import replace

from builders import DEVICE, MEGA, eager, op, run, t

from fusionaudit.rules import fa101, fa104

N = 2048
X, Y, Z = (t(name, N, N) for name in "xyz")
BYTES = 4 * N * N


def measured(*ops, ns):
    """The ops as an engine measured them, each kernel with its duration."""
    p = eager(*ops, engine="kineto")
    kernels = tuple(replace(k, duration_ns=d, time_basis="measured") for k, d in zip(p.kernels, ns, strict=True))
    return replace(p, kernels=kernels)


def test_a_spared_launch_also_spares_the_wait_before_it():
    chain = [op("abs", [X], Y), op("exp", [Y], Z), op("neg", [Z], t("o", N, N))]
    (found,) = run(fa101, measured(*chain, ns=[20_000, 20_000, 20_000]))
    assert found.saving_ns == 60_000 - DEVICE.transfer_ns(2 * BYTES) + 2 * 900
    (predicted,) = run(fa101, eager(*chain))
    assert predicted.saving_ns == 2 * DEVICE.transfer_ns(2 * BYTES)  # a predicted kernel holds its launch


def test_the_share_of_the_step_is_one_of_kernel_times():
    (found,) = run(fa101, measured(op("abs", [X], Y), op("exp", [Y], Z), ns=[20_000, 20_000]))
    assert found.evidence["share_of_step"] == round((found.saving_ns - 900) / 40_000, 4)


A, W = t("a", N, 64), t("w", 64, N)


def test_an_epilogue_saves_no_more_than_what_stands_behind_the_matmul():
    """The matmul's result came from the L2 cache: it was read faster than memory gives it."""
    (found,) = run(fa104, measured(op("mm", [A, W], X), op("relu", [X], Y), ns=[30_000, 5_000]))
    assert DEVICE.transfer_ns(2 * BYTES) > 5_000
    assert found.saving_ns == 5_000 + 900


def test_slow_kernels_behind_a_matmul_save_more_than_their_bytes():
    """At a quarter of the bandwidth: one kernel in their place saves more than an epilogue's bytes would take."""
    ops = [op("mm", [A, W], X), op("pow", [X], Y), op("tanh", [Y], Z)]
    (found,) = run(fa104, measured(*ops, ns=[30_000, 35_000, 35_000]))
    operands = 2 * 4 * 64 * N
    one_kernel = DEVICE.transfer_ns(2 * BYTES)
    assert found.evidence["minimum_bytes"] == operands + BYTES
    assert found.saving_ns == 70_000 - one_kernel + 2 * 900
    assert found.saving_ns > DEVICE.transfer_ns(found.avoidable_bytes) + 2 * 900


def test_a_share_of_a_step_whose_time_is_not_known_is_not_told() -> None:
    """A matmul has no predicted time: the report says that the step's is not known, so no finding has a part of it."""
    chain = (op("exp", [t("x", MEGA)], t("a", MEGA)), op("neg", [t("a", MEGA)], t("b", MEGA)))
    (known,) = run(fa101, eager(*chain))
    assert known.evidence["share_of_step"] > 0
    product = op("mm", [t("p", 64, 64), t("q", 64, 64)], t("r", 64, 64))
    (found,) = run(fa101, eager(*chain, product))
    assert found.evidence["share_of_step"] is None
    assert found.saving_ns == known.saving_ns
