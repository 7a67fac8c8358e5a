"""Ranges around compilation, autotuning and the calls of compiled graphs, put in by patching Inductor's classes."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import Any

from torch.utils._python_dispatch import _disable_current_modes

from fusionaudit.capture.ranges import Ranges
from fusionaudit.errors import AuditError

COMPILE = "fusionaudit:compile"


def graph_id(compile_id: Any, *, is_backward: bool, is_inference: bool) -> str:
    """``0/0/forward``: the id that the readers of the log give the same graph."""
    kind = "backward" if is_backward else "inference" if is_inference else "forward"
    return f"{compile_id}/{kind}"


def mark_compilation(ranges: Ranges, *, inside: Callable[[], AbstractContextManager[None]]) -> None:
    """Open a range around everything that Dynamo compiles and Triton autotunes, on the thread that does it.

    ``inside`` is entered with it: what runs there (example inputs, cache flushes, benchmarks) is not the program's.
    """
    from torch._dynamo.callback import callback_handler

    local = threading.local()

    def started(args: Any = None) -> None:
        # Recording a CUDA graph also counts as compiling there; its launches are the program's: not to be cut out.
        if _is_recording(args):
            return
        if not hasattr(local, "open"):
            local.open = []
        entered = ExitStack()
        entered.enter_context(inside())
        entered.callback(ranges.pop, ranges.push(COMPILE))
        local.open.append(entered)

    def ended(args: Any = None) -> None:
        if not _is_recording(args) and getattr(local, "open", None):
            local.open.pop().close()

    if not hasattr(callback_handler, "register_start_callback"):
        raise AuditError("this torch has no compile callbacks", remedy="torch 2.9 to 2.14 are supported")

    callback_handler.register_start_callback(started)
    callback_handler.register_end_callback(ended)

    from torch._inductor.runtime.triton_heuristics import CachingAutotuner

    for name in ("benchmark_all_configs", "coordinate_descent_tuning", "autotune_to_one_config"):
        if hasattr(CachingAutotuner, name):
            _wrap(CachingAutotuner, name, ranges)


def _is_recording(args: Any) -> bool:
    return getattr(getattr(args, "callback_trigger", None), "name", "") == "CUDAGRAPH_RECORDING"


def _wrap(owner: Any, name: str, ranges: Ranges) -> None:
    original = getattr(owner, name)

    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        token = ranges.push(COMPILE)
        try:
            # A benchmark's fills and copies are not the program: no recorder sees them.
            with _disable_current_modes():
                return original(*args, **kwargs)
        finally:
            ranges.pop(token)

    setattr(owner, name, wrapper)


def name_graph_calls(ranges: Ranges, *, by_torch: bool, inside: Callable[[], AbstractContextManager[None]]) -> None:
    """Put ``## Call CompiledFxGraph ID ##`` around each call of a compiled graph, ID as in :func:`graph_id`.

    With ``by_torch`` torch.profiler is on and torch opens the range itself: then only the id is put in. ``inside`` is
    entered around each call.
    """
    from torch._guards import CompileContext
    from torch._inductor.output_code import CompiledFxGraph

    if not hasattr(CompiledFxGraph, "post_compile") or not hasattr(CompileContext, "current_compile_id"):
        raise AuditError("this torch's CompiledFxGraph is not known", remedy="torch 2.9 to 2.14 are supported")
    post_compile, call = CompiledFxGraph.post_compile, CompiledFxGraph.__call__

    @functools.wraps(post_compile)
    def name_it(self: Any, *args: Any, **kwargs: Any) -> Any:
        options = getattr(self, "fx_kwargs", None) or {}
        compile_id = CompileContext.current_compile_id()
        if compile_id is not None:
            self._fx_graph_cache_key = graph_id(
                compile_id,
                is_backward=bool(options.get("is_backward")),
                is_inference=bool(options.get("is_inference")),
            )
        return post_compile(self, *args, **kwargs)

    @functools.wraps(call)
    def call_it(self: Any, inputs: Any) -> Any:
        with inside():
            if by_torch:
                return call(self, inputs)
            token = ranges.push(f"## Call CompiledFxGraph {self._fx_graph_cache_key} ##")
            try:
                return call(self, inputs)
            finally:
                ranges.pop(token)

    CompiledFxGraph.post_compile = name_it  # type: ignore[method-assign]
    CompiledFxGraph.__call__ = call_it  # type: ignore[method-assign]
