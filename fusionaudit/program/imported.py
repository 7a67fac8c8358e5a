"""Ops and dataflow from ``emit_nvtx`` ranges or a profiler trace made by somebody else: shapes, no recorder.

NVTX range texts have no dtypes and no strides: the dtype comes from the kernel's template arguments and every tensor
counts as contiguous. Output shapes come from whoever reads the output, else from what the op is. What cannot be told
stays unknown (bytes ``None``).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from fusionaudit.tensors import Tensor
from fusionaudit.trace.schema import Activity, Op, RangeOp

_DTYPES = (
    ("c10::BFloat16", "bfloat16"), ("c10::Half", "float16"), ("__nv_bfloat16", "bfloat16"), ("__half", "float16"),
    ("c10::complex<float>", "complex64"), ("c10::complex<double>", "complex128"), ("double", "float64"),
    ("float", "float32"), ("long", "int64"), ("bool", "bool"), ("unsigned char", "uint8"), ("short", "int16"),
    ("int", "int32"),
)  # fmt: skip
_FUNCTOR = re.compile(r"(?:Functor\w*|Op|Ops|NormTwoOps|sum_functor|kernel_impl\w*)<([^<>]*(?:<[^<>]*>)?[^<>]*)>")
_TRACE_DTYPES = {
    "float": "float32", "double": "float64", "c10::BFloat16": "bfloat16", "c10::Half": "float16", "int": "int32",
    "long int": "int64", "long": "int64", "bool": "bool", "unsigned char": "uint8", "signed char": "int8",
    "c10::complex<float>": "complex64", "c10::Float8_e4m3fn": "float8_e4m3fn", "c10::Float8_e5m2": "float8_e5m2",
}  # fmt: skip

_FULL_REDUCTIONS = {"aten.sum", "aten.mean", "aten.max", "aten.min", "aten.prod", "aten.amax", "aten.amin", "aten.norm"}
_IN_PLACE = re.compile(r"^aten\.(?:_foreach_)?\w*[a-z0-9]_$")
_UNARY_OR_BINARY_SAME = re.compile(
    r"^aten\.(abs|neg|exp|log|sqrt|rsqrt|relu|gelu|silu|tanh|sigmoid|erf|sin|cos|pow|add|sub|mul|div|where|clamp\w*|"
    r"maximum|minimum|square|reciprocal|to|_to_copy|clone|contiguous|eq|ne|lt|le|gt|ge|logical_\w+|bitwise_\w+|"
    r"_softmax|_log_softmax|dropout|native_dropout|threshold_backward|gelu_backward|silu_backward|sign|round|floor|ceil)$"
)


def kernel_dtype(name: str) -> str | None:
    """The element type in a demangled ATen kernel name: the first argument of its functor; ``None`` if not there."""
    for match in _FUNCTOR.finditer(name):
        arguments = match.group(1)
        for text, dtype in _DTYPES:
            if re.match(rf"\s*{re.escape(text)}\b", arguments):
                return dtype
    if "bf16" in name:
        return "bfloat16"
    return None


def _broadcast(shapes: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
    out: list[int] = []
    for shape in shapes:
        out = [1] * (len(shape) - len(out)) + out
        for i in range(1, len(shape) + 1):
            out[-i] = max(out[-i], shape[-i]) if shape[-i] and out[-i] else 0
    return tuple(out)


def _output_shape(op: RangeOp, readers: dict[tuple[int, int], tuple[int, ...]]) -> tuple[int, ...] | None:
    read = readers.get((op.op_id, 0))
    if read is not None:
        return read
    shapes = [s for s in op.shapes if s]
    if _IN_PLACE.match(op.name):
        return op.shapes[0] if op.shapes else None
    if op.name in ("aten.mm", "aten.addmm") and len(shapes) >= 2:
        left, right = (op.shapes[0], op.shapes[1]) if op.name == "aten.mm" else (op.shapes[1], op.shapes[2])
        return (left[0], right[1]) if len(left) == len(right) == 2 else None
    if op.name == "aten.bmm" and len(shapes) >= 2:
        return (shapes[0][0], shapes[0][1], shapes[1][2]) if len(shapes[1]) == 3 else None
    if _UNARY_OR_BINARY_SAME.match(op.name) and shapes:
        return _broadcast(shapes)
    if op.name in _FULL_REDUCTIONS:
        return ()
    return None


def _inputs(op: RangeOp, dtype: str | None, aliases: dict[tuple[int, int], str]) -> tuple[Tensor, ...]:
    if op.inputs:
        return op.inputs
    found = []
    for i, shape in enumerate(op.shapes):
        source = op.input_ops[i] if i < len(op.input_ops) else (0, -1)
        # Without a shape it is a scalar or an option: torch reuses their addresses, so what "made" them is noise.
        known = source[1] >= 0 and bool(shape)
        if not shape:
            continue
        kind = op.dtypes[i] if i < len(op.dtypes) and op.dtypes[i] else dtype
        kind = _TRACE_DTYPES.get(kind or "", kind)
        storage = aliases.get(source, f"op{source[0]}:{source[1]}") if known else f"in{op.op_id}:{i}"
        found.append(Tensor.contiguous(shape, kind or "unknown", storage))
    return tuple(found)


def imported_ops(activities: Sequence[Activity], ranges: Sequence[RangeOp] = ()) -> dict[int, Op]:
    """Ops by id for the activities of one step; ``ranges`` are all op ranges, also of views that launch nothing."""
    every = {r.op_id: r for r in ranges}
    dtypes: dict[int, str] = {}
    launched: set[int] = set()
    for activity in activities:
        if activity.op is not None:
            every.setdefault(activity.op.op_id, activity.op)
            launched.add(activity.op.op_id)
            dtype = kernel_dtype(activity.name)
            if dtype is not None:
                dtypes.setdefault(activity.op.op_id, dtype)
    readers: dict[tuple[int, int], tuple[int, ...]] = {}
    for op in every.values():
        for shape, source in zip(op.shapes, op.input_ops, strict=False):
            if source[1] >= 0:
                readers.setdefault(source, shape)
    aliases: dict[tuple[int, int], str] = {}
    for op_id in sorted(every):
        op = every[op_id]
        if (_IN_PLACE.match(op.name) or op.name in VIEWS) and op.input_ops and op.input_ops[0][1] >= 0:
            source = op.input_ops[0]
            aliases[(op_id, 0)] = aliases.get(source, f"op{source[0]}:{source[1]}")
    # What a composite op gives back is what the last op that launched below it made (_to_copy > copy_, matmul > mm).
    for op_id in sorted(i for i in launched if i in every):
        own = aliases.get((op_id, 0), f"op{op_id}:0")
        for parent in every[op_id].parents:
            aliases[(parent, 0)] = own
    out: dict[int, Op] = {}
    for op_id in {a.op.op_id for a in activities if a.op is not None}:
        op, dtype = every[op_id], dtypes.get(op_id)
        result = _output_shape(op, readers)
        storage = aliases.get((op_id, 0), f"op{op_id}:0")
        outputs = () if result is None else (Tensor.contiguous(result, dtype or "unknown", storage),)
        inputs = _inputs(op, dtype, aliases)
        mutated = (0,) if _IN_PLACE.match(op.name) and inputs else ()
        out[op_id] = Op(id=op_id, name=op.name, inputs=inputs, outputs=outputs, mutated=mutated)
    return out


VIEWS = frozenset(
    f"aten.{name}"
    for name in (
        "view", "as_strided", "t", "transpose", "permute", "expand", "select", "slice", "squeeze", "unsqueeze",
        "unbind", "split", "chunk", "narrow", "detach", "alias", "_unsafe_view", "_reshape_alias", "reshape", "unfold",
        "view_as", "expand_as", "diagonal", "flatten",
    )
)  # fmt: skip
"""Ops that give another view of their first input and launch nothing (``reshape`` and ``flatten`` may copy: then a
copy runs below them and carries the launch)."""
