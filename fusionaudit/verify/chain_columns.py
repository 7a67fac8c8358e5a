"""Chains whose reductions run over an outer dimension: neighbouring threads take neighbouring kept elements.

A block is 32 packs of kept elements wide and ``slices`` deep; the slices of a column are added up in shared memory in a
fixed order. With one reduction level the length is also split over blocks, the last block of a tile adding up.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from fusionaudit.verify.chain import ChainProgram, NodeRef, Port, UnsupportedChainError, c_type
from fusionaudit.verify.chain_rows import RowWriter
from fusionaudit.verify.chain_source import (
    CPP_NAMES,
    IDENTITY,
    OPERATOR,
    GeneratedKernel,
    decompose,
    expression,
    is_aligned,
    offset_of,
    position_type,
    width_of,
)

TILE = 32
"""Packs of kept elements a block takes: a warp's width."""
SLICE_ELEMENTS = 16
"""Elements of the reduced length that are worth a thread of their own."""


class ColumnWriter(RowWriter):
    """Writes loops over the reduced length, ``V`` kept elements at a time."""

    def __init__(self, program: ChainProgram) -> None:
        super().__init__(program, resident=False)
        s = self.shape
        self.width = width_of(self.ports, [row[-1] for row in s.row_strides], s.row_sizes[-1])

    def place(self, k: int, over_columns: bool) -> str:
        """Offset of the current element of port ``k``."""
        inner = f" + {offset_of(self.shape.col_strides[k], 'c')}" if over_columns else ""
        return f"{offset_of(self.shape.row_strides[k], 'r')}{inner}"

    def move(self, k: int, target: str, pointer: str, over_columns: bool, store: bool) -> str:
        """A line that loads or stores ``V`` elements of port ``k``."""
        strides, place = self.shape.row_strides[k], self.place(k, over_columns)
        if strides[-1] == 1:
            outer = [*strides[:-1], *(self.shape.col_strides[k] if over_columns else ())]
            aligned = str(is_aligned(self.ports[k], outer, self.width)).lower()
            return (
                f"store_pack<V, {aligned}>({pointer} + {place}, {target});"
                if store
                else f"{target} = load_pack<V, {aligned}>({pointer} + {place});"
            )
        element = f"{pointer}[{place} + v * {strides[-1]}ll]"
        pair = f"{element} = {target}.item[v]" if store else f"{target}.item[v] = {element}"
        return f"for (int v = 0; v < V; ++v) {pair};"

    def compute(self, todo: Sequence[int], names: dict[int, str], over_columns: bool) -> list[str]:
        """Lines that load and compute the nodes for the current element, inside a loop over ``v``."""
        inputs = [n for n in todo if self.nodes[n].function == "input"]
        out = [f"pack<{CPP_NAMES[self.nodes[n].dtype]}, V> x{n};" for n in inputs]
        out += [self.move(self.input_of[n], f"x{n}", f"in{self.input_of[n]}", over_columns, False) for n in inputs]
        out += ["#pragma unroll", "for (int v = 0; v < V; ++v) {"]
        for n in todo:
            node = self.nodes[n]
            value = f"widen(x{n}.item[v])" if node.function == "input" else expression(node, names, self.nodes)
            out.append(f"  const {c_type(node.dtype)} v{n} = {value};")
            names[n] = f"v{n}"
        return out

    def row_names(self) -> dict[int, str]:
        """Names of the reductions that are finished; everything else is computed again."""
        return dict(self.scalars)


