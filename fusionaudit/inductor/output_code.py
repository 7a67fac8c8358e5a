"""Reads Inductor's output code: kernels, launches in order, buffers with sizes, and the bytes of each launch.

The text is only ever parsed (``ast``); nothing in it is run.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from fusionaudit.inductor import extern_ops
from fusionaudit.inductor.fragments import Fragment, FragmentNode, parse_fragment, short_op, static_tensor
from fusionaudit.inductor.kernels import MOVES, accesses, kernel_numels, parse_kernel, traffic
from fusionaudit.inductor.model import CallKind, CompiledGraph, GeneratedCall, GeneratedKernel, GraphKind, Node
from fusionaudit.inductor.wrapper import Interpreter
from fusionaudit.inductor.wrapper_definitions import Definitions, read_definitions
from fusionaudit.inductor.wrapper_values import Buffer, PendingCall, Result, WrapperValue
from fusionaudit.tensors import DTYPE_BYTES, Tensor

_AOT = re.compile(r"# AOT ID: \['(\d+)_(\w+)'\]")
_KEY = re.compile(r"## Call CompiledFxGraph (\S+) ##|compiled_module_main\('(f\w{20,})'")
_SYMBOL = re.compile(r"^(s|u|ps|zuf|z)\d+$")


def parse_output_code(
    text: str,
    *,
    compile_id: str = "",
    kind: GraphKind | None = None,
    graph_id: str | None = None,
    symbols: Mapping[str, int] | None = None,
) -> CompiledGraph:
    """The graph that one ``Output code:`` record describes.

    ``kind`` is taken from ``# AOT ID: ['0_forward']`` where it is not given. ``symbols`` replaces the sizes that
    Inductor saw while compiling. Raises SyntaxError where the text is not whole Python (a log cut off, C++ output).
    """
    definitions, comments = _module(text)
    if definitions.call is None or not any(isinstance(n, ast.Return) for n in ast.walk(definitions.call)):
        raise SyntaxError("the output code has no whole call function: it is cut off")
    found = _AOT.search(text)
    named = found.group(2) if found else "inference"
    chosen: GraphKind = kind or (named if named in ("forward", "backward", "inference") else "inference")  # type: ignore[assignment]
    fragments = _Fragments(comments)
    kernel_fragments = {name: fragments.above(line) for name, (_, _, line) in definitions.triton.items()}
    types = {n.name: n.type for f in kernel_fragments.values() for n in f.nodes if n.type}
    reading = Interpreter(definitions, symbols or {}, types)
    reading.run()
    _learn_dtypes(reading.calls, definitions)
    kernels = {name: _kernel(definitions, name, kernel_fragments[name]) for name in definitions.triton}
    calls: list[GeneratedCall] = []
    seen: set[str] = set()
    for pending in reading.calls:
        fragment = fragments.before(pending.line)
        generated = kernels.get(pending.kernel or "")
        call = _call(len(calls), pending, definitions, fragment, generated, pending.kernel in seen)
        if pending.kernel is not None:
            seen.add(pending.kernel)
        calls.append(call)
    key = _KEY.search(text)
    graph_id = graph_id or f"{compile_id}/{chosen}"
    inputs = [b for v in reading.inputs if (b := reading.buffer(v)) is not None]
    outputs = [b.storage for v in reading.outputs if (b := reading.buffer(v)) is not None]
    return CompiledGraph(
        id=graph_id,
        compile_id=compile_id,
        kind=chosen,
        kernels=tuple(kernels.values()),
        calls=tuple(calls),
        nodes=_nodes(kernel_fragments.values()),
        inputs=tuple(t for b in inputs if (t := b.tensor()) is not None),
        outputs=tuple(outputs),
        symbols={n: v for n, v in reading.sizes.items() if _SYMBOL.match(n)},
        cache_key=next((k for k in key.groups() if k), None) if key else None,
        source=text,
    )


@lru_cache(maxsize=64)
def _module(text: str) -> tuple[Definitions, tuple[tuple[int, str], ...]]:
    try:
        tree = ast.parse(text)
    except (ValueError, RecursionError, MemoryError) as error:
        raise SyntaxError(str(error)) from error
    inside = _string_lines(tree)
    comments = tuple(
        (number, line)
        for number, line in enumerate(text.split("\n"), 1)
        if number not in inside and line.lstrip().startswith("#")
    )
    return read_definitions(tree), comments


def _string_lines(tree: ast.Module) -> set[int]:
    """Lines inside kernel sources: a ``#`` there is no comment of the wrapper."""
    lines: set[int] = set()
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            lines.update(range(node.lineno + 1, (node.end_lineno or node.lineno) + 1))
    return lines


