"""FA301: spills to local memory."""

from __future__ import annotations

import pytest
from builders import MEGA, call, compiled, graph, run, t, warnings

from fusionaudit.rules import fa301

G = graph(call("triton_red_0", [t("x", 16 * MEGA)], [t("y", 16 * MEGA)], kernel="reduction"), outputs=["y"])


def test_spills_that_ptxas_counts():
    (found,) = warnings(fa301, compiled(G, spill_bytes=120, registers=255))
    assert "120 bytes" in found.message
    assert found.confidence == "high"


@pytest.mark.parametrize(
    ("registers", "threads", "spills"),
    [(255, 256, True), (64, 1024, True), (16, 1024, False), (128, 256, False), (None, 256, False)],
)
def test_local_memory_counts_where_no_register_is_left(registers: int | None, threads: int, spills: bool):
    """The generated sine of a 3.7 MB tensor on an H200: 16 registers, 32 bytes for large angles."""
    found = warnings(
        fa301, compiled(G, local_memory_bytes=32, registers=registers, block=(threads, 1, 1), engine="kineto")
    )
    assert [f.confidence for f in found] == ["medium"] * spills


def test_silent_on_none_and_on_a_few_bytes():
    assert not run(fa301, compiled(G, spill_bytes=0))
    assert not run(fa301, compiled(G, spill_bytes=8))
    assert not run(fa301, compiled(G))


def test_information_on_a_kernel_as_short_as_its_launch():
    short = graph(call("triton_poi_0", [t("x", 1024)], [t("y", 1024)]), outputs=["y"])
    (found,) = run(fa301, compiled(short, spill_bytes=204))
    assert found.severity == "info"
