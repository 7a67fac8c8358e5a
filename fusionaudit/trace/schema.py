"""The types that every trace format is read into: device activities, ranges and the GPU they ran on."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from fusionaudit.device import Device
from fusionaudit.findings import Location, Note
from fusionaudit.tensors import Tensor

ActivityKind = Literal["kernel", "memcpy", "memset"]
Phase = Literal["forward", "backward", "optimizer"]


@dataclass(frozen=True, kw_only=True)
class RangeOp:
    """An op read back from a range or trace event around a launch.

    ``name`` in dotted aten form (``aten.add``; no overload in NVTX); ``op_id`` is emit_nvtx's or our recorder's number;
    ``recorded`` is true where the id is our recorder's (it then names an :class:`~fusionaudit.program.model.Op`).
    ``inputs`` are shapes (and dtypes, strides where the format has them); ``input_ops`` are (op id, output index)
    pairs as emit_nvtx writes them ((0, -1): unknown); ``parents`` are the ids of the op ranges around it, innermost
    first, for an activity's op (what reads the result of a composite op names the outermost one that returned it).
    """

    name: str
    op_id: int
    recorded: bool = False
    sequence: int | None = None
    shapes: tuple[tuple[int, ...], ...] = ()
    dtypes: tuple[str, ...] = ()
    inputs: tuple[Tensor, ...] = ()
    input_ops: tuple[tuple[int, int], ...] = ()
    parents: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Activity:
    """One kernel, copy or fill on the device. Times are ns on the trace's clock.

    ``name`` is the demangled name. ``op`` is the innermost op range that encloses the launch (for graph replay: the
    launch that created the node, where the trace tells). ``graph_call`` is the text of the enclosing
    ``## Call CompiledFxGraph KEY ##`` range's KEY; ``region`` the enclosing ``fusionaudit`` region; ``step`` the
    enclosing ``fusionaudit:step N``; ``compiling`` is true inside compilation or autotuning.
    """

    kind: ActivityKind
    name: str
    start_ns: int
    end_ns: int
    device: int
    stream: int
    correlation: int | None = None
    launch_start_ns: int | None = None
    launch_end_ns: int | None = None
    thread: int | None = None
    bytes: int | None = None
    copy_kind: str | None = None
    grid: tuple[int, int, int] | None = None
    block: tuple[int, int, int] | None = None
    registers: int | None = None
    static_shared_bytes: int | None = None
    dynamic_shared_bytes: int | None = None
    local_bytes_per_thread: int | None = None
    graph_node: int | None = None
    op: RangeOp | None = None
    graph_call: str | None = None
    graph_call_id: int | None = None
    region: str | None = None
    step: int | None = None
    compiling: bool = False

    @property
    def duration_ns(self) -> int:
        """Time on the device."""
        return self.end_ns - self.start_ns


@dataclass(frozen=True, kw_only=True)
class Sync:
    """A host wait on the device: ``name`` is the CUDA call (``cudaStreamSynchronize``, ``cudaMemcpyAsync``)."""

    name: str
    start_ns: int
    end_ns: int
    op: RangeOp | None = None
    step: int | None = None


@dataclass(frozen=True, kw_only=True)
class Trace:
    """Everything a trace tells, in order of ``start_ns``. ``format`` names reader and version (``nsys 3.7.2``).

    ``range_ops`` are all op ranges, also those that launched nothing (views), in order of their start.
    """

    format: str
    activities: tuple[Activity, ...]
    device: Device | None
    syncs: tuple[Sync, ...] = ()
    range_ops: tuple[RangeOp, ...] = ()
    notes: tuple[Note, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Op:
    """One aten op as the recorder saw it. ``id`` counts up in order of execution over the whole pass.

    ``arguments`` rebuilds the call: nested lists with ``{"tensor": i}`` for input i, plain JSON scalars, and
    ``{"kwargs": {...}}`` last. ``mutated`` are indices into ``inputs`` that are written in place or through ``out=``.
    """

    id: int
    name: str
    inputs: tuple[Tensor, ...] = ()
    outputs: tuple[Tensor, ...] = ()
    mutated: tuple[int, ...] = ()
    arguments: tuple[Any, ...] = ()
    location: Location | None = None
    phase: Phase = "forward"
    thread: int | None = None
    stream: int | None = None
    region: str | None = None

    @property
    def base_name(self) -> str:
        """``aten.add`` for ``aten.add.Tensor`` and for an imported ``aten.add``."""
        return ".".join(self.name.split(".")[:2])

    @property
    def keywords(self) -> dict[str, Any]:
        """The keyword arguments of the call."""
        return next((a["kwargs"] for a in self.arguments if isinstance(a, dict) and "kwargs" in a), {})


@dataclass(frozen=True, kw_only=True)
class GraphCall:
    """A compiled graph was called (deviceless): ``graph`` is a ``CompiledGraph.id``; symbolic sizes have values.
    ``location`` is the user's line that called it."""

    graph: str
    symbols: dict[str, int] = field(default_factory=dict)
    inputs: tuple[Tensor, ...] = ()
    outputs: tuple[Tensor, ...] = ()
    region: str | None = None
    location: Location | None = None


@dataclass(frozen=True, kw_only=True)
class StepMark:
    """``fusionaudit.step()`` was called: what follows belongs to the next step."""

    index: int


@dataclass(frozen=True, kw_only=True)
class SyncMark:
    """The host read from or waited for the device (``.item()``, ``.cpu()``, ``synchronize``)."""

    name: str
    location: Location | None = None
    bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class StopMark:
    """The audit ended the script at ``location``, which needs a value (``asked``) that ``--shapes-only`` has not."""

    asked: str
    location: Location | None = None


Record = Op | GraphCall | StepMark | SyncMark


@dataclass(frozen=True, kw_only=True)
class OpLog:
    """The recorder's file (``ops.jsonl``) in order of execution. Ids of ops count up but may have gaps.

    ``stopped``: the audit ended the script there, so the last step may be cut.
    """

    records: tuple[Record, ...]
    notes: tuple[Note, ...] = ()
    stopped: StopMark | None = None
