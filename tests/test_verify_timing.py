"""Timing on a device that is only simulated: a host with a clock and a queue of work behind it."""

from __future__ import annotations

import pytest

from fusionaudit.verify import timing
from fusionaudit.verify.timing import LEAST_CLEAN, interleaved, summary


class Device:
    """A host and a device in ns. ``launch`` takes the host ``host_ns`` and queues ``device_ns`` of work."""

    def __init__(self, flush_ns: int = 30_000, launch_ns: int = 5_000) -> None:
        self.host, self.device, self.flush_ns, self.launch_ns, self.flushes = 0, 0, flush_ns, launch_ns, 0

    def launch(self, device_ns: int, host_ns: int | None = None) -> None:
        self.host += self.launch_ns if host_ns is None else host_ns
        self.device = max(self.device, self.host) + device_ns

    def flush(self) -> None:
        self.flushes += 1
        self.launch(self.flush_ns)

    def chain(self, kernels: int, device_ns: int, host_ns: int | None = None):
        def run() -> None:
            for _ in range(kernels):
                self.launch(device_ns, host_ns)

        return run


class Event:
    def __init__(self, device: Device) -> None:
        self.device, self.at = device, 0

    def record(self) -> None:
        self.at = max(self.device.device, self.device.host)

    def query(self) -> bool:
        return self.at <= self.device.host

    def elapsed_time(self, other: Event) -> float:
        return (other.at - self.at) / 1e6


@pytest.fixture
def device(monkeypatch):
    found = Device()

    def synchronize() -> None:
        found.host = max(found.host, found.device)

    monkeypatch.setattr(timing.torch.cuda, "Event", lambda **_: Event(found))
    monkeypatch.setattr(timing.torch.cuda, "synchronize", synchronize)
    monkeypatch.setattr(timing, "flusher", lambda: found.flush)
    monkeypatch.setattr(timing.time, "perf_counter_ns", lambda: found.host)
    monkeypatch.setattr(timing.time, "perf_counter", lambda: found.host / 1e9)
    return found


@pytest.mark.parametrize("cold", [False, True])
def test_device_time_of_chains_that_the_host_launches_slowly(device, cold):
    """Kernels of 2 us that the host takes 20 us to launch each: what counts is the 2 us."""
    versions = {"eager": device.chain(8, 2_000, 20_000), "fused": device.chain(1, 2_500, 20_000)}
    found = interleaved(versions, cold=cold)
    assert (found["eager"].median_ns, found["fused"].median_ns) == (16_000, 2_500)
    assert not found["eager"].waits
    assert found["eager"].count >= 20


def test_calls_that_waited_for_the_host_are_left_out(device):
    """The host is held up in every third call, far longer than the head start."""
    calls = 0

    def run() -> None:
        nonlocal calls
        calls += 1
        device.launch(1_000, 200_000 if calls % 3 == 0 and calls > 8 else 5_000)
        device.launch(1_000)

    found = interleaved({"eager": run})["eager"]
    assert (found.median_ns, found.high_ns, found.waits) == (2_000, 2_000, False)


def test_a_host_that_no_head_start_can_cover_is_said(device):
    found = interleaved({"eager": device.chain(2, 1_000, 50_000_000)}, rounds=6)["eager"]
    assert found.waits
    assert found.median_ns > 40_000_000


def test_head_start_is_no_longer_than_needed(device):
    interleaved({"fused": device.chain(1, 2_500)}, rounds=10)
    assert device.flushes <= 10 * 2 + 40


def test_versions_take_turns_in_going_first(device):
    order: list[str] = []
    versions = {name: (lambda n=name: (order.append(n), device.launch(1_000))) for name in "abc"}
    interleaved(versions, rounds=6)
    firsts = order[-18::3]
    assert set(firsts) == {"a", "b", "c"}


def test_the_median_lies_between_its_bounds():
    found = summary([float(i) for i in range(100)])
    assert (found.sure_low_ns, found.sure_high_ns) == (40, 59)
    few = summary([5.0, 1.0, 3.0, 2.0, 4.0])
    assert (few.median_ns, few.sure_low_ns, few.sure_high_ns, few.count) == (3, 1, 5, LEAST_CLEAN)
