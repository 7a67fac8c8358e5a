"""What a reference kernel is: inputs, the eager form it stands in for, the fused form, and how exact it must be."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

Argument = torch.Tensor | int | float | None
Tensors = tuple[torch.Tensor, ...]

CPP_TYPES: dict[torch.dtype, str] = {
    torch.float32: "float",
    torch.float64: "double",
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
    torch.float8_e4m3fn: "float8_e4m3",
    torch.int64: "long long",
    torch.int32: "int",
    torch.int16: "short",
    torch.int8: "signed char",
    torch.uint8: "unsigned char",
    torch.bool: "bool",
}


class Launch(Protocol):
    """Runs one kernel. ``source`` is a file of this folder or a whole CUDA text, ``name`` a C++ name expression.

    Tensors go as pointers (``None``: null), ints as ``long long``, floats as ``float``. ``empty`` makes output buffers
    (poisoned while a result is being checked).
    """

    sm_count: int
    l2_bytes: int
    shared_bytes_per_block: int
    device: torch.device

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """A buffer on the device."""
        ...

    def tickets(self, count: int) -> torch.Tensor:
        """int32 zeros that every kernel leaves zeroed: kept, so that no launch has to clear them."""
        ...

    def __call__(
        self,
        source: str,
        name: str,
        grid: int | tuple[int, ...],
        block: int | tuple[int, ...],
        args: Sequence[Argument],
        *,
        shared_bytes: int = 0,
    ) -> None:
        """Launch, asynchronously."""
        ...


@dataclass(frozen=True, kw_only=True)
class Reference:
    """A hand-fused kernel and all that is needed to check and time it.

    ``inputs(elements, dtype, device)`` draws fresh random inputs of about that many elements; ``eager(*inputs)`` is the
    naive form; ``fused(launch, *inputs)`` the kernel. Both give the same tuple of tensors. ``kernels`` are name
    expressions that stand for the file in tests (compiled for every architecture, registers kept).
    ``tolerance_scale`` multiplies the tolerance of the dtype; ``precise`` stands in for ``eager`` where that draws its
    own random numbers. ``limit`` says what keeps it off the copy bandwidth, if anything does. ``sizes`` are the bytes
    of the main tensor in the table: in the L1s, in the L2, far beyond both. ``reads_twice``: the kernel loads its
    inputs a second time (a figure of its own in the byte model, ``reread_bytes``).
    """

    name: str
    source: str
    summary: str
    inputs: Callable[[int, torch.dtype, torch.device], Tensors]
    eager: Callable[..., Tensors]
    fused: Callable[..., Tensors]
    kernels: tuple[str, ...]
    dtypes: tuple[torch.dtype, ...] = (torch.float32, torch.bfloat16, torch.float16)
    tolerance_scale: float = 1.0
    limit: str = ""
    applies: str = ""
    variants: dict[str, Callable[..., Tensors]] = field(default_factory=dict)
    precise: Callable[..., Tensors] | None = None
    moved_bytes: Callable[[Tensors, Tensors], int] | None = None
    sizes: tuple[int, ...] = (1 << 20, 1 << 24, 1 << 30)
    reads_twice: bool = False

    def ideal_bytes(self, inputs: Tensors, outputs: Tensors) -> int:
        """Bytes through global memory: each input read once, each output written once, unless the file says else."""
        if self.moved_bytes is not None:
            return self.moved_bytes(inputs, outputs)
        return sum(t.numel() * t.element_size() for t in (*inputs, *outputs))


def cpp(tensor: torch.Tensor) -> str:
    """The element type's name in the kernels."""
    return CPP_TYPES[tensor.dtype]


def accumulate_dtype(dtype: torch.dtype) -> torch.dtype:
    """fp32, or fp64 for fp64."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def pack_width(elements: int, *tensors: torch.Tensor, itemsize: int | None = None) -> int:
    """The most elements of one access of 16 bytes at most that divides ``elements`` and every tensor's address."""
    size = itemsize or max(t.element_size() for t in tensors)
    width = max(16 // size, 1)
    while width > 1 and (elements % width or any(t.data_ptr() % (width * t.element_size()) for t in tensors)):
        width //= 2
    return width


@dataclass(frozen=True, kw_only=True)
class RowLayout:
    """How a row is spread over threads: ``items`` packs of ``width`` elements for each of ``threads``."""

    threads: int
    width: int
    items: int

    @property
    def rows_per_block(self) -> int:
        """Short rows share a block of 128 threads."""
        return max(128 // self.threads, 1) if self.threads <= 32 else 1

    def grid(self, rows: int) -> int:
        """Blocks that cover the rows."""
        return -(-rows // self.rows_per_block)

    @property
    def block(self) -> tuple[int, int, int]:
        """Threads of a block: along the row, rows."""
        return (self.threads, self.rows_per_block, 1)

    def arguments(self) -> str:
        """The template arguments THREADS, V, ITEMS."""
        return f"{self.threads}, {self.width}, {self.items}"


def row_layout(cols: int, *tensors: torch.Tensor, elements_per_thread: int = 32) -> RowLayout | None:
    """A layout with at most that many elements a thread (they live in registers); ``None``: the row is too long."""
    width = pack_width(cols, *tensors)
    packs = max(-(-cols // width), 1)
    wanted = max(elements_per_thread // width, 1)
    threads = 1
    while threads < 1024 and threads * wanted < packs:
        threads *= 2
    if threads > 8:  # whole warps read whole lines
        threads = max(threads, 32)
    items = -(-packs // threads)
    return RowLayout(threads=threads, width=width, items=items) if items <= wanted else None


def normal(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Fresh N(0, 1) values."""
    return torch.randn(tuple(shape), device=device, dtype=accumulate_dtype(dtype)).to(dtype)


def rows_of(elements: int, cols: int) -> int:
    """Rows for about that many elements, at least one."""
    return max(elements // cols, 1)


def as_tuple(value: Any) -> Tensors:
    """Outputs as a tuple."""
    return (value,) if isinstance(value, torch.Tensor) else tuple(value)
