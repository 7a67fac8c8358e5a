"""What one aten op is and how many bytes of global memory it must move: the byte model for eager kernels.

Bytes are those that the op cannot avoid: each distinct element of each input read once, each output element written
once, at its dtype's size. A broadcast input counts its stored elements, a slice the elements touched, a gather the
rows touched (no more than its table holds), an in-place op counts both ways. Where ATen runs several kernels for one
op (layer norm's backward, batch norm in training), operands still count once: it is the floor of the op, and what the
kernels move beyond it is not known. Partials of ATen's split reductions (a few KB) and the workspaces of matmuls,
convolutions and attention are not known either and not counted. Sort, top-k, non-zero and custom ops are ``None``:
their passes over the data depend on values or are not public; :func:`unknown_reason` says so in words.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from fusionaudit.program.model import Category
from fusionaudit.program.op_kinds import KINDS, WRITE_ONLY, OpKind
from fusionaudit.tensors import Tensor, indexed_elements, total_bytes
from fusionaudit.trace.schema import Op

Bytes = tuple[int | None, int | None]

_CATEGORIES: dict[OpKind, Category] = {
    "pointwise": "pointwise", "cast": "copy", "copy": "copy", "fill": "pointwise", "random": "random",
    "reduction": "reduction", "softmax": "softmax", "norm": "norm", "pool": "reduction", "scan": "scan",
    "sort": "sort", "gather": "index", "scatter": "index", "join": "copy", "matmul": "matmul",
    "convolution": "convolution", "attention": "attention", "foreach": "foreach", "collective": "collective",
    "scalar_read": "memcpy", "transfer": "memcpy", "opaque": "opaque",
}  # fmt: skip


def op_root(op: Op) -> str:
    """The name that the table knows: no namespace, no overload, no in-place underscore (``aten.add_.Tensor``: add)."""
    name = op.name.split(".")[1] if "." in op.name else op.name
    if name in KINDS:
        return name
    return name[:-1] if name.endswith("_") and not name.endswith("__") else name


def op_kind(op: Op) -> OpKind:
    """Kind of the op; ``opaque`` for everything that the table does not know."""
    namespace, _, rest = op.name.partition(".")
    if namespace in ("c10d", "_c10d_functional", "_c10d_functional_autograd"):
        return "view" if rest.startswith("wait_tensor") else "collective"
    if namespace not in ("aten", "prims"):
        return "opaque"
    root = op_root(op)
    if root.startswith(("_foreach_", "_fused_ada", "_fused_sgd", "_amp_foreach")):
        return "foreach"
    kind = KINDS.get(root, "opaque")
    overload = op.name.split(".")[2] if op.name.count(".") >= 2 else ""
    if root in ("max", "min") and (overload.startswith("other") or (not overload and len(op.inputs) == 2)):
        return "pointwise"
    if kind in ("copy", "cast") and _crosses_devices(op):
        return "transfer"
    if kind == "cast" and not _changes_dtype(op):
        return "copy"
    if kind in ("reduction",) and root.endswith("_loss") and _same_size(op):
        return "pointwise"
    return kind


def _changes_dtype(op: Op) -> bool:
    return not op.inputs or not op.outputs or op.inputs[0].dtype != op.outputs[0].dtype


def _same_size(op: Op) -> bool:
    """A loss with ``reduction='none'``."""
    return bool(op.inputs and op.outputs) and op.outputs[0].numel == op.inputs[0].numel > 1


def category(op: Op) -> Category | None:
    """Category of the op's kernel; ``None`` where it launches nothing (views, allocations, metadata, no elements)."""
    kind = op_kind(op)
    if kind == "view" or _is_view(op, kind):
        return None
    if op.outputs and all(
        t.numel == 0 for t in (*op.outputs, *(op.inputs[i] for i in op.mutated if i < len(op.inputs)))
    ):
        return None
    return _CATEGORIES[kind]


def _is_view(op: Op, kind: OpKind) -> bool:
    """``reshape``-like ops (and casts to the same dtype) that came out as a view of their input."""
    if op.mutated or kind not in ("copy", "cast", "view"):
        return False
    source = op.inputs[0].storage if op.inputs else None
    return source is not None and bool(op.outputs) and all(t.storage == source for t in op.outputs)


def _crosses_devices(op: Op) -> bool:
    return len({t.device.split(":")[0] for t in (*op.inputs, *op.outputs)}) > 1


