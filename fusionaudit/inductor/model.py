"""What Inductor's logs say, as data: graphs, generated kernels, calls, fusion decisions, breaks and recompiles."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal

from fusionaudit.findings import Location, Note
from fusionaudit.tensors import Tensor

GraphKind = Literal["forward", "backward", "inference"]
CallKind = Literal["triton", "extern", "copy", "fill", "user_triton", "custom", "cpu"]


@dataclass(frozen=True, kw_only=True)
class Node:
    """A node of the ATen graph: fx ``name`` (``add_1``), aten ``op`` (``aten.add.Tensor``), source line, inputs."""

    name: str
    op: str
    location: Location | None = None
    inputs: tuple[str, ...] = ()
    tensor: Tensor | None = None


@dataclass(frozen=True, kw_only=True)
class Access:
    """The loads or stores of one pointer argument of a generated kernel.

    ``arg`` is the parameter name (``in_ptr0``). ``elements`` is the number of distinct elements touched, as an
    expression over the kernel's numels and symbols in ``GeneratedKernel`` (a decimal number where it is static);
    ``None``: cannot be told (indirect). ``indirect`` marks gathers, which are bounded by their indices.
    ``count`` is how many load or store statements name it, ``passes`` how many separate loops re-read it.
    """

    arg: str
    store: bool
    atomic: bool = False
    elements: int | None = None
    indirect: bool = False
    count: int = 1
    passes: int = 1


@dataclass(frozen=True, kw_only=True)
class GeneratedKernel:
    """A kernel in the output code. ``category`` is one of the ``Category`` words of ``program.model``.

    ``aten`` are the ops in ``Original ATen`` order; ``nodes`` the fx nodes of its graph fragment that it computes;
    ``numels`` by prefix (``x``, ``y``, ``r0_``), ``None`` where symbolic; ``args`` the parameter names in call order
    with ``dtypes`` from the Triton signature (``*fp32`` -> ``float32``).
    """

    name: str
    category: str
    aten: tuple[str, ...]
    nodes: tuple[str, ...]
    numels: dict[str, int | None]
    args: tuple[str, ...]
    dtypes: tuple[str | None, ...]
    accesses: tuple[Access, ...]
    source: str
    split_reduction: bool = False
    location: Location | None = None


@dataclass(frozen=True, kw_only=True)
class GeneratedCall:
    """One launch (or extern call) in the order of the graph's ``call`` function.

    ``target`` is the kernel's name, or the extern op (``extern_kernels.addmm``, ``torch.ops.aten.topk.default``).
    ``reads`` and ``writes`` are the buffers with resolved sizes (``storage`` is the buffer's name in the graph, made
    one for reused buffers); ``written`` are a kernel's outputs by the names that they have in the code at this call.
    ``read_bytes`` and ``write_bytes`` follow the byte model, ``None``: not known.
    """

    index: int
    kind: CallKind
    target: str
    category: str
    aten: tuple[str, ...]
    nodes: tuple[str, ...]
    reads: tuple[Tensor, ...] = ()
    writes: tuple[Tensor, ...] = ()
    written: tuple[str, ...] = ()
    read_bytes: int | None = None
    write_bytes: int | None = None
    reread_bytes: int = 0
    """Bytes that the kernel loads again beyond the first time (several passes over one input); not in read_bytes."""
    numels: tuple[int, ...] = ()
    location: Location | None = None
    locations: tuple[Location, ...] = ()


@dataclass(frozen=True, kw_only=True)
class CompiledGraph:
    """One lowered graph. ``id`` is ``COMPILE_ID/KIND`` (``0/0/forward``), unique in a log (``#2`` appended if not).

    ``cache_key`` is the key in ``## Call CompiledFxGraph KEY ##`` where the log tells it; ``symbols`` gives hints of
    symbolic sizes (``s0`` -> 12).
    """

    id: str
    compile_id: str
    kind: GraphKind
    kernels: tuple[GeneratedKernel, ...]
    calls: tuple[GeneratedCall, ...]
    nodes: tuple[Node, ...] = ()
    inputs: tuple[Tensor, ...] = ()
    outputs: tuple[str, ...] = ()
    symbols: dict[str, int] = field(default_factory=dict)
    cache_key: str | None = None
    source: str = ""

    @property
    def asks_for_cuda_graph(self) -> bool:
        """CUDA graphs were asked for: Inductor cut the code in partitions for them."""
        return "partition_0" in self.source


@dataclass(frozen=True, kw_only=True)
class FusionDecision:
    """Inductor kept two nodes apart, with its own words (``reason``) and ours (``cause``, see ``fusion_log.CAUSES``).

    ``first`` and ``second`` are scheduler names (``op1``; ``op1_op2`` for fused ones); ``*_nodes`` the fx nodes;
    ``shared_bytes`` the bytes of buffers both touch (0: none, ``None``: not known).
    """

    graph: str
    first: str
    second: str
    reason: str
    cause: str
    first_nodes: tuple[str, ...] = ()
    second_nodes: tuple[str, ...] = ()
    first_ops: tuple[str, ...] = ()
    second_ops: tuple[str, ...] = ()
    location: Location | None = None
    shared_bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class GraphBreak:
    """A place where Dynamo stopped tracing, with its reason in one line."""

    location: Location | None
    reason: str
    compile_id: str | None = None


_SIZE = re.compile(r"(size|stride|rank|dim\w*) mismatch|\.size\(\)|\.stride\(\)|\.shape|Eq\(|Ne\(|tensor\.\w*size")
_ONCE = re.compile(r"GLOBAL_STATE|___check_global_state|grad_mode|is_grad_enabled|requires_grad mismatch|dispatch key")


@dataclass(frozen=True, kw_only=True)
class Recompile:
    """A function compiled again: where, which guard failed. ``limit``: it came to that many versions, after which
    Dynamo runs it eagerly."""

    location: Location | None
    function: str
    guard: str
    compile_id: str | None = None
    limit: int | None = None

    @property
    def kind(self) -> Literal["size", "once", "value"]:
        """What the guard is on: a tensor's size, a global state that settles after once, or a value."""
        if _SIZE.search(self.guard):
            return "size"
        return "once" if _ONCE.search(self.guard) else "value"


@dataclass(frozen=True, kw_only=True)
class CudagraphSkip:
    """CUDA graphs were asked for and not used (or recorded again), with the reason."""

    reason: str
    location: Location | None = None
    compile_id: str | None = None


@dataclass(frozen=True, kw_only=True)
class InductorLog:
    """Everything that one pass's logs say."""

    graphs: tuple[CompiledGraph, ...] = ()
    decisions: tuple[FusionDecision, ...] = ()
    breaks: tuple[GraphBreak, ...] = ()
    recompiles: tuple[Recompile, ...] = ()
    cudagraph_skips: tuple[CudagraphSkip, ...] = ()
    cache_hits: int = 0
    notes: tuple[Note, ...] = ()
