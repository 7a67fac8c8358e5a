"""FA201: launch-bound."""

from __future__ import annotations

from dataclasses import replace

from builders import MEGA, eager, op, program, run, t, warnings

from fusionaudit.config import Config
from fusionaudit.program.model import HostSync
from fusionaudit.rules import fa201


def tiny(count: int, size: int = 1024):
    return [op("exp", [t(f"x{i}", size)], t(f"y{i}", size)) for i in range(count)]


def test_many_small_kernels_are_predicted_to_wait_for_launches():
    (found,) = warnings(fa201, eager(*tiny(200)))
    assert found.basis == "predicted"
    assert found.saving_ns is not None
    assert 200_000 < found.saving_ns < 300_000


def test_gaps_of_the_clean_pass_speak_for_eager():
    before = replace(eager(*tiny(200), engine="nsys"), step_ns=None)
    clean = replace(before, name="clean_eager", step_ns=1_000_000, idle_ns=700_000)
    (found,) = warnings(fa201, before, clean)
    assert found.saving_ns == 700_000 - 200_000
    assert found.basis == "modelled"


def test_silent_on_long_kernels_few_kernels_and_busy_steps():
    assert not run(fa201, eager(*tiny(200, 64 * MEGA)))
    assert not run(fa201, eager(*tiny(20)))
    busy = eager(*tiny(200), engine="nsys")
    assert not run(fa201, busy, replace(busy, name="clean_eager", step_ns=1_000_000, idle_ns=100_000))


def test_information_where_the_host_reads_in_the_step():
    reads = [HostSync(name="item"), HostSync(name="item")]
    (found,) = run(fa201, eager(*tiny(200), syncs=reads))
    assert found.severity == "info"
    assert "FA204" in (found.reason or "")


def test_a_step_of_few_launches_that_leaves_the_gpu_idle_is_noted():
    """sum_abs compiled on the H200: two launches, 387 us of 624 us idle. No launch cost, but nothing to pass over."""
    clean = replace(eager(*tiny(2), engine="nsys"), name="clean", step_ns=624_000, idle_ns=387_000)
    assert not run(fa201, clean)
    (note,) = fa201.idle_notes(program(clean), Config())
    assert (note.kind, note.blocks, note.pass_name) == ("idle", False, "clean")
    assert "387 us of the 624 us of a step, with 2 launches in it" in note.text
    silent = [
        replace(clean, name="eager"),
        replace(clean, name="imported"),
        replace(clean, idle_ns=100_000),
        replace(clean, steps=0),
        replace(eager(*tiny(200), engine="nsys"), name="clean", step_ns=1_000_000, idle_ns=700_000),
    ]
    assert not any(fa201.idle_notes(program(p), Config()) for p in silent)
