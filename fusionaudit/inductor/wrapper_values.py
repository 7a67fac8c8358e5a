"""Values that live in a graph's ``call`` function: buffers (views of storages), numbers and tuples of results."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from fusionaudit.tensors import Tensor


@dataclass(eq=False)
class Buffer:
    """A tensor of the call function; what is not known yet is ``None`` and may be learnt from later statements.

    ``retyped``: a view with another dtype than its storage's.
    """

    name: str
    storage: str
    shape: tuple[int, ...] | None = None
    strides: tuple[int, ...] | None = None
    dtype: str | None = None
    offset: int = 0
    device: str = "cuda"
    retyped: bool = False

    def tensor(self, elements: int | None = None) -> Tensor | None:
        """The Tensor; with an unknown shape one of that many elements; ``None`` if nothing is known."""
        if self.shape is not None and self.strides is not None:
            return Tensor(
                shape=self.shape,
                strides=self.strides,
                dtype=self.dtype or "unknown",
                storage=self.storage,
                offset=self.offset,
                device=self.device,
            )
        if elements is None:
            return None
        return Tensor.contiguous((elements,), self.dtype or "unknown", storage=self.storage, device=self.device)

    @property
    def stored_elements(self) -> int | None:
        """Distinct elements of the view; ``None`` where the shape is not known."""
        known = self.tensor()
        return None if known is None else known.stored_elements


@dataclass(eq=False)
class Result:
    """The value that an extern call returned: a tensor (``first``) or a tuple of them (``parts`` as they are taken)."""

    name: str
    source: str
    parts: dict[int, Buffer] = field(default_factory=dict)
    whole: Buffer | None = None


WrapperValue: TypeAlias = "Buffer | Result | int | float | str | list[WrapperValue] | None"


@dataclass
class PendingCall:
    """A launch as met in the call function; turned into a GeneratedCall when every buffer's shape has been seen.

    ``names`` are the operands' own names in the code of a kernel's launch: a reused buffer has one for each use.
    """

    target: str
    line: int
    operands: list[WrapperValue]
    names: list[str] = field(default_factory=list)
    kernel: str | None = None
    outputs: list[Buffer] = field(default_factory=list)
    mutated: list[Buffer] = field(default_factory=list)
    result: Result | None = None
    on_host: bool = False
