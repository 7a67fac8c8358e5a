"""The guard's unit: fusion groups. Which ops share a kernel, over which shapes and dtypes, at which source lines.

Kernel names and kernel ids never go in (they are renumbered), nor do times, line numbers or directories (they move
with harmless edits). A group is what a reviewer would call "the kernel that does gelu and add in ``Block.forward``".
"""

from __future__ import annotations

import io
import re
import tokenize
from dataclasses import dataclass, field

from fusionaudit.tensors import Tensor

LOCK_FORMAT = 1
MOST_TENSORS = 40
"""Tensors of one kernel that are written out in a lock; a line of a reviewable file holds no more."""

DTYPE_SHORT = {
    "bool": "b8", "uint8": "u8", "int8": "i8", "int16": "i16", "uint16": "u16", "int32": "i32", "uint32": "u32",
    "int64": "i64", "uint64": "u64", "float16": "f16", "bfloat16": "bf16", "float32": "f32", "float64": "f64",
    "complex32": "c32", "complex64": "c64", "complex128": "c128",
}  # fmt: skip
"""The names that torch.fx prints; a dtype that is not here keeps its own name."""


MAKES_DYNAMIC = re.compile(r"\bdynamic\s*=|\bmark_dynamic\b")
COMPILES = re.compile(r"\btorch\.compile\b")
MAKES_OPTIMIZER = re.compile(r"\boptim\.\w+\(|\b(Adam\w*|SGD)\(")
"""Lines without a kernel of their own that decide which kernels others have: audits keep their text."""


@dataclass(frozen=True, kw_only=True)
class Ref:
    """A source line by what it says: file name, function and code. ``path`` and ``line`` tell where it is now
    (``None`` from a lock) and are no part of the identity, so moved code stays the same."""

    file: str
    function: str
    code: str
    path: str | None = field(default=None, compare=False)
    line: int | None = field(default=None, compare=False)


@dataclass(frozen=True, kw_only=True)
class Section:
    """Where groups belong: a pass, and in it a compiled graph or a phase of the eager code.

    ``kind``: ``forward``, ``backward``, ``optimizer``, ``inference``. ``graph`` is true for compiled code. ``place`` is
    ``file function`` of what was compiled, ``inputs`` its signature, ``dynamic`` how many sizes are symbolic,
    ``cuda_graph`` whether CUDA graphs are asked for; ``number`` tells apart two graphs that agree in all of that.
    """

    pass_name: str
    kind: str
    graph: bool = False
    place: str = ""
    inputs: tuple[str, ...] = ()
    dynamic: int = 0
    cuda_graph: bool = False
    number: int = 1


@dataclass(frozen=True, kw_only=True, repr=False)
class Group:
    """One fusion group of a section. Equal kernels of a section are one group with their ``launches`` counted.

    ``what`` is ``kernel``, or what launches nothing: ``break`` (graph break), ``sync`` (the host waits), ``skip`` (CUDA
    graph not used), ``recompile`` (a function is compiled again and again); ``launches`` is then how often a step waits
    for a ``sync``, 0 for the others. ``ops`` are aten names in order; ``reads`` and ``writes`` are ``bf16[8,1024]``.
    ``bytes`` is the sum over the launches, ``None`` if one is unknown or up to the data. ``note`` is free text (a
    break's reason).
    ``copy``: the device's copy or fill, which no report counts as a launch of a kernel; where a kernel does the same,
    that is no change. ``nodes`` are the fx nodes (only from a document): they lead to Inductor's reasons and are not
    compared.
    """

    section: Section
    what: str = "kernel"
    ops: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    refs: tuple[Ref, ...] = ()
    launches: int = 1
    bytes: int | None = None
    copy: bool = field(default=False, compare=False)
    note: str = field(default="", compare=False)
    nodes: tuple[str, ...] = field(default=(), compare=False)
    graph_ids: tuple[str, ...] = field(default=(), compare=False)

    def __repr__(self) -> str:
        what = self.label if self.what == "kernel" else f"{self.what}: {self.label}"
        tensors = f" {', '.join(self.reads)} -> {', '.join(self.writes)}" if self.what == "kernel" else ""
        times = f" x{self.launches}" if self.launches > 1 else ""
        size = "" if self.what != "kernel" else " ? bytes" if self.bytes is None else f" {self.bytes} bytes"
        place = next((f" {r.file}:{r.line or r.function}" for r in self.refs), "")
        return f"<{what}{times}{tensors}{size}{place}>"

    @property
    def label(self) -> str:
        """The ops as words."""
        return " + ".join(self.ops) if self.ops else "(no aten op)"


@dataclass(frozen=True, kw_only=True)
class FlowOp:
    """An op of the eager step and what it reads: (place in the step of the op that made it, tensor as text)."""

    name: str
    ref: Ref | None
    inputs: tuple[tuple[int, str], ...]


@dataclass(frozen=True, kw_only=True)
class Key:
    """What a lock holds for: other values cannot be judged against it. ``torch`` and ``triton`` without build tags."""

    target: str
    sm_count: int | None
    torch: str
    triton: str
    engine: str


@dataclass(frozen=True, kw_only=True)
class Lock:
    """The groups of one program under one key. ``tool`` is the fusionaudit version that made it; ``flow`` (only from a
    document) is what the eager ops read from each other. ``compiled_by``: who called torch.compile in the compiled
    pass, ``script`` or ``fusionaudit`` (for it); empty where that is not known."""

    key: Key
    groups: tuple[Group, ...]
    tool: str = ""
    format: int = LOCK_FORMAT
    compiled_by: str = ""
    flow: tuple[FlowOp, ...] = field(default=(), compare=False, repr=False)

    @property
    def passes(self) -> tuple[str, ...]:
        """Names of the passes that have groups, in order."""
        return tuple(dict.fromkeys(g.section.pass_name for g in self.groups))


def short(tensor: Tensor, data_size: int | None = None) -> str:
    """``bf16[8,1024]``; strides that are not row-major follow as ``bf16[8,1024](1,8)``. ``data_size``: the size that
    the data decided, written ``?``."""
    sizes = [str(n) for n in tensor.shape]
    if data_size in tensor.shape:
        sizes[tensor.shape.index(data_size)] = "?"
    text = f"{DTYPE_SHORT.get(tensor.dtype, tensor.dtype)}[{','.join(sizes)}]"
    plain = tensor.is_contiguous or "?" in sizes
    return text if plain else f"{text}({','.join(map(str, tensor.strides))})"


def bare(code: str) -> str:
    """A line of code without its comment and with single blanks: what stays the same when only comments change."""
    text = code.strip()
    if "#" in text:
        try:
            for token in tokenize.generate_tokens(io.StringIO(text).readline):
                if token.type == tokenize.COMMENT and token.start[0] == 1:
                    text = text[: token.start[1]]
                    break
        except (tokenize.TokenError, IndentationError, SyntaxError):
            # An open bracket or string (one line of a longer statement): a comment there starts after two blanks.
            text = text.split("  #")[0]
    return " ".join(text.split())
