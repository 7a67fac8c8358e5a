"""Recorded ops as one fused program: values over one iteration space, ready to be written out as a kernel.

The space is the largest tensor's shape. Every tensor is a set of strides over it; a read of something that the chain
itself wrote must touch the same element (or, for a row's reduction, the same row), else one kernel cannot do it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from fusionaudit.errors import AuditError
from fusionaudit.tensors import Tensor
from fusionaudit.trace.schema import Op

Strides = tuple[int, ...]

FIRST_SEED = 20240229
"""Of the first op of a chain that draws; each further one has the next. Every launch draws the same numbers."""


class UnsupportedChainError(AuditError):
    """No kernel can be generated for these ops; the message says which op and why."""


@dataclass(frozen=True, kw_only=True)
class Node:
    """One value. ``function`` is ``input``, ``cast``, a function of elementwise_functions.cuh or ``reduce_*``.

    ``args`` are node ids or constants; ``row`` is true where the value is the same along the reduced dimensions;
    ``level`` counts the reductions that must be finished first. ``operand_type`` is the C++ type its operands have.
    """

    id: int
    function: str
    args: tuple[NodeRef | float | int | bool, ...]
    dtype: str
    operand_type: str
    row: bool
    level: int


@dataclass(frozen=True, order=True)
class NodeRef:
    """An argument that is another node."""

    id: int


@dataclass(frozen=True, kw_only=True)
class Port:
    """A tensor that enters or leaves: its ``strides`` over the space, and the node that it is.

    With a ``seed`` it is not in memory: its elements are drawn, each by its offset.
    """

    tensor: Tensor
    strides: Strides
    node: int
    seed: int | None = None


@dataclass(kw_only=True)
class ChainProgram:
    """``space`` has the kept dimensions first, then ``reduced`` dimensions that every reduction runs over."""

    space: tuple[int, ...]
    reduced: int
    nodes: list[Node] = field(default_factory=list)
    inputs: list[Port] = field(default_factory=list)
    outputs: list[Port] = field(default_factory=list)


def c_type(dtype: str) -> str:
    """The C++ type that values of a torch dtype are computed in."""
    if dtype == "float64":
        return "double"
    if dtype.startswith(("float", "bfloat")):
        return "float"
    if dtype == "bool":
        return "bool"
    if dtype.startswith(("int", "uint")):
        return "long long"
    raise UnsupportedChainError(f"no kernel for dtype {dtype}")


def is_view(op: Op) -> bool:
    """True for an op that only makes another view of its input."""
    if op.mutated or not op.outputs:
        return not op.mutated
    made = {t.storage for t in op.outputs}
    return None not in made and made <= {t.storage for t in op.inputs}


def right_align(shape: Sequence[int], strides: Sequence[int], target: Sequence[int]) -> Strides | None:
    """Strides of a tensor broadcast to ``target``; ``None`` where it does not broadcast."""
    if len(shape) > len(target):
        return None
    pad = len(target) - len(shape)
    out = [0] * pad
    for size, stride, wanted in zip(shape, strides, target[pad:], strict=True):
        if size != wanted and size != 1:
            return None
        out.append(stride if size != 1 else 0)
    return tuple(out)


def refit(shape: Sequence[int], strides: Sequence[int], target: Sequence[int]) -> Strides | None:
    """Strides over ``target`` of a tensor with as many elements in the same order, else ``None``."""
    out: list[int] = []
    dims = [(s, t) for s, t in zip(shape, strides, strict=True) if s != 1]
    position = 0
    for wanted in target:
        if wanted == 1:
            out.append(0)
            continue
        if position >= len(dims):
            return None
        size, stride = dims[position]
        if size == wanted:
            out.append(stride)
            position += 1
        elif size > wanted and size % wanted == 0:
            dims[position] = (size // wanted, 0)
            # The leading part of a split dimension moves in steps of what is left of it.
            out.append(stride * (size // wanted))
            dims[position] = (size // wanted, stride)
        else:
            while (
                size < wanted and position + 1 < len(dims) and stride == dims[position + 1][0] * dims[position + 1][1]
            ):
                position += 1
                size, stride = size * dims[position][0], dims[position][1]
            if size != wanted:
                return None
            out.append(stride)
            position += 1
    return tuple(out) if position == len(dims) else None


class ChainBuilder:
    """Collects nodes while ops are translated; see :func:`build_chain`."""

    def __init__(self, space: tuple[int, ...], reduced: frozenset[int]) -> None:
        self.shape = space
        self.reduced = reduced
        kept = [i for i in range(len(space)) if i not in reduced]
        self.order = (*kept, *sorted(reduced))
        self.program = ChainProgram(space=tuple(space[i] for i in self.order), reduced=len(reduced))
        self._written: dict[str, list[Port]] = {}
        self._read: dict[tuple[object, ...], int] = {}
        self._first_reads: dict[str, list[Port]] = {}

    def maps(self, shape: Sequence[int]) -> list[Callable[[Sequence[int]], Strides | None]]:
        """Ways to see a tensor of that shape in the space: broadcast, without the reduced dimensions, or reshaped."""
        kept = [i for i in range(len(self.shape)) if i not in self.reduced]
        rows = [self.shape[i] for i in kept]

        def permuted(strides: Strides | None) -> Strides | None:
            return None if strides is None else tuple(strides[i] for i in self.order)

        def over_rows(strides: Sequence[int]) -> Strides | None:
            found = refit(shape, strides, rows)
            if found is None:
                return None
            full = [0] * len(self.shape)
            for dim, stride in zip(kept, found, strict=True):
                full[dim] = stride
            return permuted(tuple(full))

        ways: list[Callable[[Sequence[int]], Strides | None]] = [
            lambda strides: permuted(right_align(shape, strides, self.shape)),
            lambda strides: permuted(refit(shape, strides, self.shape)),
        ]
        if self.reduced:
            ways.append(over_rows)
        return ways

    def add(
        self,
        function: str,
        args: Sequence[NodeRef | float | int | bool],
        dtype: str,
        operand_type: str | None = None,
    ) -> NodeRef:
        """A new value; rows and levels follow from the arguments."""
        nodes = [self.program.nodes[a.id] for a in args if isinstance(a, NodeRef)]
        reducing = function.startswith("reduce_")
        level = max((n.level for n in nodes), default=0) + reducing
        row = reducing or all(n.row for n in nodes)
        node = Node(
            id=len(self.program.nodes), function=function, args=tuple(args), dtype=dtype,
            operand_type=operand_type or c_type(dtype), row=row, level=level,
        )  # fmt: skip
        self.program.nodes.append(node)
        return NodeRef(node.id)

    def dtype_of(self, value: NodeRef) -> str:
        """Torch dtype of a value."""
        return self.program.nodes[value.id].dtype

    def read(self, tensor: Tensor, out_shape: Sequence[int]) -> NodeRef:
        """The value of an op's input, where the op's output has ``out_shape``."""
        if tensor.storage is None:
            raise UnsupportedChainError("a tensor's storage was not recorded")
        own = right_align(tensor.shape, tensor.strides, out_shape)
        candidates = [strides for way in self.maps(out_shape) if own is not None and (strides := way(own)) is not None]
        if own is None:  # a reduction's input is larger than its output
            candidates = [s for way in self.maps(tensor.shape) if (s := way(tensor.strides)) is not None]
        candidates = [self._normal(strides) for strides in candidates]
        if tensor.storage in self._written:
            for strides in candidates:
                for port in reversed(self._written[tensor.storage]):
                    if port.strides == strides and port.tensor.offset == tensor.offset:
                        if port.tensor.dtype != tensor.dtype:
                            raise UnsupportedChainError("an intermediate is read as another dtype")
                        return NodeRef(port.node)
            raise UnsupportedChainError("an intermediate is read in another order than it was written")
        if not candidates:
            raise UnsupportedChainError(f"shape {list(tensor.shape)} does not fit the chain's {list(self.shape)}")
        key = (tensor.storage, tensor.offset, tensor.dtype, candidates[0])
        if key not in self._read:
            moves = any(candidates[0][len(self.shape) - len(self.reduced) :]) if self.reduced else True
            node = Node(
                id=len(self.program.nodes), function="input", args=(len(self.program.inputs),), dtype=tensor.dtype,
                operand_type=c_type(tensor.dtype), row=bool(self.reduced) and not moves, level=0,
            )  # fmt: skip
            self.program.nodes.append(node)
            self.program.inputs.append(Port(tensor=tensor, strides=candidates[0], node=node.id))
            self._read[key] = node.id
        return NodeRef(self._read[key])

    def draw(self, tensor: Tensor) -> NodeRef:
        """Uniform numbers in [0, 1), one for each element of a tensor that an op fills at random."""
        found = [self._normal(s) for way in self.maps(tensor.shape) if (s := way(tensor.strides)) is not None]
        if not found:
            raise UnsupportedChainError(f"shape {list(tensor.shape)} does not fit the chain's {list(self.shape)}")
        kept = len(self.shape) - len(self.reduced)
        seeds = [port.seed for port in self.program.inputs if port.seed is not None]
        place = replace(tensor, storage=f"drawn {len(seeds)}", dtype="float32")
        node = Node(
            id=len(self.program.nodes), function="input", args=(len(self.program.inputs),), dtype="float32",
            operand_type="float", row=bool(self.reduced) and not any(found[0][kept:]), level=0,
        )  # fmt: skip
        self.program.nodes.append(node)
        port = Port(tensor=place, strides=found[0], node=node.id, seed=FIRST_SEED + len(seeds))
        self.program.inputs.append(port)
        return NodeRef(node.id)

    def write(self, tensor: Tensor, value: NodeRef) -> None:
        """The chain makes this tensor; later reads find the value."""
        if tensor.storage is None:
            raise UnsupportedChainError("a tensor's storage was not recorded")
        node = self.program.nodes[value.id]
        rest = len(self.shape) - len(self.reduced)
        found = [self._normal(s) for way in self.maps(tensor.shape) if (s := way(tensor.strides)) is not None]
        if node.row and self.reduced:
            found = [s for s in found if not any(s[rest:])] or found
            if found and any(found[0][rest:]):  # one value for a whole row, written to each of its elements
                value = self._spread(value)
        if not found:
            raise UnsupportedChainError(f"shape {list(tensor.shape)} does not fit the chain's {list(self.shape)}")
        port = Port(tensor=tensor, strides=found[0], node=value.id)
        ports = self._written.setdefault(tensor.storage, [])
        if ports and any(p.strides != port.strides or p.tensor.offset != tensor.offset for p in ports):
            raise UnsupportedChainError("parts of one tensor are written one after the other")
        for known in self.program.inputs:
            same = known.strides == port.strides and known.tensor.offset == tensor.offset
            if known.tensor.storage == tensor.storage and not same:
                raise UnsupportedChainError("a tensor is overwritten while its elements are read in another order")
        ports.append(port)

    def _spread(self, value: NodeRef) -> NodeRef:
        """The row's value as one of its elements."""
        node = self.program.nodes[value.id]
        spread = replace(node, id=len(self.program.nodes), function="convert", args=(value,), row=False)
        self.program.nodes.append(spread)
        return NodeRef(spread.id)

    def finish(self, leaves: Callable[[str], bool]) -> ChainProgram:
        """The program with the last value of each storage that ``leaves`` says is needed outside."""
        for storage, ports in self._written.items():
            if leaves(storage):
                self.program.outputs.append(ports[-1])
        if not self.program.outputs:
            raise UnsupportedChainError("nothing that the chain makes is used outside it")
        return self.program

    def _normal(self, strides: Strides) -> Strides:
        sizes = self.program.space
        return tuple(0 if size == 1 else stride for size, stride in zip(sizes, strides, strict=True))