class _Fragments:
    """Comment lines of the module, looked up by the line that they stand above."""

    def __init__(self, comments: Sequence[tuple[int, str]]) -> None:
        self.by_line = dict(comments)
        self.starts = [n for n, line in comments if "Source Nodes:" in line]

    def above(self, line: int) -> Fragment:
        """The comment block that ends directly above ``line``."""
        first = line
        while first - 1 in self.by_line:
            first -= 1
        return parse_fragment(self.by_line[n] for n in range(first, line))

    def before(self, line: int) -> Fragment:
        """The last ``Source Nodes`` comment before a call (allocations and size assignments stand in between)."""
        start = next((n for n in reversed(self.starts) if n < line), None)
        if start is None or line - start > 40:
            return Fragment()
        last = start
        while last + 1 in self.by_line:
            last += 1
        return parse_fragment(self.by_line[n] for n in range(start, last + 1))


def _nodes(fragments: Iterable[Fragment]) -> tuple[Node, ...]:
    """The fx nodes that the fragments list, each once."""
    out: dict[str, Node] = {}
    for fragment in fragments:
        for node in fragment.nodes:
            if not node.placeholder and node.name not in out:
                out[node.name] = Node(
                    name=node.name,
                    op=short_op(node.target),
                    inputs=node.inputs,
                    tensor=static_tensor(node.type, node.name),
                )
    return tuple(out.values())


def _ops(nodes: Sequence[str], fragment: Fragment) -> tuple[str, ...]:
    """The ``Original ATen`` list without ops whose nodes the kernel does not compute."""
    listed: dict[str, FragmentNode] = {n.name: n for n in fragment.nodes if not n.placeholder}
    dropped = {short_op(listed[n].target).rsplit(".", 1)[0] for n in listed if n not in nodes}
    kept = {short_op(listed[n].target).rsplit(".", 1)[0] for n in nodes if n in listed}
    chosen = tuple(a for a in fragment.aten if a not in dropped or a in kept)
    return chosen or fragment.aten


def _kernel(definitions: Definitions, variable: str, fragment: Fragment) -> GeneratedKernel:
    name, source, _ = definitions.triton[variable]
    code = parse_kernel(name, source)
    nodes = fragment.computed()
    aten = _ops(nodes, fragment)
    category = code.category if code is not None else "opaque"
    if category == "pointwise" and aten and all(a.split(".")[1] in MOVES for a in aten if "." in a):
        category = "copy"
    partial = any(r.startswith("buf") for r in fragment.returns)
    return GeneratedKernel(
        name=variable,
        category=category,
        aten=aten,
        nodes=nodes,
        numels=kernel_numels(name, source, {}) if code is not None else {},
        args=code.params if code is not None else (),
        dtypes=tuple(code.dtypes[p] for p in code.params) if code is not None else (),
        accesses=accesses(name, source),
        source=source,
        split_reduction=partial and category in ("reduction", "persistent_reduction"),
    )


