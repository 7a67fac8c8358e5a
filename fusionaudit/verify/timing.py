"""Times of several versions on the GPU, taken in turns with CUDA events, with the L2 cache cold or warm."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch

Run = Callable[[], Any]

CLEAR_GAIN = 0.03
"""A version has to be 3% faster to count as faster. A choice: on an H200 the 10th to 90th percentile of one version's
times at 1 GiB lie 0.4% of the median apart (median over the table), and for 4 of its 77 rows 3% or more."""

MOST_FLUSHES = 400
"""Before one timed call. A choice: 10 ms of host time on an H200; a longer chain's time holds waits for the host."""


def first_line(error: BaseException) -> str:
    """An exception as one short line."""
    lines = str(error).splitlines() or [type(error).__name__]
    return lines[0][:160]


@dataclass(frozen=True, kw_only=True)
class Timing:
    """Median and spread (10th to 90th percentile) of one call, ns on the device; ``count`` calls."""

    median_ns: int
    low_ns: int
    high_ns: int
    count: int

    def to_json(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)


def host_launch_ns(run: Run, *, repeats: int = 20) -> int:
    """Median host time of one call, without waiting for the device."""
    times = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        start = time.perf_counter_ns()
        run()
        times.append(time.perf_counter_ns() - start)
    torch.cuda.synchronize()
    return round(statistics.median(times))


def interleaved(
    versions: dict[str, Run], *, cold: bool = True, rounds: int = 20, budget_s: float = 2.0
) -> dict[str, Timing]:
    """Time all versions in turns, so that clocks and neighbours hit all alike.

    Before each timed call the cache is written over (cold) or the version has just run (warm, where its data fits);
    that work also lets the host run ahead, so launches of a long chain queue up and only device time is counted.
    """
    cache = torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size
    flush = torch.empty(2 * cache, dtype=torch.uint8, device="cuda")
    flushes = _flushes(versions, flush, calls=1 if cold else 2)
    events: dict[str, list[tuple[torch.cuda.Event, torch.cuda.Event]]] = {name: [] for name in versions}
    end = time.perf_counter() + budget_s
    for done in range(rounds):
        for name, run in versions.items():
            for _ in range(flushes[name]):
                flush.fill_(done % 251)
            if not cold:
                run()
            start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            start.record()
            run()
            stop.record()
            events[name].append((start, stop))
        torch.cuda.synchronize()
        if done >= 4 and time.perf_counter() > end:
            break
    return {name: _timing([a.elapsed_time(b) * 1e6 for a, b in pairs]) for name, pairs in events.items()}


def _flushes(versions: dict[str, Run], flush: torch.Tensor, *, calls: int) -> dict[str, int]:
    """Times to write the buffer so that the device is still busy when the host has launched that many calls."""
    flush.fill_(0)
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    start.record()
    for _ in range(10):
        flush.fill_(1)
    stop.record()
    torch.cuda.synchronize()
    flush_ns = max(start.elapsed_time(stop) * 1e5, 1.0)
    out = {}
    for name, run in versions.items():
        run()
        out[name] = min(1 + math.ceil(1.5 * calls * host_launch_ns(run, repeats=3) / flush_ns), MOST_FLUSHES)
    return out


def _timing(times: list[float]) -> Timing:
    times = sorted(times)
    last = len(times) - 1
    return Timing(
        median_ns=round(statistics.median(times)),
        low_ns=round(times[round(0.1 * last)]),
        high_ns=round(times[round(0.9 * last)]),
        count=len(times),
    )


def capture_graph(run: Run) -> tuple[Run, Any]:
    """A CUDA graph of one call: (replay, the captured result). Raises RuntimeError where it cannot be captured."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = run()
    return graph.replay, (graph, result)


def copy_bandwidth(nbytes: int = 1 << 30) -> float:
    """Bytes a second (read plus written) of a device copy of that size, measured now."""
    source = torch.empty(nbytes // 4, dtype=torch.float32, device="cuda").normal_()
    target = torch.empty_like(source)
    timing = interleaved({"copy": lambda: target.copy_(source)}, rounds=20)["copy"]
    return 2 * nbytes / timing.median_ns * 1e9
