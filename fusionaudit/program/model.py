"""The Program: what ran (or would run) in one steady step of each pass. Every engine fills the same types."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from fusionaudit.device import Device
from fusionaudit.findings import Basis, Location, Note
from fusionaudit.inductor.model import InductorLog
from fusionaudit.tensors import Tensor
from fusionaudit.trace.schema import Op as Op
from fusionaudit.trace.schema import Phase as Phase

PassName = Literal["eager", "compiled", "clean", "clean_eager", "imported", "imported2", "imported3", "imported4"]
Category = Literal[
    "pointwise", "reduction", "persistent_reduction", "norm", "softmax", "scan", "sort", "index", "random",
    "foreach", "copy", "memcpy", "memset", "matmul", "convolution", "attention", "template", "collective",
    "user_triton", "opaque",
]  # fmt: skip
"""What a kernel does. ``copy`` is a kernel that only moves or casts; ``opaque`` is anything we cannot look into."""

MEMORY_BOUND: frozenset[str] = frozenset(
    {"pointwise", "reduction", "persistent_reduction", "norm", "softmax", "scan", "index", "random", "foreach",
     "copy", "memcpy", "memset"}
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """One launch, copy or fill of the step. Unknown figures are ``None``.

    ``global_bytes = read_bytes + write_bytes`` by the byte model (basis ``modelled``; ``measured`` only for memcpy and
    memset, whose size the trace has). ``reread_bytes`` are loads of data that the same kernel has read before.
    ``duration_ns`` has ``time_basis``. ``ops`` are ids into ``Pass.ops``; ``op_names`` also where there are no ids.
    ``graph`` is a ``CompiledGraph.id`` and ``call`` the index of its call. ``gap_ns`` is the idle time of the device
    before this kernel (``None`` if not from a trace).
    """

    id: int
    name: str
    category: Category
    ops: tuple[int, ...] = ()
    op_names: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    reads: tuple[Tensor, ...] = ()
    writes: tuple[Tensor, ...] = ()
    read_bytes: int | None = None
    write_bytes: int | None = None
    reread_bytes: int = 0
    bytes_basis: Basis = "modelled"
    duration_ns: int | None = None
    time_basis: Basis | None = None
    start_ns: int | None = None
    gap_ns: int | None = None
    launch_ns: int | None = None
    registers: int | None = None
    spill_bytes: int | None = None
    local_memory_bytes: int | None = None
    shared_memory_bytes: int | None = None
    occupancy: float | None = None
    grid: tuple[int, int, int] | None = None
    block: tuple[int, int, int] | None = None
    stream: int | None = None
    graph: str | None = None
    call: int | None = None
    replayed: bool = False
    location: Location | None = None
    region: str | None = None
    phase: Phase = "forward"

    @property
    def global_bytes(self) -> int | None:
        """Read plus written bytes; ``None`` where either is unknown."""
        if self.read_bytes is None or self.write_bytes is None:
            return None
        return self.read_bytes + self.write_bytes


@dataclass(frozen=True, kw_only=True)
class HostSync:
    """A host read or wait inside the step (``.item()``, ``.cpu()``, ``torch.cuda.synchronize``)."""

    name: str
    location: Location | None = None
    duration_ns: int | None = None
    bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class Pass:
    """One pass cut down to one steady step. ``steps`` is how many steady steps were seen; 0: none could be told apart
    (then the whole recording stands for one step and a note says so).

    ``step_ns`` is the span of the step on the device (measured engines), from the median over the steps; ``idle_ns``
    the part of it in which nothing ran. Kernel times are medians over the steps. ``repeated`` are the ids of ``ops``
    that every recorded step holds with the same arguments (known from a recorder's log alone),
    ``repeated_graphs`` those of compiled graphs that ran outside this step too. ``device`` is the program's.
    """

    name: PassName
    engine: str
    kernels: tuple[Kernel, ...] = ()
    ops: tuple[Op, ...] = ()
    syncs: tuple[HostSync, ...] = ()
    steps: int = 0
    step_ns: int | None = None
    idle_ns: int | None = None
    host_ns: int | None = None
    unmatched_kernels: int = 0
    repeated: frozenset[int] = frozenset()
    repeated_graphs: frozenset[str] = frozenset()
    log: InductorLog = field(default_factory=InductorLog)
    notes: tuple[Note, ...] = ()
    device: Device | None = None

    @property
    def global_bytes(self) -> int | None:
        """Sum over kernels with known bytes; ``None`` if none is known."""
        known = [k.global_bytes for k in self.kernels if k.global_bytes is not None]
        return sum(known) if known else None

    @property
    def gpu_time_ns(self) -> int | None:
        """Sum of kernel durations; ``None`` if one is unknown."""
        times = [k.duration_ns for k in self.kernels]
        return None if not times or None in times else sum(t for t in times if t is not None)


@dataclass(frozen=True, kw_only=True)
class Program:
    """All passes of one capture, on one target."""

    engine: str
    device: Device | None
    passes: tuple[Pass, ...]
    environment: dict[str, Any] = field(default_factory=dict)
    notes: tuple[Note, ...] = ()

    def get(self, name: str) -> Pass | None:
        """The pass of that name, if it was made."""
        return next((p for p in self.passes if p.name == name), None)


def uncounted(kernels: Sequence[Kernel]) -> int:
    """Kernels whose bytes are in no sum: not known, nor given to another launch of the same op or call."""

    def work(k: Kernel) -> set[object]:
        ids: set[object] = set(k.ops)
        return ids or ({(k.graph, k.call)} if k.graph is not None else set())

    known = {w for k in kernels if k.global_bytes for w in work(k)}
    return sum(k.global_bytes is None and known.isdisjoint(work(k)) for k in kernels)
