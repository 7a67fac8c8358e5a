"""Calls of the output code that are no generated kernels: what they are and the bytes of their operands."""

from __future__ import annotations

from collections.abc import Sequence

from fusionaudit.tensors import Tensor, indexed_elements, total_bytes

_MATMUL = {
    "mm", "addmm", "bmm", "baddbmm", "_scaled_mm", "_int_mm", "_scaled_grouped_mm", "_grouped_mm", "linear", "matmul",
    "mv", "addmv", "dot", "bias_addmm", "_mm_plus_mm", "mm_plus_mm", "_sparse_semi_structured_mm", "_addmm_activation",
    "_weight_int4pack_mm", "_weight_int8pack_mm", "vdot", "addbmm", "mm_dtype_out", "bmm_dtype_out",
}  # fmt: skip
_VIEWS = {
    "view", "view_as_real", "view_as_complex", "unsqueeze", "squeeze", "permute", "transpose", "t", "expand", "select",
    "slice", "as_strided", "alias", "detach", "diagonal", "unbind", "split", "split_with_sizes", "unfold",
    "_reshape_alias", "movedim", "swapaxes", "real", "imag", "lift_fresh", "_conj", "_neg_view", "reinterpret_tensor",
}  # fmt: skip
_SORTS = {"topk", "sort", "argsort", "kthvalue", "msort", "median", "mode", "unique", "unique_consecutive", "_unique2"}
_INDEX = {
    "index", "index_put", "index_put_", "_index_put_impl_", "gather", "scatter", "scatter_", "scatter_add",
    "scatter_add_", "scatter_reduce", "scatter_reduce_", "embedding", "embedding_dense_backward", "index_add",
    "index_add_", "index_select", "nonzero", "masked_select", "masked_scatter", "searchsorted", "bucketize", "put",
    "take", "nonzero_static",
}  # fmt: skip
_RANDOM = {"rand", "randn", "randint", "normal", "bernoulli", "uniform", "multinomial", "randperm", "native_dropout"}
_SCANS = {"cumsum", "cumprod", "logcumsumexp", "cummax", "cummin", "_associative_scan"}
_FILLS = {"zero_", "fill_", "full", "zeros", "ones", "zeros_like", "full_like"}
_COPIES = {"copy_", "copy", "clone", "_to_copy", "contiguous", "device_put"}
_SCATTERS = {
    "index_put_", "_index_put_impl_", "scatter_", "scatter_add_", "scatter_reduce_", "index_add_", "index_copy_",
    "index_fill_", "index_reduce_", "masked_scatter_",
}  # fmt: skip
_ACCUMULATING = {"scatter_add_", "scatter_reduce_", "index_add_", "index_reduce_"}
_SAMPLED_TABLES = {"embedding", "index", "gather", "index_select", "take"}
"""Ops whose first operand is a table of which only the rows that the indices name are read."""


def base_name(target: str) -> str:
    """``topk`` for ``torch.ops.aten.topk.default``, ``mm`` for ``extern_kernels.mm``."""
    parts = target.removeprefix("torch.ops.").split(".")
    if parts[0] in ("aten", "prims") or target.startswith("torch.ops."):
        return parts[1] if len(parts) > 1 else parts[0]
    return parts[-1]


def is_view(target: str) -> bool:
    """The call only makes another view of its operand: no launch."""
    return base_name(target) in _VIEWS and not _is_custom(target)


def _is_custom(target: str) -> bool:
    parts = target.removeprefix("torch.ops.").split(".")
    builtin = {
        "aten",
        "prims",
        "extern_kernels",
        "inductor_ops",
        "inductor",
        "_c10d_functional",
        "higher_order",
        "_quantized",
    }
    return len(parts) > 1 and parts[0] not in builtin


def call_kind(target: str) -> str:
    """``extern`` for torch's ops, ``custom`` for others', ``copy``, ``fill``, or ``cpu`` where nothing launches."""
    name = base_name(target)
    if _is_custom(target):
        return "custom"
    if is_view(target):
        return "cpu"
    if name in _FILLS:
        return "fill"
    return "copy" if name in _COPIES else "extern"


