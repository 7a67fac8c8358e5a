"""A chain's program written out as CUDA C++: shapes, strides and alignments are constants of the source."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fusionaudit.tensors import DTYPE_BYTES
from fusionaudit.verify.chain import ChainProgram, Node, NodeRef, Port, UnsupportedChainError, c_type

CPP_NAMES = {
    "float32": "float", "float64": "double", "float16": "float16", "bfloat16": "bfloat16",
    "float8_e4m3fn": "float8_e4m3", "int64": "long long", "int32": "int", "int16": "short", "int8": "signed char",
    "uint8": "unsigned char", "bool": "bool",
}  # fmt: skip
IDENTITY = {
    ("sum", "float"): "0.f", ("sum", "double"): "0.0", ("sum", "long long"): "0ll",
    ("prod", "float"): "1.f", ("prod", "double"): "1.0", ("prod", "long long"): "1ll",
    ("max", "float"): "float_of(0xff800000u)", ("max", "double"): "double(float_of(0xff800000u))",
    ("max", "long long"): "(-9223372036854775807ll - 1)", ("max", "bool"): "false",
    ("min", "float"): "float_of(0x7f800000u)", ("min", "double"): "double(float_of(0x7f800000u))",
    ("min", "long long"): "9223372036854775807ll", ("min", "bool"): "true",
}  # fmt: skip
OPERATOR = {"sum": "add_op{}", "prod": "mul_op{}", "max": "max_op{}", "min": "min_op{}"}


@dataclass(frozen=True, kw_only=True)
class GeneratedKernel:
    """A kernel and its launch. Arguments: inputs, outputs, then ``scratch`` buffers (C++ type, elements) and, if
    there are any, a zeroed ``int`` ticket for each row (the kernel leaves it zeroed). ``form`` says how it works.
    """

    source: str
    form: str
    grid: int
    block: tuple[int, int, int]
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    scratch: tuple[tuple[str, int], ...] = ()
    tickets: int = 0
    name: str = "chain"


def collapse(sizes: Sequence[int], strides: Sequence[Sequence[int]]) -> tuple[list[int], list[list[int]]]:
    """Dimensions that all tensors walk through without a jump become one; dimensions of size 1 go."""
    out_sizes: list[int] = []
    out: list[list[int]] = [[] for _ in strides]
    for dim, size in enumerate(sizes):
        if size == 1:
            continue
        if out_sizes and all(o[-1] == s[dim] * size for o, s in zip(out, strides, strict=True)):
            out_sizes[-1] *= size
            for o, s in zip(out, strides, strict=True):
                o[-1] = s[dim]
        else:
            out_sizes.append(size)
            for o, s in zip(out, strides, strict=True):
                o.append(s[dim])
    return out_sizes, out


def literal(value: float | int | bool) -> str:
    """A constant of the source."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return f"{value}ll"
    if math.isnan(value):
        return "double(float_of(0x7fc00000u))"
    if math.isinf(value):
        return f"double(float_of(0x{'7' if value > 0 else 'f'}f800000u))"
    return repr(float(value))


def expression(node: Node, names: dict[int, str], nodes: Sequence[Node]) -> str:
    """The C++ expression of a node, given the names of its arguments."""
    kind = c_type(node.dtype)
    args = [names[a.id] if isinstance(a, NodeRef) else literal(a) for a in node.args]
    if node.function in ("cast", "convert"):
        source = nodes[node.args[0].id].dtype if isinstance(node.args[0], NodeRef) else node.dtype
        value = (
            f"({args[0]} != 0)"
            if kind == "bool"
            else f"{kind}({args[0]})"
            if kind != "long long"
            else f"(long long)({args[0]})"
        )
        narrower = DTYPE_BYTES[node.dtype] < 4 and kind == "float" and source != node.dtype
        return f"round_to<{CPP_NAMES[node.dtype]}>({value})" if node.function == "cast" and narrower else value
    if node.function == "where":
        kind = f"({kind})" if " " in kind else kind
        return f"({args[0]} ? {kind}({args[1]}) : {kind}({args[2]}))"
    operand = f"({node.operand_type})" if " " in node.operand_type else node.operand_type
    return f"f_{node.function}({', '.join(f'{operand}({a})' for a in args)})"


