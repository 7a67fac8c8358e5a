"""Generated kernels: what a definition in the output code says, and the bytes that one launch of it moves."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from fusionaudit.inductor.expressions import dotted, literal
from fusionaudit.inductor.index_space import Region, Value, merged, union
from fusionaudit.inductor.kernel_body import RawAccess, walk
from fusionaudit.inductor.model import Access

_NUMEL = re.compile(r"^([xyz]|r\d*_|r)numel$")

_DTYPES: dict[str, str] = {
    "fp16": "float16", "bf16": "bfloat16", "fp32": "float32", "fp64": "float64", "i1": "bool", "i8": "int8",
    "i16": "int16", "i32": "int32", "i64": "int64", "u1": "bool", "u8": "uint8", "u16": "uint16", "u32": "uint32",
    "u64": "uint64", "fp8e4nv": "float8_e4m3fn", "fp8e5": "float8_e5m2", "fp8e4b8": "float8_e4m3fnuz",
    "fp8e5b16": "float8_e5m2fnuz", "u8e8m0": "float8_e8m0fnu",
}  # fmt: skip
"""Triton signature types (torch/_inductor/runtime/triton_compat and utils) to dtype names."""

_CATEGORIES: dict[str, str] = {
    "pointwise": "pointwise", "reduction": "reduction", "persistent_reduction": "persistent_reduction",
    "cooperative_reduction": "reduction", "split_scan": "scan", "foreach": "foreach", "template": "template",
    "user_autotune": "user_triton", "fixed_config": "template", "nd_tiling": "pointwise",
}  # fmt: skip
"""Decorators of torch/_inductor/runtime/triton_heuristics.py to categories."""

MOVES = {
    "clone", "_to_copy", "convert_element_type", "copy", "copy_", "permute", "view", "reshape", "transpose", "t",
    "expand", "slice", "select", "unsqueeze", "squeeze", "cat", "stack", "constant_pad_nd", "_unsafe_view", "alias",
    "split", "unbind", "as_strided", "slice_scatter", "select_scatter", "flip", "contiguous", "repeat", "roll",
    "lift_fresh_copy",
}  # fmt: skip
"""aten ops that only move or cast elements."""


@dataclass(frozen=True, kw_only=True)
class KernelCode:
    """A kernel's definition: decorator, parameters and body, not yet tied to sizes."""

    name: str
    heuristic: str
    category: str
    params: tuple[str, ...]
    dtypes: dict[str, str | None]
    pointers: frozenset[str]
    mutated: tuple[str, ...]
    function: ast.FunctionDef
    kernel_name: str


