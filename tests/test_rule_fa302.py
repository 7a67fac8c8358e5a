"""FA302: registers or shared memory cap occupancy."""

from __future__ import annotations

from builders import MEGA, call, compiled, graph, run, t, warnings

from fusionaudit.rules import fa302

G = graph(call("triton_red_0", [t("x", 64 * MEGA)], [t("y", 64 * MEGA)], kernel="reduction"), outputs=["y"])


def test_low_occupancy_of_a_slow_kernel():
    (found,) = warnings(fa302, compiled(G, occupancy=0.125, registers=255, duration_ns=400_000))
    assert found.evidence["occupancy"] == 0.125


def test_occupancy_from_a_launch():
    """255 registers in blocks of 256: one block fits, 256 of 2048 threads."""
    (found,) = run(fa302, compiled(G, registers=255, block=(256, 1, 1), duration_ns=400_000))
    assert found.evidence["occupancy"] == 0.125


def test_information_where_it_is_fast_anyway_or_not_measured():
    assert not warnings(fa302, compiled(G, occupancy=0.125, duration_ns=130_000))
    assert not warnings(fa302, compiled(G, occupancy=0.125))


def test_silent_on_good_occupancy():
    assert not run(fa302, compiled(G, occupancy=0.5, duration_ns=400_000))


def test_silent_where_all_blocks_are_resident_anyway():
    """32 blocks of 128 threads on an H100 (case50, H200): nothing waits for a register, whatever a block takes."""
    slow = {"registers": 141, "block": (128, 1, 1), "duration_ns": 400_000}
    assert not run(fa302, compiled(G, grid=(32, 1, 1), **slow))
    assert run(fa302, compiled(G, grid=(32_000, 1, 1), **slow))
