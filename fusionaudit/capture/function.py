"""Captures one call of a function in this process, with no GPU: what the pytest plugin runs. Deviceless only."""

from __future__ import annotations

import contextlib
import datetime
import importlib.metadata
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fusionaudit.capture.manifest import CapturedPass, Manifest, write_manifest
from fusionaudit.device import find_target

_CACHES = {
    "TORCHINDUCTOR_CACHE_DIR": "cache/inductor",
    "TRITON_CACHE_DIR": "cache/triton",
    "TORCHINDUCTOR_FX_GRAPH_CACHE": None,
    "TORCHINDUCTOR_AUTOGRAD_CACHE": None,
}
"""Private and cold: with a warm cache Inductor does not say what it fused."""


@contextlib.contextmanager
def _cold_caches(folder: Path) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in _CACHES}
    for name, place in _CACHES.items():
        os.environ[name] = "0" if place is None else str(folder / place)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextlib.contextmanager
def _no_structured_trace() -> Iterator[None]:
    """Torch's structured trace is off: pytest would show thousands of its records with a failed test."""
    logger = logging.getLogger("torch.__trace")
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _run(call: Callable[[], Any], folder: Path, name: str, device: Any, kept_as: str | None = None) -> int:
    """One pass of the call; gives how many graphs were lowered. An exception of the function goes through."""
    import torch

    from fusionaudit.capture import marks
    from fusionaudit.capture.deviceless import DevicelessSession
    from fusionaudit.capture.marker import CaptureMarker
    from fusionaudit.capture.ranges import NoRanges
    from fusionaudit.capture.recorder import Recorder

    place = folder / (kept_as or name)
    place.mkdir(parents=True)
    torch._dynamo.reset()
    recorder = Recorder(place / "ops.jsonl", device_of=lambda tensor: "cuda")
    session = DevicelessSession(
        device=device, folder=place, pass_name=name, shapes_only=False, recorder=recorder
    )  # fmt: skip
    marker = CaptureMarker(NoRanges(), recorder)
    marks.activate(marker)
    try:
        with session, recorder.recording():
            marker.step()  # the call is the step: what repeats inside it is not
            call()
    finally:
        marks.activate(None)
        marker.close()
        recorder.close()
        torch._dynamo.reset()
    return 0 if session.lowering is None else len(session.lowering.lowered)


def capture_function(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], *, target: str, folder: Path
) -> None:
    """Run ``function(*args, **kwargs)`` as an eager and a compiled pass into the capture folder.

    Where the function compiles nothing itself, it is compiled as a whole. What it raises is not caught. AuditError for
    an unknown target or a torch that the engine does not support.
    """
    import torch

    device = find_target(target)
    with _cold_caches(folder), _no_structured_trace():
        _run(lambda: function(*args, **kwargs), folder, "eager", device)
        graphs = _run(lambda: function(*args, **kwargs), folder, "compiled", device)
        place = "compiled"
        if not graphs:
            place = "compiled-whole"
            compiled = torch.compile(function)
            _run(lambda: compiled(*args, **kwargs), folder, "compiled", device, kept_as=place)
    passes = []
    for name, where in (("eager", "eager"), ("compiled", place)):

        def existing(relative: str, where: str = where) -> str | None:
            return f"{where}/{relative}" if (folder / where / relative).exists() else None

        passes.append(
            CapturedPass(
                name=name,
                ops=existing("ops.jsonl"),
                log=existing("torch_logs.txt"),
                resources=existing("resources.json"),
            )
        )
    write_manifest(
        folder,
        Manifest(
            engine="deviceless",
            command=(getattr(function, "__qualname__", type(function).__name__),),
            passes=tuple(passes),
            device=device.to_json(),
            environment={"torch": torch.__version__, "triton": _version("triton"), "cwd": os.getcwd()},
            created=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        ),
    )
