"""Chains with reductions over the same dimensions: one row per block, or few long rows split over many blocks.

A row that fits is loaded once into registers; a longer one is read again for each reduction it waits for (from L2 where
it fits there). Few long rows are split: partial results go through memory and the last block of a row adds them up in
a fixed order, so results have the same bits on every run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fusionaudit.verify.chain import ChainProgram, Node, NodeRef, Port, UnsupportedChainError, c_type
from fusionaudit.verify.chain_source import (
    CPP_NAMES,
    IDENTITY,
    OPERATOR,
    GeneratedKernel,
    Writer,
    collapse,
    decompose,
    expression,
    is_aligned,
    offset_of,
    position_type,
    width_of,
)

REGISTER_ELEMENTS = 32
"""Row elements a thread keeps at most, over all arrays that live at once: half of the 64 registers at which an SM still
holds 1024 threads."""
SPLIT_ELEMENTS = 32768
"""Fewer elements than this a row are not worth a second stage: one block reads them in a few microseconds."""


@dataclass(kw_only=True)
class Shape:
    """Rows and columns of the program with each port's strides over both, dimensions collapsed."""

    rows: int
    cols: int
    row_sizes: list[int]
    row_strides: list[list[int]]
    col_sizes: list[int]
    col_strides: list[list[int]]
    width: int


def _shape(program: ChainProgram, ports: Sequence[Port]) -> Shape:
    kept = len(program.space) - program.reduced
    row_sizes, row_strides = collapse(program.space[:kept], [p.strides[:kept] for p in ports])
    col_sizes, col_strides = collapse(program.space[kept:], [p.strides[kept:] for p in ports])
    row_sizes, row_strides = (row_sizes, row_strides) if row_sizes else ([1], [[0] for _ in ports])
    col_sizes, col_strides = (col_sizes, col_strides) if col_sizes else ([1], [[0] for _ in ports])
    width = width_of(ports, [s[-1] for s in col_strides], col_sizes[-1])
    return Shape(
        rows=math.prod(row_sizes), cols=math.prod(col_sizes), row_sizes=row_sizes, row_strides=row_strides,
        col_sizes=col_sizes, col_strides=col_strides, width=width,
    )  # fmt: skip