def _learn_dtypes(calls: Sequence[PendingCall], definitions: Definitions) -> None:
    """Results of extern calls have no dtype in the text: the kernels that take them have one in their signature.

    Where no kernel does, the op's own rule (indices are int64, attention's log-sum-exp is float32), else the dtype of
    the first operand. Views of a result take its dtype.
    """
    known: dict[str, str | None] = {}
    for pending in calls:
        if pending.kernel is None:
            continue
        name, source, _ = definitions.triton[pending.kernel]
        code = parse_kernel(name, source)
        if code is None:
            continue
        for param, value in zip(code.params, pending.operands, strict=False):
            for buffer in _buffers([value]):
                if buffer.dtype is None and param in code.pointers:
                    known.setdefault(_dtype_key(buffer), code.dtypes[param])
    for pending in calls:
        operands = _buffers(pending.operands)
        for buffer in operands:
            buffer.dtype = buffer.dtype or known.get(_dtype_key(buffer))
        if pending.kernel is not None:
            continue
        first = next((v.dtype for v in operands if v.dtype), None)
        parts = pending.result.parts if pending.result is not None else {}
        for out in _results(pending):
            if out.dtype is None:
                position = next((i for i, part in parts.items() if part is out), 0)
                own = extern_ops.result_dtype(pending.target, position, first)
                out.dtype = own or known.get(_dtype_key(out)) or first
            known.setdefault(_dtype_key(out), out.dtype)


def _dtype_key(buffer: Buffer) -> str:
    return f"{buffer.storage} retyped" if buffer.retyped else buffer.storage


def _results(pending: PendingCall) -> list[Buffer]:
    out = list(pending.outputs)
    if pending.result is not None:
        out.extend(pending.result.parts.values())
        if pending.result.whole is not None and not pending.result.parts:
            out.append(pending.result.whole)
    return out


def _buffers(values: Sequence[WrapperValue]) -> list[Buffer]:
    out: list[Buffer] = []
    for value in values:
        if isinstance(value, Buffer):
            out.append(value)
        elif isinstance(value, Result) and value.whole is not None:
            out.append(value.whole)
        elif isinstance(value, list):
            out.extend(_buffers(value))
    return out


def _argument(value: WrapperValue) -> object:
    """An operand with its buffers as tensors."""
    if isinstance(value, list):
        return [_argument(v) for v in value]
    found = _buffers([value])
    return found[0].tensor() if found else value


def _call(
    index: int,
    pending: PendingCall,
    definitions: Definitions,
    fragment: Fragment,
    generated: GeneratedKernel | None,
    again: bool,
) -> GeneratedCall:
    if generated is not None:
        call = _launch(index, pending, definitions, generated)
        # A kernel that is launched twice has other nodes the second time; its own comment names the ops only.
        return replace(call, nodes=() if again and fragment.source_nodes else call.nodes)
    reads = [t for b in _buffers(pending.operands) if (t := b.tensor()) is not None]
    writes = [t for b in _results(pending) if (t := b.tensor()) is not None]
    mutated = [t for b in pending.mutated if (t := b.tensor()) is not None]
    kind: CallKind = "cpu" if pending.on_host else extern_ops.call_kind(pending.target)  # type: ignore[assignment]
    devices = {t.device for t in (*reads, *writes, *mutated)}
    category = extern_ops.category(pending.target)
    if kind in ("extern", "copy", "fill") and devices == {"cpu"}:
        kind = "cpu"
    if kind == "copy" and len(devices) > 1:
        category = "memcpy"
    device_reads = [t for t in reads if t.device != "cpu"]
    device_writes = [t for t in writes if t.device != "cpu"]
    arguments = [_argument(value) for value in pending.operands]
    read, write = extern_ops.extern_bytes(pending.target, device_reads, device_writes, mutated, arguments)
    unknown_operand = any(b.tensor() is None for b in (*_buffers(pending.operands), *_results(pending)))
    if unknown_operand and kind != "cpu":
        read = write = None
    if pending.target in definitions.other:
        category, read, write = "template", None, None
    nodes = tuple(n.name for n in fragment.nodes if not n.placeholder)
    own = extern_ops.aten_name(pending.target)
    return GeneratedCall(
        index=index,
        kind=kind,
        target=pending.target,
        category=category,
        aten=(own,),
        nodes=fragment.returns or nodes[-1:],
        reads=tuple(reads),
        writes=(*writes, *mutated),
        read_bytes=0 if kind == "cpu" else read,
        write_bytes=0 if kind == "cpu" else write,
    )


