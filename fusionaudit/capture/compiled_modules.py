"""Modules that are compiled for a script that did not ask for it."""

from __future__ import annotations

from typing import Any

import torch

from fusionaudit.capture.locations import Locator


def compile_module(module: torch.nn.Module) -> None:
    """``module.compile()``. Where ``forward`` is torch's own (``nn.Sequential``), Dynamo before 2.14 skips that frame
    and compiles nothing; called from a function of ours it is traced, as ``torch.compile(module)`` would."""
    if not type(module).forward.__module__.startswith("torch."):
        torch.nn.Module.compile(module)
        return

    called = _as_its_caller(lambda *args, **kwargs: module._call_impl(*args, **kwargs), type(module).__name__)
    module._compiled_call_impl = torch.compile(called)


def _as_its_caller(function: Any, name: str) -> Any:
    """What torch says of this function of one line (recompiled, graph break) is to name the user's line, not ours. A
    code object of its own also keeps Dynamo from taking one module's graphs for recompilations of another's."""
    place = Locator().find()
    if place is not None:
        code = function.__code__
        function.__code__ = code.replace(co_filename=place["file"], co_firstlineno=place["line"], co_name=name)
    return function
