"""Writes each aten op that a program runs: tensors, storages, source line, phase, region, and a range around it."""

from __future__ import annotations

import importlib
import math
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import count
from pathlib import Path
from typing import Any, Protocol

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fusionaudit.capture.calls import HOST_SYNC, Encoded, Schema, read_schema, tensors_of
from fusionaudit.capture.formulas import without_modes
from fusionaudit.capture.gpu_tensors import real_device
from fusionaudit.capture.jit_trace import tracing_without_modes
from fusionaudit.capture.lines import LineWriter
from fusionaudit.capture.locations import Locator
from fusionaudit.capture.ranges import NoRanges, Ranges
from fusionaudit.capture.storages import StorageIds

_NO_SEQUENCE = (1 << 64) - 1
"""What AccumulateGrad and other nodes without a forward op answer as their sequence number."""

_KEPT_SEQUENCES = 1 << 20
_cuda: Any = torch.cuda


class Observer(Protocol):
    """Is told what happens while the program runs (the search for what to compile)."""

    def saw_op(self, *, mutates: bool) -> None:
        """An op ran on this thread."""

    def saw_barrier(self, reason: str) -> None:
        """Something that a compiled function must not contain happened: backward, optimizer step, sync, step mark."""


def device_type(tensor: torch.Tensor) -> str:
    """``cuda``, ``cpu``, ...: the device a tensor is on."""
    return tensor.device.type