def category(target: str) -> str:
    """A Category word for an extern call; ``opaque`` where nothing is known of it."""
    name = base_name(target)
    if "c10d" in target:
        return "collective"
    if _is_custom(target):
        return "opaque"
    for names, word in (
        (_MATMUL, "matmul"), (_SORTS, "sort"), (_INDEX, "index"), (_RANDOM, "random"), (_SCANS, "scan"),
        (_COPIES, "copy"), (_FILLS, "memset"),
    ):  # fmt: skip
        if name in names:
            return word
    if "convolution" in name or "cudnn_conv" in name:
        return "convolution"
    if "attention" in name or "flash" in name:
        return "attention"
    if "mm" in name.split("_"):
        return "matmul"
    if "norm" in name:
        return "norm"
    if "softmax" in name:
        return "softmax"
    if name in ("sum", "mean", "amax", "amin", "max", "min", "any", "all", "prod", "argmax", "argmin", "var", "std"):
        return "reduction"
    if name in ("mul", "add", "sub", "div", "neg", "exp", "log", "pow", "where", "conj_physical", "abs", "angle"):
        return "pointwise"
    return "opaque"


def aten_name(target: str) -> str:
    """``aten.mm`` for ``extern_kernels.mm``; custom ops keep their namespace."""
    if target.startswith("extern_kernels."):
        return f"aten.{base_name(target)}"
    parts = target.removeprefix("torch.ops.").split(".")
    if len(parts) > 1:
        return ".".join(parts[:2])
    return f"aten.{parts[0]}"


def result_dtype(target: str, position: int, first: str | None) -> str | None:
    """The dtype of a call's result number ``position`` where the op fixes it; ``None`` elsewhere."""
    name = base_name(target)
    if name in ("topk", "sort", "kthvalue", "mode", "median", "max", "min", "cummax", "cummin") and position == 1:
        return "int64"
    if name in ("nonzero", "argsort", "argmax", "argmin", "searchsorted", "bucketize", "nonzero_static", "randperm"):
        return "int64"
    if "attention" in name and "backward" not in name and position >= 1:
        return "float32" if position == 1 else "int64"
    return first if "attention" in name else None


def extern_bytes(
    target: str,
    reads: Sequence[Tensor],
    writes: Sequence[Tensor],
    mutated: Sequence[Tensor] = (),
    arguments: Sequence[object] = (),
) -> tuple[int | None, int | None]:
    """(read, write) bytes of an extern call: each operand and each output once, as stored.

    A table that is only sampled (embedding, index, gather) counts at most as many elements as the output has; of what a
    scatter writes into only the elements that its indices name, by the call's ``arguments`` in order. ``None``
    for custom ops (they may read a part, or more than once), for sorts (as in the eager model: their passes over the
    data depend on the algorithm that is chosen) and where an operand is not known. Workspaces of split-K are not in it.
    """
    if call_kind(target) == "custom" or base_name(target) in _SORTS:
        return None, None
    if is_view(target):
        return 0, 0
    name = base_name(target)
    if name in _SCATTERS and mutated and arguments:
        return _scatter_bytes(name, mutated[0], arguments)
    outputs = [*writes, *mutated]
    write = total_bytes(outputs) if outputs and all(t.itemsize for t in outputs) else (0 if not outputs else None)
    if name in _SAMPLED_TABLES and reads and writes:
        table, rest = reads[0], reads[1:]
        sampled = table.nbytes if table.nbytes is None else min(table.nbytes, sum(t.nbytes or 0 for t in writes))
        other = total_bytes(rest)
        return (None if sampled is None or other is None else sampled + other), write
    return total_bytes(reads), write


def _scatter_bytes(name: str, target: Tensor, arguments: Sequence[object]) -> tuple[int | None, int | None]:
    """Indices and source in full, the elements that are named written, and read where the op adds to them.

    As in the eager model, an ``index_put`` that accumulates and a mask alone do not tell.
    """
    given = [a for part in arguments[1:] for a in (part if isinstance(part, list) else [part])]
    others = [a for a in given if isinstance(a, Tensor) and a.device != "cpu"]
    indices = [t for t in others if t.dtype.startswith("int")]
    elements: int | None = None
    if "index_put" in name:
        listed = arguments[1] if len(arguments) > 1 else None
        if isinstance(listed, list) and not any(a is True for a in given):
            elements = indexed_elements(target, [a if isinstance(a, Tensor) else None for a in listed])
    elif name.startswith("scatter") and indices:
        elements = indices[0].numel
    elif name.startswith("index") and indices and isinstance(arguments[1], int) and target.shape:
        elements = indices[0].numel * target.numel // max(1, target.shape[arguments[1]])
    read = total_bytes(others)
    if elements is None or read is None or target.itemsize is None or target.nbytes is None:
        return None, None
    touched = min(elements * target.itemsize, target.nbytes)
    return read + (touched if name in _ACCUMULATING else 0), touched
