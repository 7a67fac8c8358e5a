"""Ranges around ops, steps, regions and compilation: NVTX for nsys, profiler annotations for Kineto, or none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol


class Ranges(Protocol):
    """Opens and closes named ranges on the calling thread; they must nest."""

    def push(self, text: str) -> Any:
        """Open a range and give a token for :meth:`pop`."""

    def pop(self, token: Any) -> None:
        """Close the range of that token."""


class NoRanges:
    """For engines whose tools read no ranges."""

    def push(self, text: str) -> None:
        """Nothing."""

    def pop(self, token: Any) -> None:
        """Nothing."""


class NvtxRanges:
    """NVTX push/pop ranges in the default domain, through torch (its builds with CUDA have them)."""

    def __init__(self, native: Any) -> None:
        self._push: Callable[[str], Any] = native.rangePushA
        self._pop: Callable[[], Any] = native.rangePop

    def push(self, text: str) -> None:
        """Open a range."""
        self._push(text)

    def pop(self, token: Any) -> None:
        """Close the innermost range of this thread."""
        self._pop()


class ProfilerRanges:
    """Annotations of torch.profiler (``user_annotation`` events)."""

    def __init__(self) -> None:
        from torch._C import _profiler

        self._function: Any = _profiler._RecordFunctionFast
        self._keywords: dict[str, Any] = {"keyword_values": {"scope": "user_scope"}}
        try:
            self._function("probe", **self._keywords)
        except TypeError:  # before torch 2.7 the scope could not be given: the event is then a cpu_op
            self._keywords = {}

    def push(self, text: str) -> Any:
        """Open a range."""
        token = self._function(text, **self._keywords)
        token.__enter__()
        return token

    def pop(self, token: Any) -> None:
        """Close it."""
        token.__exit__(None, None, None)


def make_ranges(engine: str) -> Ranges:
    """The ranges that the engine's tool records."""
    if engine == "nsys":
        import torch

        native = getattr(torch._C, "_nvtx", None)
        # A torch without CUDA launches no kernel that a range could name.
        return NvtxRanges(native) if hasattr(native, "rangePushA") else NoRanges()
    if engine == "kineto":
        return ProfilerRanges()
    return NoRanges()