class Recorder:
    """Owner of one pass's ``ops.jsonl``; implements the marks of :mod:`fusionaudit.capture.marks`.

    ``device_of`` says which device a tensor counts as (the deviceless engine answers ``cuda`` for CPU tensors that
    stand for the GPU's); it may be replaced while recording, and so may ``lower_mode``, the mode that lies under this
    one on each thread. Ops are recorded inside :meth:`recording`, on the
    thread that entered it, on autograd's threads and on threads started inside. After a fork the child
    records nothing.
    """

    def __init__(
        self,
        path: Path,
        *,
        ranges: Ranges | None = None,
        device_of: Callable[[torch.Tensor], str] = device_type,
        observer: Observer | None = None,
    ) -> None:
        self.lines = LineWriter(path)
        self.locator = Locator()
        self.device_of = device_of
        self.enabled = True
        self.lower_mode: Callable[[], AbstractContextManager[Any]] = nullcontext
        self._ranges: Ranges = NoRanges() if ranges is None else ranges
        self._observer = observer
        self._storages = StorageIds()
        self._parameters: set[str] = set()
        self._schemas: dict[Any, Schema] = {}
        self._ids = count()
        self._steps = count()
        self._step_token: Any = None
        self._step_open = False
        self._sequences: dict[int, dict[str, Any]] = {}
        self._last_location: dict[str, Any] | None = None
        self._optimizer_depth = 0
        self._local = threading.local()
        self._region: str | None = None
        self._streams: dict[int, int] = {0: 0}
        os.register_at_fork(after_in_child=self._forked)

    # -- recording -------------------------------------------------------------------------------------------------

    def _forked(self) -> None:
        self.enabled = False
        self._ranges = NoRanges()

    def mode(self) -> Any:
        """A dispatch mode (a context manager) that records into this recorder; one for each thread."""
        return _RecorderMode(self)

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record the ops of this thread and of what it starts, until the end of the block."""
        optimizer: Any = importlib.import_module("torch.optim.optimizer")
        handles = [
            optimizer.register_optimizer_step_pre_hook(self._optimizer_started),
            optimizer.register_optimizer_step_post_hook(self._optimizer_ended),
        ]
        bootstrap = threading.Thread._bootstrap_inner  # type: ignore[attr-defined]
        recorder = self

        def run(thread: threading.Thread) -> None:
            with recorder.lower_mode(), recorder.mode():
                bootstrap(thread)

        threading.Thread._bootstrap_inner = run  # type: ignore[attr-defined]
        try:
            with self.mode(), tracing_without_modes():
                yield
        finally:
            threading.Thread._bootstrap_inner = bootstrap  # type: ignore[attr-defined]
            for handle in handles:
                handle.remove()
            self.lines.flush()

    def close(self) -> None:
        """Write what is left and stop."""
        self.enabled = False
        self.lines.close()

    def _optimizer_started(self, *_: Any) -> None:
        self._optimizer_depth += 1
        if self._observer is not None:
            self._observer.saw_barrier("optimizer step")

    def _optimizer_ended(self, *_: Any) -> None:
        self._optimizer_depth = max(0, self._optimizer_depth - 1)

    # -- one op ----------------------------------------------------------------------------------------------------

    def dispatch(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], mode: Any) -> Any:
        """Run one op and write it down."""
        func, args = without_modes(func, args)
        schema = self._schemas.get(func)
        if schema is None:
            schema = self._schemas[func] = read_schema(func)
        if not self.enabled or schema.skip:
            return func(*args, **kwargs)
        if schema.composite and not _has_kernel(schema, args):
            # Only inference mode brings composite ops here; what they are made of is what runs.
            with mode:
                result = func.decompose(*args, **kwargs)
            if result is not NotImplemented:
                return result
        node = torch._C._current_autograd_node()
        backward = node is not None or torch._C._current_graph_task_id() != -1
        location = self._locate(node, backward)
        encoded = Encoded(schema, args, kwargs)
        inputs = [self.tensor(t) for t in encoded.tensors]
        number = next(self._ids)
        token = self._ranges.push(f"fusionaudit:op {number} {schema.name}")
        try:
            result = func(*args, **kwargs)
        finally:
            self._ranges.pop(token)
        if not self.enabled or self._unrecorded_depth():
            return result
        outputs = tensors_of(result)
        record: dict[str, Any] = {
            "kind": "op",
            "id": number,
            "name": schema.name,
            "inputs": inputs,
            "outputs": [self.tensor(t) for t in outputs],
            "mutated": encoded.mutated,
            "arguments": encoded.arguments,
            "location": location,
            "phase": self._phase(),
            "thread": threading.get_native_id(),
            "stream": self._stream(encoded.tensors or outputs),
            "region": self._region,
        }
        self.lines.write(record)
        if self._observer is not None:
            if backward:
                self._observer.saw_barrier("backward")
            self._observer.saw_op(mutates=bool(encoded.mutated))
        self._note_sync(schema, encoded, outputs, kwargs, location)
        return result

    def _locate(self, node: Any, backward: bool) -> dict[str, Any] | None:
        if backward:
            own = self.locator.find(in_backward=True)
            if own is not None:
                return own
            sequence = _NO_SEQUENCE if node is None else node._sequence_nr()
            return self._sequences.get(sequence, self._last_location)
        location = self.locator.find()
        self._last_location = location
        if torch.is_grad_enabled() and location is not None:
            # The autograd node of this op was made just before: its number is one less than the next.
            if len(self._sequences) > _KEPT_SEQUENCES:
                for key in list(self._sequences)[: _KEPT_SEQUENCES // 2]:
                    del self._sequences[key]
            self._sequences.setdefault(torch._C._autograd._get_sequence_nr() - 1, location)
        return location

    def _stream(self, tensors: Sequence[torch.Tensor]) -> int | None:
        for tensor in tensors:
            if tensor.device.type == "cuda" and _cuda.is_initialized():
                raw = torch._C._cuda_getCurrentRawStream(tensor.device.index or 0)
                return self._streams.setdefault(raw, len(self._streams))
        return 0

    def tensor(self, tensor: torch.Tensor) -> dict[str, Any]:
        """The facts of a tensor as JSON (``fusionaudit.tensors.Tensor.to_json`` form)."""
        try:
            shape, strides, offset = list(tensor.shape), list(tensor.stride()), tensor.storage_offset()
        except (RuntimeError, NotImplementedError):  # sparse, nested: no strides, so row-major ones stand in
            shape, offset = list(tensor.shape), 0
            strides = [math.prod(_size(n) for n in shape[i + 1 :]) for i in range(len(shape))]
        facts: dict[str, Any] = {
            "shape": [_size(n) for n in shape],
            "strides": [_size(n) for n in strides],
            "dtype": str(tensor.dtype).removeprefix("torch."),
        }
        storage = self._storages.of(tensor)
        if storage is not None:
            facts["storage"] = storage
        if offset:
            facts["offset"] = _size(offset)
        device = self.device_of(tensor)
        if device != "cuda":
            facts["device"] = device
        if isinstance(tensor, torch.nn.Parameter) and storage is not None:
            self._parameters.add(storage)
        if storage in self._parameters:
            facts["is_parameter"] = True
        return facts

    def declare_parameter(self, tensor: torch.Tensor) -> None:
        """Say that a tensor belongs to a module (a buffer): its storage counts as a parameter's from now on."""
        storage = self._storages.of(tensor)
        if storage is not None:
            self._parameters.add(storage)

    # -- syncs, graphs, marks --------------------------------------------------------------------------------------

    def _note_sync(
        self, schema: Schema, encoded: Encoded, outputs: list[torch.Tensor], kwargs: dict[str, Any], location: Any
    ) -> None:
        on_device = [t for t in encoded.tensors if self.device_of(t) not in ("cpu", "meta")]
        if not on_device:
            return
        name, nbytes = schema.name, None
        if name == "aten._local_scalar_dense.default":
            nbytes = on_device[0].element_size()
        elif name in ("aten._to_copy.default", "aten.copy_.default"):
            target = outputs[0] if outputs else None
            if target is None or self.device_of(target) != "cpu" or kwargs.get("non_blocking"):
                return
            nbytes = target.numel() * target.element_size()
        elif name in ("aten.index.Tensor", "aten.index_put_.default", "aten.index_put.default"):
            if all(t.dtype not in (torch.bool, torch.uint8) for t in encoded.tensors[1:]):
                return
        elif not schema.waits:
            return
        self.sync(name, location=location, nbytes=nbytes)

    def sync(self, name: str, *, location: dict[str, Any] | None = None, nbytes: int | None = None) -> None:
        """Write that the host read from or waited for the device."""
        if not self.enabled:
            return
        where = location if location is not None else self.locator.find()
        self.lines.write({"kind": "sync", "name": name, "location": where, "bytes": nbytes})
        if self._observer is not None:
            self._observer.saw_barrier(HOST_SYNC)

    def opaque(self, name: str, tensors: Sequence[torch.Tensor]) -> None:
        """Write a launch that is no aten op (a Triton kernel of the script, a graph replay) and what it was given."""
        if not self.enabled:
            return
        self.lines.write(
            {
                "kind": "op", "id": next(self._ids), "name": name, "inputs": [self.tensor(t) for t in tensors],
                "outputs": [], "mutated": [], "arguments": [{"tensor": i} for i in range(len(tensors))],
                "location": self.locator.find(), "phase": self._phase(), "thread": threading.get_native_id(),
                "stream": self._stream(tensors), "region": self._region,
            }
        )  # fmt: skip
        if self._observer is not None:
            self._observer.saw_op(mutates=True)

    def stop(self, asked: str, location: dict[str, Any] | None) -> None:
        """Write that the script was ended here, where it needs a value that the audit does not have; the last line."""
        if not self.enabled:
            return
        self.lines.write({"kind": "stop", "asked": asked, "location": location})
        self.enabled = False
        if self._observer is not None:
            self._observer.saw_barrier(HOST_SYNC)

    def _phase(self) -> str:
        if self._optimizer_depth:
            return "optimizer"
        return "backward" if torch._C._current_graph_task_id() != -1 else "forward"

    @contextmanager
    def unrecorded(self) -> Iterator[None]:
        """Ops of this thread belong to a compiled graph or to compilation: they get ranges, for their kernels' sake,
        but no record."""
        self._local.unrecorded = self._unrecorded_depth() + 1
        try:
            yield
        finally:
            self._local.unrecorded -= 1

    def _unrecorded_depth(self) -> int:
        depth: int = getattr(self._local, "unrecorded", 0)
        return depth

    def graph_call(
        self,
        graph: str,
        *,
        symbols: dict[str, int] | None = None,
        inputs: Sequence[torch.Tensor] = (),
        outputs: Sequence[torch.Tensor] = (),
    ) -> None:
        """Write that the compiled graph of that id was called with these tensors, from the user's line."""
        if self.enabled:
            self.lines.write(
                {
                    "kind": "graph", "graph": graph, "symbols": dict(symbols or {}),
                    "inputs": [self.tensor(t) for t in inputs], "outputs": [self.tensor(t) for t in outputs],
                    "region": self._region, "location": self.locator.find(),
                }
            )  # fmt: skip

    def step(self) -> None:
        """A new step starts (``fusionaudit.step()``)."""
        if not self.enabled:
            return
        index = next(self._steps)
        self.lines.write({"kind": "step", "index": index})
        if self._observer is not None:
            self._observer.saw_barrier("fusionaudit.step()")

    def enter_region(self, name: str) -> None:
        """A region starts."""
        stack = self._region_stack()
        stack.append(self._region)
        self._region = name

    def exit_region(self) -> None:
        """The innermost region ends."""
        stack = self._region_stack()
        self._region = stack.pop() if stack else None

    def _region_stack(self) -> list[str | None]:
        if not hasattr(self._local, "regions"):
            self._local.regions = []
        regions: list[str | None] = self._local.regions
        return regions


def _has_kernel(schema: Schema, args: tuple[Any, ...]) -> bool:
    """True where a composite op is not taken apart: it has a kernel for the device of its first tensor."""
    return any(real_device(t).type in schema.kernels for t in tensors_of(args)[:1]) if schema.kernels else False


def _size(value: Any) -> int:
    """A size as an int, also where it is symbolic (fake tensors): its hint, or 0 where there is none."""
    if isinstance(value, int):
        return value
    hint = getattr(value.node, "hint", None)
    return int(hint) if hint is not None else 0


class _RecorderMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Hands each op of its thread to the recorder; stays out of compiled regions (torch 2.10 and newer)."""

    supports_higher_order_operators = True

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._recorder = recorder

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """torch.compile compiles under this mode; only what runs outside graphs (and extern calls) is seen."""
        return True

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return self._recorder.dispatch(func, args, kwargs or {}, self)


def can_ignore_compile() -> bool:
    """True where torch lets a dispatch mode stay out of compiled regions (2.10 and newer)."""
    return hasattr(TorchDispatchMode, "ignore_compile_internals")