def _launch(index: int, pending: PendingCall, definitions: Definitions, kernel: GeneratedKernel) -> GeneratedCall:
    name, source, _ = definitions.triton[kernel.name]
    code = parse_kernel(name, source)
    reads: list[Tensor] = []
    writes: list[Tensor] = []
    written: list[str] = []
    read_bytes: int | None = 0
    write_bytes: int | None = 0
    again = 0
    numels: dict[str, int | None] = {}
    if code is not None:
        given = dict(zip(code.params, pending.operands, strict=False))
        names = dict(zip(code.params, pending.names, strict=False))
        scalars = {
            p: v for p, v in given.items() if isinstance(v, int) and not isinstance(v, bool) and p not in code.pointers
        }
        numels = kernel_numels(name, source, scalars)
        moved = traffic(name, source, scalars)
        if moved is None:
            read_bytes = write_bytes = None
        for one in moved or ():
            buffer = next(iter(_buffers([given.get(one.arg)])), None)
            size = DTYPE_BYTES.get(code.dtypes[one.arg] or "") or DTYPE_BYTES.get(
                (buffer.dtype if buffer else "") or ""
            )
            stored = buffer.stored_elements if buffer is not None else None
            read = _bounded(one.read, stored) if one.reads else 0
            write = _bounded(one.write, stored) if one.writes else 0
            elements = max(read or 0, write or 0) or None
            tensor = buffer.tensor(elements) if buffer is not None else None
            if one.reads:
                read_bytes = None if read is None or size is None or read_bytes is None else read_bytes + read * size
                reads.extend([tensor] if tensor is not None else [])
            if one.writes:
                write_bytes = (
                    None if write is None or size is None or write_bytes is None else write_bytes + write * size
                )
                writes.extend([tensor] if tensor is not None else [])
                written.append(names.get(one.arg) or (buffer.storage if buffer is not None else ""))
            again += one.again * (size or 0)
    user = kernel.category == "user_triton"
    return GeneratedCall(
        index=index,
        kind="user_triton" if user else "triton",
        target=code.kernel_name if user and code is not None and code.kernel_name else kernel.name,
        category=kernel.category if code is not None else "opaque",
        aten=kernel.aten,
        nodes=kernel.nodes,
        reads=tuple(reads),
        writes=tuple(writes),
        written=tuple(name for name in written if name),
        read_bytes=read_bytes if code is not None else None,
        write_bytes=write_bytes if code is not None else None,
        reread_bytes=again,
        numels=tuple(v for v in numels.values() if v is not None) if None not in numels.values() else (),
    )


def _bounded(count: int | None, stored: int | None) -> int | None:
    if count is None:
        return stored
    return count if stored is None else min(count, stored)


@lru_cache(maxsize=512)
def _resolved(
    text: str, compile_id: str, graph_id: str, kind: GraphKind, symbols: tuple[tuple[str, int], ...]
) -> CompiledGraph:
    return parse_output_code(text, compile_id=compile_id, graph_id=graph_id, kind=kind, symbols=dict(symbols))


def resolve(graph: CompiledGraph, symbols: Mapping[str, int]) -> CompiledGraph:
    """The same graph with buffers and bytes for other sizes of its symbols (``{"s0": 41}``).

    Nodes, lines and the key stay. A graph without source or symbols, or whose source names none of them, is returned
    as it is.
    """
    wanted = {k: int(v) for k, v in symbols.items() if re.search(rf"\b{re.escape(k)}\b", graph.source)}
    if not wanted or not graph.source:
        return graph
    try:
        fresh = _resolved(graph.source, graph.compile_id, graph.id, graph.kind, tuple(sorted(wanted.items())))
    except SyntaxError:
        return graph
    calls = []
    for new, old in zip(fresh.calls, graph.calls, strict=False):
        calls.append(replace(new, aten=old.aten, nodes=old.nodes, location=old.location, locations=old.locations))
    return replace(graph, calls=tuple(calls), inputs=fresh.inputs, symbols={**graph.symbols, **wanted})