@lru_cache(maxsize=4096)
def parse_kernel(name: str, source: str) -> KernelCode | None:
    """The definition in a kernel's Triton source; ``None`` where there is no jit function in it (or it is cut off)."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    functions = [n for n in tree.body if isinstance(n, ast.FunctionDef)]
    main, heuristic, options = None, "", {}
    for function in functions:
        for decorator in function.decorator_list:
            full = dotted(decorator.func) if isinstance(decorator, ast.Call) else ""
            if isinstance(decorator, ast.Call) and "heuristics" in full:
                main, heuristic = function, full.rsplit(".", 1)[-1]
                options = {k.arg: literal(k.value) for k in decorator.keywords if k.arg}
    if main is None:
        named = [f for f in functions if f.name == name]
        main = named[0] if named else (functions[-1] if functions else None)
    if main is None:
        return None
    meta, extra = options.get("triton_meta"), options.get("inductor_meta")
    signature = meta.get("signature", {}) if isinstance(meta, dict) else {}
    params = tuple(a.arg for a in (*main.args.posonlyargs, *main.args.args))
    if isinstance(signature, dict) and all(isinstance(k, int) for k in signature):
        signature = {params[k]: v for k, v in signature.items() if isinstance(k, int) and k < len(params)}
    types = {p: str(signature.get(p, "")) for p in params}
    pointers = frozenset(p for p in params if types[p].startswith("*")) or frozenset(
        p for p in params if re.search(r"ptr|^arg_|^[A-Z]$", p)
    )
    info = extra if isinstance(extra, dict) else {}
    category = _CATEGORIES.get(heuristic, "user_triton" if not heuristic else "pointwise")
    if heuristic == "foreach" or "combo_grid_meta" in info:
        category = "foreach"
    mutated = info.get("mutated_arg_names")
    return KernelCode(
        name=name,
        heuristic=heuristic,
        category=category,
        params=params,
        dtypes={p: _DTYPES.get(types[p].lstrip("*").split(":")[0]) for p in params},
        pointers=pointers,
        mutated=tuple(str(m) for m in mutated) if isinstance(mutated, list) else (),
        function=main,
        kernel_name=str(info.get("kernel_name") or name),
    )


@lru_cache(maxsize=8192)
def _walk(
    name: str, source: str, scalars: tuple[tuple[str, int], ...]
) -> tuple[tuple[RawAccess, ...] | None, dict[str, int]]:
    code = parse_kernel(name, source)
    if code is None:
        return None, {}
    accesses, extents = walk(code.function, set(code.pointers), dict(scalars))
    return None if accesses is None else tuple(accesses), extents


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """Elements that one launch touches through one pointer, ``None``: cannot be told; ``again`` are re-loads."""

    arg: str
    read: int | None
    write: int | None
    reads: bool
    writes: bool
    again: int = 0
    indirect: bool = False


def kernel_numels(name: str, source: str, scalars: Mapping[str, int]) -> dict[str, int | None]:
    """Numels by prefix in parameter order; ``None`` where neither the body nor ``scalars`` gives one."""
    code = parse_kernel(name, source)
    if code is None:
        return {}
    _, extents = _walk(name, source, tuple(sorted(scalars.items())))
    prefixes = [m.group(1) for p in code.params if (m := _NUMEL.match(p))]
    return {p: extents.get(p) for p in prefixes}


def _total(accesses: Sequence[RawAccess]) -> tuple[int | None, bool]:
    regions: list[Region] = []
    for access in accesses:
        if access.region is None:
            return None, True
        regions.append(access.region)
    return union(regions)


def traffic(name: str, source: str, scalars: Mapping[str, int]) -> tuple[Traffic, ...] | None:
    """What one launch touches through each pointer, before it is bounded by the size of the buffer.

    ``None`` where the body cannot be followed.
    """
    code = parse_kernel(name, source)
    accesses, _ = _walk(name, source, tuple(sorted(scalars.items())))
    if code is None or accesses is None:
        return None
    out = []
    whole = code.category in ("template", "user_triton")
    for arg in code.params:
        own = [a for a in accesses if a.arg == arg]
        if arg not in code.pointers or (not own and not whole):
            continue
        loads = [a for a in own if a.kind in ("load", "atomic", "unknown")]
        stores = [a for a in own if a.kind in ("store", "atomic", "unknown")]
        if whole:
            # Tiles are addressed by block numbers: the operands count whole.
            written = bool(stores) or arg in code.mutated or arg.startswith(("out_ptr", "in_out_ptr"))
            read = bool(loads) or not written
            out.append(Traffic(arg=arg, read=None, write=None, reads=read, writes=written))
            continue
        read_count, _ = _total(loads) if loads else (0, True)
        write_count, _ = _total(stores) if stores else (0, True)
        again = 0
        loops = {a.loop for a in loads if a.loop is not None}
        if len(loops) > 1 and read_count is not None:
            per_loop = [_total([a for a in loads if a.loop == loop])[0] or 0 for loop in sorted(loops)]
            again = max(0, sum(per_loop) - read_count)
        out.append(
            Traffic(
                arg=arg,
                read=read_count,
                write=write_count,
                reads=bool(loads),
                writes=bool(stores),
                again=again,
                indirect=any(a.indirect for a in own),
            )
        )
    return tuple(out)


def regions(
    name: str, source: str, scalars: Mapping[str, int]
) -> tuple[tuple[Region | None, ...], tuple[Region | None, ...]]:
    """The elements behind each pointer that a kernel reads, and writes, in parameter order.

    ``None``: its data tell where (gathers, scatters). A region that is not exact has a count (the most) only.
    """
    code = parse_kernel(name, source)
    raw, extents = _walk(name, source, tuple(sorted(scalars.items())))
    if code is None or raw is None:
        return (), ()
    iterations = math.prod(extents.values())
    own = [[a for a in raw if a.arg == arg] for arg in code.params if arg in code.pointers]
    loads = [[a for a in found if a.kind != "store"] for found in own]
    stores = [[a for a in found if a.kind != "load"] for found in own]
    return (
        tuple(_one_region(a, iterations) for a in loads if a),
        tuple(_one_region(a, iterations) for a in stores if a),
    )


def _one_region(accesses: Sequence[RawAccess], iterations: int) -> Region | None:
    if any(a.indirect for a in accesses):
        return None
    known = [a.region for a in accesses if a.region is not None and not a.region.indirect]
    if len(known) < len(accesses):
        return Region(offset=0, dims=(), count=iterations, exact=False)
    apart = merged(known)
    if len(apart) == 1 and apart[0].exact:
        return apart[0]
    return Region(offset=0, dims=(), count=union(known)[0], exact=False)


Shift = int | None
"""How far behind where it was an element ends up; ``None``: somewhere else, or cannot be told."""


def shifts(name: str, source: str) -> dict[tuple[int, int], frozenset[Shift]]:
    """{(n, m): how the n-th pointer that a kernel reads is moved into the m-th that it writes}, in parameter order."""
    code = parse_kernel(name, source)
    raw, _ = _walk(name, source, ())
    if code is None or raw is None:
        return {}
    own = {arg: [a for a in raw if a.arg == arg] for arg in code.params if arg in code.pointers}
    loads = [(a.index for a in found if a.kind != "store") for found in own.values()]
    read = [places for places in map(list, loads) if places]
    stores = [(a.index for a in found if a.kind != "load") for found in own.values()]
    written = [places for places in map(list, stores) if places]
    return {
        (n, m): frozenset(_shift(a, b) for a in sources for b in targets)
        for n, sources in enumerate(read)
        for m, targets in enumerate(written)
    }


def _shift(source: Value | None, target: Value | None) -> Shift:
    if source is None or target is None or source.opaque or target.opaque or set(source.terms) != set(target.terms):
        return None
    return target.const - source.const


def accesses(name: str, source: str) -> tuple[Access, ...]:
    """The accesses of a kernel as the model has them, with the counts that do not depend on the call's arguments."""
    code = parse_kernel(name, source)
    raw, _ = _walk(name, source, ())
    if code is None or raw is None:
        return ()
    out = []
    for arg in code.params:
        for store in (False, True):
            own = [a for a in raw if a.arg == arg and (a.kind != "load" if store else a.kind != "store")]
            if not own:
                continue
            indirect = any(a.indirect for a in own)
            out.append(
                Access(
                    arg=arg,
                    store=store,
                    atomic=any(a.kind == "atomic" for a in own),
                    elements=None if indirect else _total(own)[0],
                    indirect=indirect,
                    count=len(own),
                    passes=max(1, len({a.loop for a in own if a.loop is not None})),
                )
            )
    return tuple(out)
