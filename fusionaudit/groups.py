"""The guard's unit: fusion groups. Which ops share a kernel, over which shapes and dtypes, at which source lines.

Kernel names and kernel ids never go in (they are renumbered), nor do times, line numbers or directories (they move
with harmless edits). A group is what a reviewer would call "the kernel that does gelu and add in ``Block.forward``".
"""

from __future__ import annotations

import hashlib
import io
import math
import re
import tokenize
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fusionaudit.data_sizes import Sizes, data_sizes
from fusionaudit.report.document import Document
from fusionaudit.tensors import Tensor

LOCK_FORMAT = 1
MOST_TENSORS = 40
"""Tensors of one kernel that are written out in a lock; a line of a reviewable file holds no more."""
LOCKED_PASSES = ("eager", "compiled", "imported")

DTYPE_SHORT = {
    "bool": "b8", "uint8": "u8", "int8": "i8", "int16": "i16", "uint16": "u16", "int32": "i32", "uint32": "u32",
    "int64": "i64", "uint64": "u64", "float16": "f16", "bfloat16": "bf16", "float32": "f32", "float64": "f64",
    "complex32": "c32", "complex64": "c64", "complex128": "c128",
}  # fmt: skip
"""The names that torch.fx prints; a dtype that is not here keeps its own name."""

ALIASING = frozenset(
    "aten." + name
    for name in (
        "view", "_unsafe_view", "reshape", "permute", "transpose", "t", "expand", "slice", "select", "squeeze",
        "unsqueeze", "detach", "alias", "as_strided", "split", "split_with_sizes", "unbind", "diagonal", "unfold",
        "lift_fresh", "chunk", "narrow", "view_as", "expand_as", "flatten", "unflatten",
    )
)  # fmt: skip
"""Ops that only rename memory: they never decide what shares a kernel, so they are no part of a group."""