def generate_columns(program: ChainProgram, *, sm_count: int, threads: int | None = None) -> GeneratedKernel:
    """The kernel for reductions over outer dimensions. ``threads`` (tests): one thread a block."""
    w = ColumnWriter(program)
    s = w.shape
    tile = 1 if threads else TILE
    slices = 1 if threads else max(min(1024 // tile, 16, -(-s.cols // SLICE_ELEMENTS)), 1)
    tiles = -(-s.rows // (tile * w.width))
    deepest = max((r.level for r in w.reductions), default=0)
    early = all(program.nodes[program.outputs[k].node].level == 0 for k in w.full_outputs)
    chunks = 1
    if deepest == 1 and early:
        chunks = max(min(4 * sm_count // tiles, -(-s.cols // (slices * SLICE_ELEMENTS))), 1)
    elif tiles * 4 < sm_count and s.rows * s.cols > 1 << 20:
        raise UnsupportedChainError("too few columns: their reduction has to finish before its use")
    kinds = [c_type(r.dtype) for r in w.reductions]
    scratch = [(kind, chunks * tiles * tile * w.width) for kind in kinds] if chunks > 1 else []
    extra = [f"{kind}* partial{j}" for j, (kind, _) in enumerate(scratch)] + (["int* ticket"] if scratch else [])
    w.lines += [
        f"constexpr int V = {w.width}, TILE = {tile}, SLICES = {slices};",
        f"constexpr index_t ROWS = {s.rows}ll, COLS = {s.cols}ll, CHUNKS = {chunks}, TILES = {tiles};",
        "template <class C, class Op> __device__ inline void add_slices(C (&value)[V], Op op) {",
        "  __shared__ C kept[SLICES][TILE * V];",
        "  __syncthreads();",
        "  for (int v = 0; v < V; ++v) kept[threadIdx.y][threadIdx.x * V + v] = value[v];",
        "  __syncthreads();",
        "  for (int v = 0; v < V; ++v) {",
        "    value[v] = kept[0][threadIdx.x * V + v];",
        "    for (int s = 1; s < SLICES; ++s) value[v] = op(value[v], kept[s][threadIdx.x * V + v]);",
        "  }",
        "}",
        f'extern "C" __global__ void __launch_bounds__({tile * slices}) chain({w.pointers(extra)}) {{',
        "const index_t tile = index_t(blockIdx.x) % TILES, chunk = index_t(blockIdx.x) / TILES;",
        "const index_t place = (tile * TILE + threadIdx.x) * V;",
        "const bool live = place < ROWS;",
        *decompose("(live ? place : 0)", s.row_sizes, "r", position_type(s.rows)),
    ]
    for phase in range(w.last + 1):
        w.lines += _phase(w, phase)
        done = [r for r in w.reductions if r.level == phase + 1]
        for r in done:
            name = r.function.removeprefix("reduce_")
            w.lines.append(f"add_slices(a{r.id}, {OPERATOR[name]});")
            w.scalars[r.id] = f"a{r.id}[v]"
        if done and scratch:
            w.lines += _across_blocks(w)
    if w.row_outputs:
        w.lines += ["if (live && threadIdx.y == 0) {", *_row_outputs(w), "}"]
    w.lines.append("}")
    return GeneratedKernel(
        source=w.text(), form="outer reduction" + (", split over blocks" if scratch else ""), grid=tiles * chunks,
        block=(tile, slices, 1), inputs=tuple(program.inputs), outputs=tuple(program.outputs),
        scratch=tuple(scratch), tickets=tiles if scratch else 0,
    )  # fmt: skip


def _phase(w: ColumnWriter, phase: int) -> list[str]:
    feeds, stores = w.phase_targets(phase)
    targets = [a.id for r in feeds for a in r.args if isinstance(a, NodeRef)]
    targets += [w.p.outputs[k].node for k in stores]
    if not targets:
        return []
    names = w.row_names()
    out = []
    for r in feeds:
        kind = c_type(r.dtype)
        identity = IDENTITY[r.function.removeprefix("reduce_"), kind]
        out += [f"{kind} a{r.id}[V];", f"for (int v = 0; v < V; ++v) a{r.id}[v] = {identity};"]
    out += [
        "#pragma unroll 4",
        "for (index_t column = live ? chunk * SLICES + threadIdx.y : COLS; column < COLS; column += CHUNKS * SLICES) {",
        *decompose("column", w.shape.col_sizes, "c", position_type(w.shape.cols)),
        *[f"pack<{CPP_NAMES[w.p.outputs[k].tensor.dtype]}, V> y{k};" for k in stores],
        *w.compute(w.needed(targets, names), names, True),
    ]
    for r in feeds:
        kind = c_type(r.dtype)
        cast = f"({kind})" if " " in kind else kind
        arg = names[r.args[0].id] if isinstance(r.args[0], NodeRef) else str(r.args[0])
        out.append(f"  a{r.id}[v] = {OPERATOR[r.function.removeprefix('reduce_')]}(a{r.id}[v], {cast}({arg}));")
    for k in stores:
        port = w.p.outputs[k]
        out.append(f"  y{k}.item[v] = narrow<{CPP_NAMES[port.tensor.dtype]}>({names[port.node]});")
    out.append("}")
    out += [w.move(len(w.p.inputs) + k, f"y{k}", f"out{k}", True, True) for k in stores]
    return [*out, "}"]


def _across_blocks(w: ColumnWriter) -> list[str]:
    out = ["const index_t slot = (chunk * TILES + tile) * TILE * V + threadIdx.x * V;", "if (threadIdx.y == 0) {"]
    for j, r in enumerate(w.reductions):
        out.append(f"  for (int v = 0; v < V; ++v) partial{j}[slot + v] = a{r.id}[v];")
    out += [
        "  __threadfence();", "}", "__syncthreads();", "__shared__ bool last;",
        "if (threadIdx.x == 0 && threadIdx.y == 0) last = atomicAdd(ticket + tile, 1) == CHUNKS - 1;",
        "__syncthreads();", "if (!last) return;", "__threadfence();",
    ]  # fmt: skip
    for j, r in enumerate(w.reductions):
        name, kind = r.function.removeprefix("reduce_"), c_type(r.dtype)
        out += [
            f"for (int v = 0; v < V; ++v) a{r.id}[v] = {IDENTITY[name, kind]};",
            "for (index_t c = threadIdx.y; c < CHUNKS; c += SLICES)",
            f"  for (int v = 0; v < V; ++v) a{r.id}[v] = {OPERATOR[name]}(a{r.id}[v], "
            f"*(volatile {kind}*)(partial{j} + (c * TILES + tile) * TILE * V + threadIdx.x * V + v));",
            f"add_slices(a{r.id}, {OPERATOR[name]});",
        ]
    return [*out, "if (threadIdx.x == 0 && threadIdx.y == 0) ticket[tile] = 0;"]


def _row_outputs(w: ColumnWriter) -> list[str]:
    names = w.row_names()
    out = [f"pack<{CPP_NAMES[w.p.outputs[k].tensor.dtype]}, V> z{k};" for k in w.row_outputs]
    out += w.compute(w.needed([w.p.outputs[k].node for k in w.row_outputs], names), names, False)
    for k in w.row_outputs:
        port = w.p.outputs[k]
        out.append(f"  z{k}.item[v] = narrow<{CPP_NAMES[port.tensor.dtype]}>({names[port.node]});")
    out.append("}")
    return out + [w.move(len(w.p.inputs) + k, f"z{k}", f"out{k}", False, True) for k in w.row_outputs]


def is_outer(program: ChainProgram, ports: Sequence[Port]) -> bool:
    """True where neighbours in memory are kept elements: reading along the reduced dimensions would jump."""
    kept = len(program.space) - program.reduced
    large = [p for p in ports if math.prod(n for n, s in zip(program.space, p.strides, strict=True) if s) > 1]
    if not large or math.prod(program.space[:kept]) == 1 or math.prod(program.space[kept:]) == 1:
        return False
    biggest = max(large, key=lambda p: math.prod(n for n, s in zip(program.space, p.strides, strict=True) if s))
    inner = [s for n, s in zip(program.space[kept:], biggest.strides[kept:], strict=True) if n > 1]
    return bool(inner) and 1 not in inner