class Writer:
    """What the forms share: names of nodes and ports, and the lines being written."""

    def __init__(self, program: ChainProgram) -> None:
        self.p = program
        self.nodes = program.nodes
        self.lines: list[str] = []
        self.input_of = {port.node: k for k, port in enumerate(program.inputs)}
        self.in_place = {o.tensor.storage for o in program.outputs} & {i.tensor.storage for i in program.inputs}
        for port in (*program.inputs, *program.outputs):
            if port.tensor.dtype not in CPP_NAMES:
                raise UnsupportedChainError(f"no kernel for dtype {port.tensor.dtype}")

    def needed(self, targets: Iterable[int], known: Iterable[int] = ()) -> list[int]:
        """Nodes to compute for the targets, in order; those known already and reductions are not gone into."""
        have, out, stack = set(known), set(), list(targets)
        while stack:
            node = stack.pop()
            if node in out or node in have:
                continue
            out.add(node)
            if not self.nodes[node].function.startswith("reduce_"):
                stack += [a.id for a in self.nodes[node].args if isinstance(a, NodeRef)]
        return sorted(out)

    def pointers(self, extra: Sequence[str] = ()) -> str:
        """The kernel's parameters."""
        out = []
        for k, port in enumerate(self.p.inputs):
            if port.seed is not None:
                out.append(f"draws<{port.seed}u> in{k}")
                continue
            keep = "" if port.tensor.storage in self.in_place else "__restrict__ "
            out.append(f"const {CPP_NAMES[port.tensor.dtype]}* {keep}in{k}")
        out += [f"{CPP_NAMES[port.tensor.dtype]}* out{k}" for k, port in enumerate(self.p.outputs)]
        return ", ".join([*out, *extra])

    def text(self) -> str:
        """The whole source."""
        return "\n".join(['#include "elementwise_functions.cuh"', *self.lines, ""])


def width_of(ports: Sequence[Port], inner: Sequence[int], size: int, any_tail: bool = False) -> int:
    """Elements of one access: 16 bytes of the widest tensor that is walked in steps of one."""
    steps = zip(ports, inner, strict=True)
    walked = [DTYPE_BYTES[p.tensor.dtype] for p, step in steps if step == 1 and p.seed is None]
    width = 16 // max(walked) if walked else 1
    while width > 1 and not any_tail and size % width:
        width //= 2
    return width


def is_aligned(port: Port, outer: Sequence[int], width: int) -> bool:
    """True where every access of ``width`` elements starts at a multiple of itself (buffers start at 256 bytes)."""
    return port.tensor.offset % width == 0 and all(stride % width == 0 for stride in outer)


def decompose(index: str, sizes: Sequence[int], prefix: str, position: str) -> list[str]:
    """Lines that split a row-major index into one coordinate per dimension."""
    lines, rest = [], index
    for dim in range(len(sizes) - 1, 0, -1):
        lines.append(f"const {position} {prefix}{dim} = ({rest}) % {sizes[dim]}u;")
        lines.append(f"const {position} {prefix}r{dim} = ({rest}) / {sizes[dim]}u;")
        rest = f"{prefix}r{dim}"
    return [*lines, f"const {position} {prefix}0 = {rest};"]


def offset_of(strides: Sequence[int], prefix: str) -> str:
    """The element offset as 64-bit arithmetic."""
    return " + ".join(f"index_t({prefix}{d}) * {s}ll" for d, s in enumerate(strides) if s) or "index_t(0)"


def position_type(count: int) -> str:
    """32-bit division is cheaper; above 2^31 positions it has to be 64-bit."""
    return "unsigned" if count < 2**31 else "unsigned long long"


def generate(program: ChainProgram, *, sm_count: int, threads: int | None = None) -> GeneratedKernel:
    """The kernel for a program on a device with that many SMs. ``threads`` forces the block size (tests)."""
    from fusionaudit.verify.chain_rows import generate_rows  # the two forms need each other's helpers

    if program.reduced:
        return generate_rows(program, sm_count=sm_count, threads=threads)
    return generate_flat(program, threads=threads)


