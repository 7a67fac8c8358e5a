"""The parts of ``torch.cuda`` that act: streams, events, memory figures, generators, graphs, NVTX."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from fusionaudit.capture.patches import Patches

Sync = Callable[[str], None]
"""Told of each wait for the device by its name (``torch.cuda.synchronize``)."""


def redirect_api(patches: Patches, *, on_sync: Sync, on_opaque: Callable[[str], None], total_memory: int) -> None:
    """Replace what a script may call on ``torch.cuda``; ``on_opaque`` is told of launches with unknown insides."""
    stream_class, event_class = _stream_classes(on_sync)
    default = stream_class()
    cuda = torch.cuda

    def synchronize(device: Any = None) -> None:
        if not torch.compiler.is_compiling():
            on_sync("torch.cuda.synchronize")

    @contextlib.contextmanager
    def use_stream(stream: Any) -> Iterator[None]:
        yield

    answers: dict[str, Any] = {
        "synchronize": synchronize,
        "Stream": stream_class,
        "ExternalStream": stream_class,
        "Event": event_class,
        "stream": use_stream,
        "current_stream": lambda device=None: default,
        "default_stream": lambda device=None: default,
        "set_stream": lambda stream: None,
        "empty_cache": lambda: None,
        "ipc_collect": lambda: None,
        "memory_allocated": lambda device=None: 0,
        "max_memory_allocated": lambda device=None: 0,
        "memory_reserved": lambda device=None: 0,
        "max_memory_reserved": lambda device=None: 0,
        "memory_cached": lambda device=None: 0,
        "max_memory_cached": lambda device=None: 0,
        "reset_peak_memory_stats": lambda device=None: None,
        "reset_max_memory_allocated": lambda device=None: None,
        "reset_accumulated_memory_stats": lambda device=None: None,
        "memory_stats": lambda device=None: {},
        "memory_summary": lambda device=None, abbreviated=False: "",
        "mem_get_info": lambda device=None: (total_memory, total_memory),
        "utilization": lambda device=None: 0,
        "manual_seed": lambda seed: None,
        "manual_seed_all": lambda seed: None,
        "set_per_process_memory_fraction": lambda fraction, device=None: None,
        "CUDAGraph": _graph_class(on_opaque),
        "graph": _capture_graph,
        "make_graphed_callables": lambda callables, sample_args, *args, **kwargs: callables,
        "is_current_stream_capturing": lambda: False,
    }
    for name, answer in answers.items():
        patches.set(cuda, name, answer, optional=True)
    for name in ("memory_allocated", "max_memory_allocated", "empty_cache", "memory_stats", "mem_get_info"):
        patches.set(cuda.memory, name, answers[name], optional=True)
    for name in ("range_push", "range_pop", "mark", "range_start", "range_end"):
        patches.set(cuda.nvtx, name, lambda *args, **kwargs: 0, optional=True)
    patches.set(torch, "Generator", _generator_class())
    profiler = torch.autograd.profiler
    patches.set(profiler, "emit_nvtx", lambda *args, **kwargs: contextlib.nullcontext(), optional=True)


def _stream_classes(on_sync: Sync) -> tuple[type, type]:
    class Stream:
        """A stream on which everything is already done."""

        cuda_stream = stream_id = device_index = 0
        device = torch.device("cuda", 0)
        device_type = 1

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            pass

        def synchronize(self) -> None:
            on_sync("torch.cuda.Stream.synchronize")

        def wait_stream(self, stream: Any) -> None:
            pass

        def wait_event(self, event: Any) -> None:
            pass

        def record_event(self, event: Any = None) -> Any:
            event = Event() if event is None else event
            event.record(self)
            return event

        def query(self) -> bool:
            return True

        def __enter__(self) -> Stream:
            return self

        def __exit__(self, *args: Any) -> None:
            pass

    class Event:
        """An event that has always happened; the times between two are the host's."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self._at = time.perf_counter()

        def record(self, stream: Any = None) -> None:
            self._at = time.perf_counter()

        def wait(self, stream: Any = None) -> None:
            pass

        def query(self) -> bool:
            return True

        def synchronize(self) -> None:
            on_sync("torch.cuda.Event.synchronize")

        def elapsed_time(self, end: Any) -> float:
            return max(1e3 * (end._at - self._at), 1e-3)

    return Stream, Event


def _graph_class(on_opaque: Callable[[str], None]) -> type:
    class CUDAGraph:
        """A graph captured by hand: what is captured runs once; a replay is one launch that cannot be looked into."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            pass

        def capture_begin(self, *args: Any, **kwargs: Any) -> None:
            pass

        def capture_end(self) -> None:
            pass

        def replay(self) -> None:
            on_opaque("cuda.CUDAGraph.replay")

        def reset(self) -> None:
            pass

        def pool(self) -> tuple[int, int]:
            return (0, 0)

    return CUDAGraph


class _capture_graph(contextlib.AbstractContextManager[None]):  # noqa: N801 (torch.cuda.graph's own name)
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __exit__(self, *args: Any) -> None:
        return None


def _generator_class() -> type:
    base: Any = torch._C.Generator

    class Generator(base):  # type: ignore[misc]
        """``torch.Generator("cuda")`` as one of the CPU."""

        def __new__(cls, device: Any = "cpu") -> Any:
            return super().__new__(cls, device="cpu")

    return Generator
