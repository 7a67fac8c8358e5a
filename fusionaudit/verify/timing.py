"""Times of several versions on the GPU, taken in turns with CUDA events, with the L2 cache cold or warm."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

Run = Callable[[], Any]

CLEAR_GAIN = 0.03
"""A version has to be 3% faster to count as faster. A choice: on an H200 the 10th to 90th percentile of one version's
times at 1 GiB lie 0.4% of the median apart (median over the table), and for 4 of its 77 rows 3% or more."""

MOST_FLUSHES = 400
"""Before one timed call. A choice: 20 ms of host time on an H200; a longer chain's time holds waits for the host."""

LEAST_CLEAN = 5
"""Calls that the host was ahead of and that give a median; with fewer every call counts, and ``waits`` says so."""


def first_line(error: BaseException) -> str:
    """An exception as one short line."""
    lines = str(error).splitlines() or [type(error).__name__]
    return lines[0][:160]


@dataclass(frozen=True, kw_only=True)
class Timing:
    """Median and spread (10th to 90th percentile) of one call, ns on the device; ``count`` calls.

    The median itself lies between ``sure_low_ns`` and ``sure_high_ns`` with 95% confidence (order statistics).
    ``waits``: the device had to wait for the host in these calls, so they are no device times.
    """

    median_ns: int
    low_ns: int
    high_ns: int
    count: int
    sure_low_ns: int
    sure_high_ns: int
    waits: bool = False

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
    """Time all versions in turns, each first in some rounds, so that clocks and neighbours hit all alike.

    Before each timed call a buffer larger than the L2 cache is read (cold), or the version has just run (warm, where
    its data fits). It is read, not written: the timed call must not pay for writing back lines that are not its own.
    That work also lets the host run ahead, so that only device time is counted. A call that the device reached before
    the host had launched all of it is not counted, and the version gets a longer head start from then on.
    """
    flush = flusher()
    flushes = _head_starts(versions, flush, calls=1 if cold else 2)
    clean: dict[str, list[Pair]] = {name: [] for name in versions}
    waited: dict[str, list[Pair]] = {name: [] for name in versions}
    names = list(versions)
    end = time.perf_counter() + budget_s
    for done in range(2 * rounds):
        for name in names[done % len(names) :] + names[: done % len(names)]:
            run = versions[name]
            for _ in range(flushes[name]):
                flush()
            if not cold:
                run()
            start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            start.record()
            run()
            stop.record()
            if start.query():
                waited[name].append((start, stop))
                flushes[name] = min(2 * flushes[name], MOST_FLUSHES)
            else:
                clean[name].append((start, stop))
        torch.cuda.synchronize()
        fewest = min(map(len, clean.values()))
        if fewest >= rounds or (done + 1 >= LEAST_CLEAN and time.perf_counter() > end):
            break
    return {name: _chosen(clean[name], waited[name]) for name in versions}


Pair = tuple[Any, Any]
"""Two events around one call."""


def flusher() -> Run:
    """A call that puts the L2 cache's contents out, leaving nothing behind that would have to be written back."""
    cache = torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size
    buffer = torch.zeros(cache, dtype=torch.float32, device="cuda")  # four times the cache
    total = torch.zeros((), dtype=torch.float32, device="cuda")
    return lambda: torch.sum(buffer, 0, out=total)


def _head_starts(versions: dict[str, Run], flush: Run, *, calls: int) -> dict[str, int]:
    """Flushes so that the device is still busy when the host has launched that many calls; settles the clocks too."""
    flush_ns, before = math.inf, 0.0
    for _ in range(20):  # until two batches take the same time: a GPU that was idle runs at low clocks first
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        start.record()
        for _ in range(10):
            flush()
        stop.record()
        torch.cuda.synchronize()
        before, flush_ns = flush_ns, max(start.elapsed_time(stop) * 1e5, 1.0)
        if abs(flush_ns / before - 1) < CLEAR_GAIN / 3:
            break
    out = {}
    for name, run in versions.items():
        run()
        out[name] = min(1 + math.ceil(1.5 * calls * host_launch_ns(run, repeats=3) / flush_ns), MOST_FLUSHES)
    return out


def _chosen(clean: list[Pair], waited: list[Pair]) -> Timing:
    enough = len(clean) >= LEAST_CLEAN
    pairs = clean if enough else [*clean, *waited]
    return summary([a.elapsed_time(b) * 1e6 for a, b in pairs], waits=not enough)


def summary(times: Sequence[float], *, waits: bool = False) -> Timing:
    """The timing of one version from the times of its calls in ns."""
    times = sorted(times)
    last = len(times) - 1
    # Ranks that hold the median with 95% confidence: of n calls half are shorter, give or take 1.96 sqrt(n) / 2.
    edge = max(math.floor((len(times) - 1.96 * math.sqrt(len(times))) / 2), 0)
    return Timing(
        median_ns=round(statistics.median(times)),
        low_ns=round(times[round(0.1 * last)]),
        high_ns=round(times[round(0.9 * last)]),
        count=len(times),
        sure_low_ns=round(times[edge]),
        sure_high_ns=round(times[last - edge]),
        waits=waits,
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
    try:
        with torch.cuda.graph(graph):
            result = run()
    except RuntimeError:
        # torch leaves the generator in capture: it would refuse to draw from now on.
        generator = torch.cuda.default_generators[torch.cuda.current_device()]
        generator.graphsafe_set_state(generator.clone_state())
        raise
    return graph.replay, (graph, result)


def copy_bandwidth(nbytes: int = 1 << 30) -> float:
    """Bytes a second (read plus written) of a device copy of that size, measured now."""
    source = torch.empty(nbytes // 4, dtype=torch.float32, device="cuda").normal_()
    target = torch.empty_like(source)
    timing = interleaved({"copy": lambda: target.copy_(source)}, rounds=20)["copy"]
    return 2 * nbytes / timing.median_ns * 1e9