class RowWriter(Writer):
    """Writes the loops over a row."""

    def __init__(self, program: ChainProgram, *, resident: bool) -> None:
        super().__init__(program)
        self.ports = [*program.inputs, *program.outputs]
        self.shape = _shape(program, self.ports)
        self.resident = resident
        self.scalars: dict[int, str] = {}
        self.arrays: dict[int, str] = {}
        self.last = max((self.nodes[o.node].level for o in program.outputs), default=0)
        self.full_outputs = [k for k, o in enumerate(program.outputs) if not self.nodes[o.node].row]
        self.row_outputs = [k for k, o in enumerate(program.outputs) if self.nodes[o.node].row]
        wanted = self._closure()
        self.reductions = [n for n in self.nodes if n.id in wanted and n.function.startswith("reduce_")]
        self.wanted = wanted

    def _closure(self) -> set[int]:
        out: set[int] = set()
        stack = [o.node for o in self.p.outputs]
        while stack:
            node = stack.pop()
            if node not in out:
                out.add(node)
                stack += [a.id for a in self.nodes[node].args if isinstance(a, NodeRef)]
        return out

    def phase_targets(self, phase: int) -> tuple[list[Node], list[int]]:
        """Reductions that loop ``phase`` feeds, and full outputs that it stores."""
        feeds = [r for r in self.reductions if r.level == phase + 1]
        last_full = max((self.nodes[self.p.outputs[k].node].level for k in self.full_outputs), default=0)
        late = last_full if self.in_place or self.resident else None
        stores = [
            k
            for k in self.full_outputs
            if (late if late is not None else self.nodes[self.p.outputs[k].node].level) == phase
        ]
        return feeds, stores

    def row_place(self, k: int) -> str:
        """Offset of the row in port ``k``."""
        return offset_of(self.shape.row_strides[k], "r")

    def row_header(self, row: str) -> list[str]:
        """Coordinates of a row, offsets of all ports, and values that are the same over the whole row."""
        s = self.shape
        out = decompose(row, s.row_sizes, "r", position_type(s.rows))
        for k in range(len(self.ports)):
            out.append(f"const index_t base{k} = {self.row_place(k)};")
        for node in self.nodes:
            if node.id in self.wanted and node.function == "input" and node.row:
                k = self.input_of[node.id]
                kind = c_type(node.dtype).replace("long long", "index_t")
                out.append(f"const {kind} s{node.id} = live ? {kind}(widen(in{k}[base{k}])) : {kind}(0);")
                self.scalars[node.id] = f"s{node.id}"
        return [*out, *self.row_values(0)]

    def row_values(self, level: int) -> list[str]:
        """Values of a row that can be computed once the reductions of that level are there."""
        out = []
        for node in self.nodes:
            ready = node.id in self.wanted and node.row and node.level == level and node.id not in self.scalars
            if ready and not node.function.startswith("reduce_") and node.function != "input":
                out.append(f"const {c_type(node.dtype)} s{node.id} = {expression(node, self.scalars, self.nodes)};")
                self.scalars[node.id] = f"s{node.id}"
        return out

    def load(self, node: int, target: str, column: str) -> str:
        """A line that loads one pack of an input at a column."""
        k = self.input_of[node]
        strides = self.shape.col_strides[k]
        place = f"base{k} + " + (
            f"index_t({column}) * {strides[0]}ll" if len(strides) == 1 else offset_of(strides, "c")
        )
        if strides[-1] == 1:
            return f"{target} = load_pack<V, {self.aligned(k)}>(in{k} + {place});"
        return f"for (int v = 0; v < V; ++v) {target}.item[v] = in{k}[{place} + v * {strides[-1]}ll];"

    def aligned(self, k: int) -> str:
        """``true`` where port k's packs are aligned."""
        outer = [*self.shape.row_strides[k], *self.shape.col_strides[k][:-1]]
        return str(is_aligned(self.ports[k], outer, self.shape.width)).lower()

    def loop(self, phase: int, *, start: str, stop: str, step: str, finish_names: str = "a") -> list[str]:
        """The loop of one phase. Columns go from ``start`` to ``stop`` in steps of ``step`` (looped forms)."""
        feeds, stores = self.phase_targets(phase)
        targets = [a.id for r in feeds for a in r.args if isinstance(a, NodeRef)]
        targets += [self.p.outputs[k].node for k in stores]
        if not targets:
            return []
        known = {*self.scalars, *self.arrays}
        todo = self.needed(targets, known)
        out = []
        for r in feeds:
            kind = c_type(r.dtype)
            out.append(f"{kind} {finish_names}{r.id} = {IDENTITY[r.function.removeprefix('reduce_'), kind]};")
        inputs = [n for n in todo if self.nodes[n].function == "input"]
        columns = decompose("column", self.shape.col_sizes, "c", position_type(self.shape.cols))
        if len(self.shape.col_sizes) == 1:
            columns = []
        if self.resident:
            for n in todo:
                out.append(f"{c_type(self.nodes[n].dtype)} v{n}[ITEMS * V];")
            for n in inputs:
                out += [f"pack<{CPP_NAMES[self.nodes[n].dtype]}, V> x{n}[ITEMS];"]
            if inputs:
                out += ["#pragma unroll", "for (int i = 0; i < ITEMS; ++i) {",
                        "  const index_t column = (index_t(i) * THREADS + threadIdx.x) * V;",
                        "  if (column >= limit) continue;", *columns]  # fmt: skip
                out += ["  " + self.load(n, f"x{n}[i]", "column") for n in inputs] + ["}"]
            out += ["#pragma unroll", "for (int i = 0; i < ITEMS; ++i) {",
                    "  const index_t column = (index_t(i) * THREADS + threadIdx.x) * V;",
                    "  if (column >= limit) continue;", *columns]  # fmt: skip
        else:
            out += [f"for (index_t column = {start}; column < {stop}; column += {step}) {{", *columns]
            for n in inputs:
                out += [f"  pack<{CPP_NAMES[self.nodes[n].dtype]}, V> x{n};", "  " + self.load(n, f"x{n}", "column")]
        for k in stores:
            out.append(f"  pack<{CPP_NAMES[self.p.outputs[k].tensor.dtype]}, V> y{k};")
        out += ["#pragma unroll", "  for (int v = 0; v < V; ++v) {"]
        names = {**self.scalars, **self.arrays}
        for n in todo:
            node = self.nodes[n]
            local = f"v{n}[i * V + v]" if self.resident else f"v{n}"
            pick = f"x{n}[i]" if self.resident else f"x{n}"
            value = f"widen({pick}.item[v])" if node.function == "input" else expression(node, names, self.nodes)
            out.append(f"    {'' if self.resident else 'const ' + c_type(node.dtype) + ' '}{local} = {value};")
            names[n] = local
        for r in feeds:
            kind, name = c_type(r.dtype), r.function.removeprefix("reduce_")
            arg = names[r.args[0].id] if isinstance(r.args[0], NodeRef) else str(r.args[0])
            cast = f"({kind})({arg})" if " " in kind else f"{kind}({arg})"
            out.append(f"    {finish_names}{r.id} = {OPERATOR[name]}({finish_names}{r.id}, {cast});")
        for k in stores:
            port = self.p.outputs[k]
            out.append(f"    y{k}.item[v] = narrow<{CPP_NAMES[port.tensor.dtype]}>({names[port.node]});")
        out.append("  }")
        for k in stores:
            out.append("  " + self.store(k))
        out.append("}")
        if self.resident:
            self.arrays.update({n: f"v{n}[i * V + v]" for n in todo})
        return out

    def store(self, k: int) -> str:
        """A line that stores output k's pack."""
        port = len(self.p.inputs) + k
        strides = self.shape.col_strides[port]
        place = f"base{port} + " + (f"column * {strides[0]}ll" if len(strides) == 1 else offset_of(strides, "c"))
        if strides[-1] == 1:
            return f"store_pack<V, {self.aligned(port)}>(out{k} + {place}, y{k});"
        return f"for (int v = 0; v < V; ++v) out{k}[{place} + v * {strides[-1]}ll] = y{k}.item[v];"

    def store_rows(self) -> list[str]:
        """Lines that store the values of a whole row."""
        out = []
        for k in self.row_outputs:
            port = self.p.outputs[k]
            value = self.scalars[port.node]
            out.append(f"out{k}[base{len(self.p.inputs) + k}] = narrow<{CPP_NAMES[port.tensor.dtype]}>({value});")
        return out