def generate_flat(program: ChainProgram, *, threads: int | None = None) -> GeneratedKernel:
    """One pass over all elements; each thread moves ``unroll`` packs, all loads first."""
    w = Writer(program)
    ports = [*program.inputs, *program.outputs]
    rank = range(len(program.space))
    order = sorted(rank, key=lambda d: -max(port.strides[d] for port in program.outputs))
    sizes, strides = collapse([program.space[d] for d in order], [[p.strides[d] for d in order] for p in ports])
    sizes, strides = (sizes, strides) if sizes else ([1], [[0] for _ in ports])
    inner = [s[-1] for s in strides]
    count = math.prod(sizes)
    width = width_of(ports, inner, sizes[-1], any_tail=len(sizes) == 1)
    unroll = 4 if len(program.inputs) <= 2 else 2
    threads = threads or 256
    position = position_type(count)
    body = _flat_body(w, ports, sizes, strides, width, position)
    names = ", ".join([f"in{k}" for k in range(len(program.inputs))] + [f"out{k}" for k in range(len(program.outputs))])
    packs, tail = count // width, count % width
    w.lines += [
        "template <int V, int UNROLL>",
        "__device__ inline void elements(index_t base, index_t first, index_t step, index_t packs, "
        f"{w.pointers()}) {{",
        *body,
        "}",
        f'extern "C" __global__ void __launch_bounds__({threads}) chain({w.pointers()}) {{',
        "  const index_t step = global_threads();",
        f"  for (index_t first = global_thread(); first < {packs}ll; first += {unroll} * step)",
        f"    elements<{width}, {unroll}>(0, first, step, {packs}ll, {names});",
    ]  # fmt: skip
    if tail:
        w.lines.append(
            f"  if (global_thread() < {tail})"
            f" elements<1, 1>({packs * width}ll, global_thread(), step, {tail}, {names});"
        )
    w.lines.append("}")
    grid = max(-(-packs // (threads * unroll)), 1)
    return GeneratedKernel(
        source=w.text(), form="elementwise", grid=grid, block=(threads, 1, 1),
        inputs=tuple(program.inputs), outputs=tuple(program.outputs),
    )  # fmt: skip


def _flat_body(
    w: Writer, ports: Sequence[Port], sizes: Sequence[int], strides: Sequence[Sequence[int]], width: int, position: str
) -> list[str]:
    program = w.p
    lines = []
    for k, port in enumerate(program.inputs):
        wide = "V" if strides[k][-1] else "1"
        lines.append(f"  pack<{CPP_NAMES[port.tensor.dtype]}, {wide}> x{k}[UNROLL];")
    index = [
        f"    const {position} i = ({position})(base + p * V);",
        *("    " + x for x in decompose("i", sizes, "d", position)),
    ]
    where = [
        "#pragma unroll",
        "  for (int u = 0; u < UNROLL; ++u) {",
        "    const index_t p = first + u * step;",
        "    if (p >= packs) continue;",
    ]
    lines += [*where, *index]
    for k, port in enumerate(program.inputs):
        step, place = strides[k][-1], offset_of(strides[k], "d")
        if step == 1:
            aligned = str(is_aligned(port, strides[k][:-1], width)).lower()
            lines.append(f"    x{k}[u] = load_pack<V, {aligned}>(in{k} + {place});")
        elif step == 0:
            lines.append(f"    x{k}[u].item[0] = in{k}[{place}];")
        else:
            lines.append(f"    for (int v = 0; v < V; ++v) x{k}[u].item[v] = in{k}[{place} + v * {step}ll];")
    lines += ["  }", *where, *index]
    for k, port in enumerate(program.outputs):
        lines.append(f"    pack<{CPP_NAMES[port.tensor.dtype]}, V> y{k};")
    lines += ["#pragma unroll", "    for (int v = 0; v < V; ++v) {"]
    names: dict[int, str] = {}
    for n in w.needed(port.node for port in program.outputs):
        node = w.nodes[n]
        names[n] = f"v{n}"
        if node.function == "input":
            k = w.input_of[n]
            value = f"widen(x{k}[u].item[{'v' if strides[k][-1] else '0'}])"
            lines.append(f"      const {c_type(node.dtype)} v{n} = {value};")
        else:
            lines.append(f"      const {c_type(node.dtype)} v{n} = {expression(node, names, w.nodes)};")
    for k, port in enumerate(program.outputs):
        lines.append(f"      y{k}.item[v] = narrow<{CPP_NAMES[port.tensor.dtype]}>({names[port.node]});")
    lines.append("    }")
    for j, port in enumerate(program.outputs):
        row = strides[len(program.inputs) + j]
        place = offset_of(row, "d")
        if row[-1] == 1:
            aligned = str(is_aligned(port, row[:-1], width)).lower()
            lines.append(f"    store_pack<V, {aligned}>(out{j} + {place}, y{j});")
        else:
            lines.append(f"    for (int v = 0; v < V; ++v) out{j}[{place} + v * {row[-1]}ll] = y{j}.item[v];")
    lines.append("  }")
    return lines