_RESUMED = re.compile(r"^(?:torch_dynamo_resume_in_)+(.+?)(?:_at_\d+)+$")
"""What Dynamo calls the rest of a function after a graph break."""


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
    ``file function`` of what was compiled, ``inputs`` its signature, ``dynamic`` how many sizes are symbolic;
    ``number`` tells apart two graphs that agree in all of that.
    """

    pass_name: str
    kind: str
    graph: bool = False
    place: str = ""
    inputs: tuple[str, ...] = ()
    dynamic: int = 0
    number: int = 1


@dataclass(frozen=True, kw_only=True, repr=False)
class Group:
    """One fusion group of a section. Equal kernels of a section are one group with their ``launches`` counted.

    ``what`` is ``kernel``, or ``break`` (graph break), ``sync`` (the host waits), ``skip`` (CUDA graph not used), which
    launch nothing (``launches`` is how often a step waits for a ``sync``, 0 for the others). ``ops`` are aten names in
    order; ``reads`` and ``writes`` are ``bf16[8,1024]``. ``bytes`` is the sum over the launches, ``None`` if one is
    unknown or up to the data. ``note`` is free text (a break's reason).
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


def key_of(document: Document) -> Key:
    """Target, versions and engine of an audit. ``"unknown"`` where the document does not say."""
    environment = document.get("environment") or {}
    target = document.get("target") or {}
    engine = str(document.get("engine"))

    def version(name: str) -> str:
        value = environment.get(name) or environment.get(f"{name}_version")
        return str(value).split("+")[0] if value else "unknown"

    return Key(
        target=str(target.get("key") or target.get("name") or "unknown").replace(" ", "-"),
        sm_count=target.get("sm_count"),
        torch=version("torch"),
        triton=version("triton"),
        engine="deviceless" if engine == "deviceless" else "measured",
    )


class _Refs:
    """Locations of a document as refs; the text comes from the document's own ``sources``."""

    def __init__(self, document: Document) -> None:
        self.sources: dict[str, dict[str, str]] = document.get("sources") or {}

    def one(self, location: dict[str, Any] | None) -> Ref | None:
        if not location:
            return None
        file, line = str(location["file"]), int(location["line"])
        code = self.sources.get(file, {}).get(str(line), "")
        name = file.replace("\\", "/").rsplit("/", 1)[-1]
        function = _RESUMED.sub(r"\1", location.get("function") or "?")
        return Ref(file=name, function=function, code=bare(code), path=file, line=line)

    def all(self, locations: Iterable[dict[str, Any] | None]) -> tuple[Ref, ...]:
        found = (self.one(x) for x in locations)
        return tuple(dict.fromkeys(r for r in found if r is not None))


def base_op(name: str) -> str:
    """``aten.add`` for ``aten.add.Tensor``."""
    return ".".join(name.split(".")[:2])


def _ops(names: Sequence[str]) -> tuple[str, ...]:
    ops = tuple(dict.fromkeys(base_op(n) for n in names))
    return tuple(o for o in ops if o not in ALIASING) or ops


def _tensors(data: Sequence[dict[str, Any]], sizes: Sizes | None = None) -> tuple[str, ...]:
    """Tensors as text, in the order of the arguments; more than fit on a line (an optimizer's) as one text, in which
    their order is no part."""
    texts = tuple(short(Tensor.from_json(t), (sizes or {}).get(t["storage"])) for t in data)
    if len(texts) <= MOST_TENSORS:
        return texts
    digest = hashlib.sha256("\n".join(sorted(texts)).encode()).hexdigest()[:8]
    elements = sum(math.prod(t["shape"]) for t in data)
    return (f"{len(texts)} tensors of {elements} elements #{digest}",)


def _graph_sections(p: dict[str, Any], refs: _Refs) -> dict[str, Section]:
    """A section for each graph that has kernels in the step, in order of their first kernel."""
    by_id = {g["id"]: g for g in p["graphs"]}
    out: dict[str, Section] = {}
    taken: dict[Section, int] = {}
    for kernel in p["kernels"]:
        name = kernel.get("graph")
        if name is None or name in out:
            continue
        graph = by_id.get(name, {})
        first = next((c["location"] for c in graph.get("calls", []) if c.get("location")), kernel.get("location"))
        place = refs.one(first)
        section = Section(
            pass_name=p["name"],
            kind=graph.get("kind") or name.split("#")[0].rsplit("/", 1)[-1],
            graph=True,
            place=f"{place.file} {place.function}" if place else "",
            inputs=_tensors(graph.get("inputs") or []),
            dynamic=len(graph.get("symbols") or {}),
        )
        taken[section] = taken.get(section, 0) + 1
        out[name] = replace(section, number=taken[section])
    return out


def _kernel_groups(p: dict[str, Any], refs: _Refs) -> list[Group]:
    sections = _graph_sections(p, refs)
    calls = {(g["id"], c["index"]): c for g in p["graphs"] for c in g["calls"]}
    sizes = data_sizes(p["kernels"])
    groups = []
    for kernel in p["kernels"]:
        graph = kernel.get("graph")
        call = calls.get((graph, kernel.get("call")), {})
        own = Section(pass_name=p["name"], kind=kernel.get("phase") or "forward")
        tensors = [*kernel["reads"], *kernel["writes"]]
        groups.append(
            Group(
                section=sections.get(graph, own) if graph else own,
                ops=_ops(kernel["ops"]) or (kernel["category"],),
                reads=_tensors(kernel["reads"], sizes),
                writes=_tensors(kernel["writes"], sizes),
                refs=refs.all([kernel.get("location"), *call.get("locations", [])]),
                copy=kernel["category"] in ("memcpy", "memset"),
                bytes=None if any(t["storage"] in sizes for t in tensors) else kernel["global_bytes"],
                nodes=tuple(kernel.get("nodes") or ()),
                graph_ids=(graph,) if graph else (),
            )
        )
    return groups


def _event_groups(p: dict[str, Any], refs: _Refs) -> list[Group]:
    """Graph breaks, host syncs and skipped CUDA graphs: they launch nothing and still decide what can fuse."""
    section = Section(pass_name=p["name"], kind="events")
    out = []
    for what, op, rows in (
        ("break", "graph break", p.get("breaks") or []),
        ("sync", "", p.get("syncs") or []),
        ("skip", "cudagraph skip", p.get("cudagraph_skips") or []),
    ):
        for row in rows:
            out.append(
                Group(
                    section=section,
                    what=what,
                    ops=(op or base_op(row["name"]),),
                    refs=refs.all([row.get("location")]),
                    launches=int(what == "sync"),
                    bytes=0,
                    note=" ".join(str(row.get("reason") or "").split())[:160],
                )
            )
    return out


def _identity(group: Group) -> tuple[object, ...]:
    return (group.section, group.what, group.copy, group.ops, group.reads, group.writes, group.refs)


def merge(groups: Iterable[Group]) -> tuple[Group, ...]:
    """Equal groups made one, launches and bytes added; in order of section, then of first appearance."""
    merged: dict[tuple[object, ...], Group] = {}
    for group in groups:
        key = _identity(group)
        seen = merged.get(key)
        if seen is None:
            merged[key] = group
            continue
        known = None if seen.bytes is None or group.bytes is None else seen.bytes + group.bytes
        merged[key] = replace(
            seen,
            launches=seen.launches + group.launches,
            bytes=known,
            nodes=tuple(dict.fromkeys((*seen.nodes, *group.nodes))),
            graph_ids=tuple(dict.fromkeys((*seen.graph_ids, *group.graph_ids))),
        )
    order = {s: i for i, s in enumerate(dict.fromkeys(g.section for g in merged.values()))}
    return tuple(sorted(merged.values(), key=lambda g: order[g.section]))


def groups_of(document: Document) -> tuple[Group, ...]:
    """The fusion groups of an audit, pass by pass, in order of execution."""
    refs = _Refs(document)
    out: list[Group] = []
    for p in document["passes"]:
        if p["name"] in LOCKED_PASSES:
            out += merge([*_kernel_groups(p, refs), *_event_groups(p, refs)])
    return tuple(out)


def flow_of(document: Document) -> tuple[FlowOp, ...]:
    """What the ops of the eager step read from each other; ops that only rename memory are left out."""
    refs = _Refs(document)
    eager: dict[str, Any] = next((p for p in document["passes"] if p["name"] == "eager"), {})
    makers: dict[str, int] = {}
    out: list[FlowOp] = []
    for op in eager.get("ops") or []:
        before = {t["storage"] for t in op["inputs"]}
        changed = [op["inputs"][i]["storage"] for i in op["mutated"] if i < len(op["inputs"])]
        made = [t["storage"] for t in op["outputs"] if t["storage"] not in before]
        if not (made or changed):
            continue
        read = {(makers[t["storage"]], short(Tensor.from_json(t))) for t in op["inputs"] if t["storage"] in makers}
        makers.update(dict.fromkeys((*made, *changed), len(out)))
        out.append(FlowOp(name=base_op(op["name"]), ref=refs.one(op["location"]), inputs=tuple(sorted(read))))
    return tuple(out)


def compiled_by(document: Document) -> str:
    """``script`` or ``fusionaudit``: who called torch.compile in the compiled pass; empty where there is none."""
    if not any(p["name"] == "compiled" for p in document["passes"]):
        return ""
    told = any(n["kind"] == "compiled-for-you" for n in document.get("notes") or [])
    return "fusionaudit" if told else "script"


def lock_of(document: Document) -> Lock:
    """The lock that describes this audit."""
    tool = (document.get("tool") or {}).get("version") or ""
    return Lock(
        key=key_of(document), groups=groups_of(document), tool=tool, compiled_by=compiled_by(document),
        flow=flow_of(document),
    )  # fmt: skip