def generate_rows(program: ChainProgram, *, sm_count: int, threads: int | None = None) -> GeneratedKernel:
    """The kernel for a program with reductions; the form follows from rows, columns and dependences."""
    probe = RowWriter(program, resident=False)
    s = probe.shape
    from fusionaudit.verify.chain_columns import generate_columns, is_outer  # builds on this module

    if is_outer(program, probe.ports):
        return generate_columns(program, sm_count=sm_count, threads=threads)
    deepest = max((r.level for r in probe.reductions), default=0)
    early = all(program.nodes[o.node].level == 0 for k, o in enumerate(program.outputs) if k in probe.full_outputs)
    if s.cols >= SPLIT_ELEMENTS and s.rows < sm_count:
        if deepest == 1 and early:
            return _split(program, sm_count=sm_count, threads=threads)
        if s.rows * 4 < sm_count:
            raise UnsupportedChainError(
                f"{s.rows} rows of {s.cols} elements: their reduction has to finish before its use"
            )
    return _rows(program, threads=threads)


def _rows(program: ChainProgram, *, threads: int | None) -> GeneratedKernel:
    probe = RowWriter(program, resident=False)
    s = probe.shape
    packs = -(-s.cols // s.width)
    full = [n for n in probe.nodes if n.id in probe.wanted and not n.row]
    arrays = max(sum(n.function == "input" for n in full), 1)
    items_wanted = max(REGISTER_ELEMENTS // s.width // min(arrays, 4), 1)
    block = 1
    while block < 1024 and block * items_wanted < packs:
        block *= 2
    block = threads or (max(block, 32) if block > 8 else block)
    items = -(-packs // block)
    resident = items * s.width * arrays <= 2 * REGISTER_ELEMENTS
    w = RowWriter(program, resident=resident)
    rows_per_block = 1 if threads or block > 32 else max(128 // block, 1)
    w.lines += [
        f"constexpr int V = {s.width}, ITEMS = {items}, THREADS = {block};",
        f'extern "C" __global__ void __launch_bounds__({block * rows_per_block}) chain({w.pointers()}) {{',
        "const index_t found = index_t(blockIdx.x) * blockDim.y + threadIdx.y;",
        f"const bool live = found < {s.rows}ll;",
        "const index_t row = live ? found : 0;  // no early return: the shuffles need whole warps",
        f"const index_t limit = live ? {s.cols}ll : 0;",
        *w.row_header("row"),
    ]
    for phase in range(w.last + 1):
        w.lines += w.loop(phase, start="index_t(threadIdx.x) * V", stop="limit", step="THREADS * V")
        for r in w.reductions:
            if r.level == phase + 1:
                name, kind = r.function.removeprefix("reduce_"), c_type(r.dtype)
                w.lines.append(
                    f"const {kind} s{r.id} = reduce_row<THREADS>(a{r.id}, {OPERATOR[name]}, {IDENTITY[name, kind]});"
                )
                w.scalars[r.id] = f"s{r.id}"
        w.lines += w.row_values(phase + 1)
    if w.row_outputs:
        w.lines += ["if (threadIdx.x == 0 && live) {", *w.store_rows(), "}"]
    w.lines.append("}")
    return GeneratedKernel(
        source=w.text(), form="rows in registers" if resident else "rows read again",
        grid=-(-s.rows // rows_per_block), block=(block, rows_per_block, 1),
        inputs=tuple(program.inputs), outputs=tuple(program.outputs),
    )  # fmt: skip


def _split(program: ChainProgram, *, sm_count: int, threads: int | None) -> GeneratedKernel:
    w = RowWriter(program, resident=False)
    s = w.shape
    block = threads or 512
    unroll = 4
    wanted = max(sm_count * 4 // s.rows, 1)
    chunks = max(min(wanted, -(-s.cols // (block * s.width * unroll))), 1)
    scratch = [(c_type(r.dtype), s.rows * chunks) for r in w.reductions]
    extra = [f"{kind}* partial{j}" for j, (kind, _) in enumerate(scratch)]
    w.lines += [
        f"constexpr int V = {s.width}, THREADS = {block};",
        f"constexpr index_t CHUNKS = {chunks}, COLS = {s.cols}ll;",
        f'extern "C" __global__ void __launch_bounds__({block}) chain({w.pointers([*extra, "int* ticket"])}) {{',
        "const index_t row = index_t(blockIdx.x) / CHUNKS, chunk = index_t(blockIdx.x) % CHUNKS;",
        "const bool live = true;",
        *w.row_header("row"),
        *unrolled(w, w.loop(0, start="(chunk * THREADS + threadIdx.x) * V", stop="COLS", step="CHUNKS * THREADS * V")),
    ]
    sums = []
    for r in w.reductions:
        name, kind = r.function.removeprefix("reduce_"), c_type(r.dtype)
        sums.append((r, OPERATOR[name], IDENTITY[name, kind], kind))
    for r, op, identity, _ in sums:
        w.lines.append(f"a{r.id} = reduce_row<THREADS>(a{r.id}, {op}, {identity});")
    w.lines += ["__shared__ bool last;", "if (threadIdx.x == 0) {"]
    w.lines += [f"  partial{j}[row * CHUNKS + chunk] = a{r.id};" for j, (r, *_) in enumerate(sums)]
    w.lines += ["  __threadfence();", "  last = atomicAdd(ticket + row, 1) == CHUNKS - 1;", "}", "__syncthreads();",
                "if (!last) return;", "__threadfence();"]  # fmt: skip
    for j, (r, op, identity, kind) in enumerate(sums):
        w.lines += [
            f"{kind} t{r.id} = {identity};",
            f"for (index_t c = threadIdx.x; c < CHUNKS; c += THREADS) t{r.id} = {op}(t{r.id}, {kind if ' ' not in kind else 'index_t'}(*(volatile {kind}*)(partial{j} + row * CHUNKS + c)));",  # noqa: E501
            f"const {kind} s{r.id} = reduce_row<THREADS>(t{r.id}, {op}, {identity});",
        ]
        w.scalars[r.id] = f"s{r.id}"
    w.lines += [*w.row_values(1), "if (threadIdx.x == 0) {", "  ticket[row] = 0;", *w.store_rows(), "}", "}"]
    return GeneratedKernel(
        source=w.text(), form="rows split over blocks, last block adds up", grid=s.rows * chunks, block=(block, 1, 1),
        inputs=tuple(program.inputs), outputs=tuple(program.outputs), scratch=tuple(scratch), tickets=s.rows,
    )  # fmt: skip


def unrolled(w: RowWriter, lines: list[str]) -> list[str]:
    """The loop with a hint to keep several loads in flight."""
    return [f"#pragma unroll 4\n{line}" if line.startswith("for (index_t column") else line for line in lines]