def mutated_inputs(op: Op) -> tuple[Tensor, ...]:
    """The inputs that the op writes."""
    kept = _only_read(op)
    return tuple(op.inputs[i] for i in op.mutated if i < len(op.inputs) and i not in kept)


def _only_read(op: Op) -> set[int]:
    """Inputs that a fused optimizer's schema marks as written and its kernel only reads: gradients, which it stores
    where it unscales them (``grad_scale``), and Adagrad's counts of steps."""
    if not re.match(r"aten\._fused_(adamw?|adagrad|sgd)_(\.|$)", op.name):
        return set()
    lists = [] if op.keywords.get("grad_scale") else list(op.arguments[1:2])
    lists += op.arguments[3:4] if "adagrad" in op.name else []
    return {a["tensor"] for given in lists if isinstance(given, list) for a in given}


def _is_out_variant(op: Op) -> bool:
    overload = op.name.split(".")[2] if op.name.count(".") >= 2 else ""
    return overload == "out" or overload.endswith("_out") or overload == "grad_input"


def reads(op: Op) -> tuple[Tensor, ...]:
    """Device tensors that the op reads: a target of ``out=`` or of a plain overwrite (``copy_``) is not read."""
    skip = set(op.mutated) if _is_out_variant(op) or op_root(op) in WRITE_ONLY else set()
    found = [t for i, t in enumerate(op.inputs) if i not in skip]
    if any(t.device.split(":")[0] != "cpu" for t in (*op.inputs, *op.outputs)):
        found = [t for t in found if t.device.split(":")[0] != "cpu"]
    return tuple(found)


def writes(op: Op) -> tuple[Tensor, ...]:
    """Device tensors that the op writes: its outputs and what it mutates, each once."""
    out = list(mutated_inputs(op))
    seen = {t.region for t in out if t.storage is not None}
    for position, tensor in enumerate(op.outputs):
        if tensor.storage is None and position < len(op.mutated):
            continue
        if tensor.region not in seen:
            out.append(tensor)
    if any(t.device.split(":")[0] != "cpu" for t in (*op.inputs, *op.outputs)):
        out = [t for t in out if t.device.split(":")[0] != "cpu"]
    return tuple(out)


def _operands(op: Op) -> Bytes:
    return total_bytes(reads(op)), total_bytes(writes(op))


def _gather(op: Op) -> Bytes:
    """Indices in full; of the table no more than one element for each output element, no more than the table."""
    found = reads(op)
    if not found or not op.outputs:
        return None, None
    root = op_root(op)
    tables = [t for t in found if not t.dtype.startswith(("int", "uint", "bool"))] or [found[0]]
    table = tables[0]
    rest = total_bytes(t for t in found if t is not table)
    itemsize = table.itemsize
    if rest is None or itemsize is None or table.nbytes is None:
        return None, None
    if root.startswith("nll_loss"):
        touched = found[1].numel * itemsize if len(found) > 1 else None
    else:
        touched = op.outputs[0].numel * itemsize
    write = total_bytes(writes(op))
    return (None if touched is None else rest + min(touched, table.nbytes)), write


def _scatter(op: Op) -> Bytes:
    """Indices and source in full, the touched elements written (and read, where the op accumulates).

    A functional (not in-place) scatter copies its input first: read and written in full as well.
    """
    root = op_root(op)
    if root in ("slice_scatter", "select_scatter", "diagonal_scatter", "as_strided_scatter"):
        return _operands(op)
    if root in ("embedding_dense_backward", "nll_loss_backward", "nll_loss2d_backward"):
        return _operands(op) if root.startswith("embedding") else _loss_backward(op)
    found = reads(op)
    if not found:
        return None, None
    target, others = found[0], found[1:]
    itemsize, target_bytes = target.itemsize, target.nbytes
    if itemsize is None or target_bytes is None:
        return None, None
    floats = [t for t in others if t.dtype == target.dtype and not (t.dtype.startswith("int") and len(others) == 1)]
    indices = [t for t in others if t not in floats]
    if root.startswith(("index_put", "_index_put", "_unsafe_index_put")):
        accumulates = any(a is True for a in op.arguments)
        if accumulates:
            return None, None
        elements = indexed_elements(target, _indices(op))
    elif root in ("index_add", "index_copy", "index_fill", "index_reduce"):
        count = indices[0].numel if indices else 0
        elements = count * target.numel // max(1, max(target.shape[_dim(op)], 1)) if target.shape else count
    elif root == "masked_scatter":
        return None, None
    else:
        elements = indices[0].numel if indices else None
    if elements is None:
        return None, None
    touched = min(elements * itemsize, target_bytes)
    moved = total_bytes(others)
    if moved is None:
        return None, None
    accumulates = root in ("scatter_add", "scatter_reduce", "index_add", "index_reduce")
    read, write = moved + (touched if accumulates else 0), touched
    if not op.mutated:
        read, write = read + target_bytes, write + target_bytes
    return read, write


def _dim(op: Op) -> int:
    found = next((a for a in op.arguments if isinstance(a, int) and not isinstance(a, bool)), 0)
    rank = len(op.inputs[0].shape) if op.inputs else 0
    return found if -rank <= found < rank else 0


def _indices(op: Op) -> list[Tensor | None]:
    """Those of ``index_put``; ``None``: a whole dimension."""
    listed = next((a for a in op.arguments if isinstance(a, list)), None)
    if listed is None:
        return [t for t in op.inputs[1:] if t.dtype.startswith(("int", "uint", "bool"))]
    places = [a.get("tensor") if isinstance(a, dict) else None for a in listed]
    return [op.inputs[i] if isinstance(i, int) and i < len(op.inputs) else None for i in places]


def _loss_backward(op: Op) -> Bytes:
    """Target read, one element a row written over a gradient that is zeroed in full."""
    found = reads(op)
    written = total_bytes(writes(op))
    targets = [t for t in found if t.dtype == "int64"]
    if written is None or not targets or not op.outputs or op.outputs[0].itemsize is None:
        return None, None
    return total_bytes((*targets, found[0])), written + targets[0].numel * op.outputs[0].itemsize


def _join(op: Op) -> Bytes:
    read, written = _operands(op)
    if op_root(op) == "constant_pad_nd" and read is not None and written is not None:
        # ATen fills the whole output first, then copies the input into its middle.
        return read, written + read
    return read, written


def _copy(op: Op) -> Bytes:
    if op_root(op) == "constant_pad_nd":
        return _join(op)
    return _operands(op)


def _scalar_read(op: Op) -> Bytes:
    return total_bytes(reads(op)), 0


def _fill(op: Op) -> Bytes:
    if op_root(op) in ("fill", "zero") and op.mutated:
        return total_bytes(t for t in reads(op) if t.numel == 1), total_bytes(mutated_inputs(op))
    return (total_bytes(t for t in reads(op) if t.numel == 1) if op.mutated else 0), total_bytes(writes(op))


def _like(op: Op) -> Bytes:
    """Random ops: ``rand_like`` looks at its input's shape only; dropout and ``bernoulli(p)`` read theirs."""
    if op_root(op) in ("rand_like", "randn_like", "randint_like"):
        return 0, total_bytes(writes(op))
    return _operands(op)


def _unknown(op: Op) -> Bytes:
    return None, None


_MODELS: dict[OpKind, Callable[[Op], Bytes]] = {
    "pointwise": _operands, "cast": _copy, "copy": _copy, "fill": _fill, "random": _like, "reduction": _operands,
    "softmax": _operands, "norm": _operands, "pool": _operands, "scan": _operands, "sort": _unknown,
    "gather": _gather, "scatter": _scatter, "join": _join, "matmul": _operands, "convolution": _operands,
    "attention": _operands, "foreach": _operands, "collective": _unknown, "scalar_read": _scalar_read,
    "transfer": _operands, "opaque": _unknown,
}  # fmt: skip


def op_bytes(op: Op) -> Bytes:
    """(read, written) bytes that the op must move; (0, 0) for a view, ``None`` where it cannot be told."""
    if category(op) is None:
        return 0, 0
    return _MODELS[op_kind(op)](op)


def unknown_reason(op: Op) -> str | None:
    """Why :func:`op_bytes` cannot tell, in a few words; ``None`` where it can."""
    read, written = op_bytes(op)
    if read is not None and written is not None:
        return None
    kind = op_kind(op)
    if kind == "sort":
        return "passes over the data and workspace depend on the algorithm that is chosen"
    if kind == "collective":
        return "traffic depends on the topology"
    if kind == "opaque":
        return "an op that is not in the table of known ops"
    if kind == "scatter":
        return "accumulation sorts its indices first, or a mask decides what is touched"
    return "a tensor of unknown size or dtype"


def sum_known(values: Iterable[int | None]) -> int | None:
    """Sum of the known values; ``None`` if there is none or one is unknown."""
    total, seen = 0, False
    for value in values:
        if value is None:
            return None
        total, seen = total + value, True
    return total if seen else None
