"""How many launches one aten op makes on an NVIDIA GPU, and of which kind: the eager pass without a GPU.

A table by op name; everything else makes one kernel of its category, a view makes none. Against recorded runs of an
H200 with torch 2.11 the counts were equal in 16 of 25 scripts. They are wrong, by one or two, where ATen or cuBLAS
choose by heuristics that are not public: split-K matmuls (one more kernel), convolution layouts, sorts, and
accumulating index writes. Tiny fills
(``Memset``) of the semaphores of split reductions are not counted.

Bytes of an op (:mod:`fusionaudit.program.costs`) belong to its first launch; its others carry 0, since what
they move beyond the op's floor is not known.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil

from fusionaudit.program.costs import category, op_bytes, op_root, reads, writes
from fusionaudit.program.model import Category
from fusionaudit.tensors import Tensor
from fusionaudit.trace.schema import Op


@dataclass(frozen=True, kw_only=True)
class PredictedLaunch:
    """One kernel, copy or fill that an op would launch. Bytes by the byte model; ``None``: not known."""

    category: Category
    name: str
    reads: tuple[Tensor, ...] = ()
    writes: tuple[Tensor, ...] = ()
    read_bytes: int | None = None
    write_bytes: int | None = None


Kinds = Sequence[Category]

CHUNK = 65536
"""kChunkSize of ATen's MultiTensorApply.cuh: elements of a tensor that one block works on."""
MAX_BLOCKS = 320
"""depth_to_max_blocks there."""
MAX_TENSORS = {1: 110, 2: 64, 3: 48, 4: 36, 5: 30}
"""depth_to_max_tensors there, by the number of tensor lists of the kernel."""
CAT_BATCH = 128
"""CAT_ARRAY_BATCH_SIZE of ATen's Shape.cu: inputs that one launch of cat copies."""


def multi_tensor_launches(numels: Sequence[int], depth: int) -> int:
    """Launches of ATen's multi_tensor_apply over tensors of these sizes: it fills a launch up to its limits."""
    limit = MAX_TENSORS.get(min(depth, 5), 30)
    launches = tensors = blocks = 0
    for number, numel in enumerate(numels):
        chunks = ceil(numel / CHUNK)
        if not chunks:
            continue
        tensors += 1
        for chunk in range(chunks):
            blocks += 1
            last_chunk = chunk == chunks - 1
            full = (tensors == limit and last_chunk) or blocks == MAX_BLOCKS
            if full:
                launches += 1
                blocks = 0
                tensors = 0 if last_chunk else 1
        if number == len(numels) - 1 and blocks:
            launches += 1
            blocks = 0
    return launches + (1 if blocks else 0)


def _lists(op: Op) -> tuple[list[int], int]:
    """Sizes of the tensors of a foreach op's first list, and how many lists the kernel has (results included)."""
    counts: list[int] = []
    for argument in op.arguments:
        if isinstance(argument, list) and argument and all(isinstance(a, dict) and "tensor" in a for a in argument):
            counts.append(len(argument))
    if not counts:
        counts = [max(1, len(op.outputs) or len(op.mutated))]
    first = [t.numel for t in op.inputs[: counts[0]]]
    depth = sum(1 for c in counts if c == counts[0])
    return first, depth if op.mutated else depth + 1


def _foreach(op: Op) -> Kinds:
    numels, depth = _lists(op)
    root = op_root(op)
    launches = multi_tensor_launches(numels, depth)
    if root == "_foreach_norm":
        # One pass over the chunks (its results are not a list), one kernel that adds up each tensor's chunks.
        launches = multi_tensor_launches(numels, 1) + 1
    if root == "_foreach_copy" and any(t.device == "cpu" for t in op.inputs):
        return ["memcpy"] * len(numels)
    return ["foreach"] * max(launches, 1)


def _same_layout(a: Tensor, b: Tensor) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and _dense(a) and _dense(b) and _steps(a) == _steps(b)


def _steps(t: Tensor) -> tuple[int, ...]:
    return tuple(stride for size, stride in zip(t.shape, t.strides, strict=True) if size != 1)


def _dense(t: Tensor) -> bool:
    """No gaps and no repeats: a copy of it is one block of memory."""
    return (0 not in t.strides[: len(t.shape)] and t.stored_elements == t.numel and _span(t) == t.numel) or t.numel <= 1


def _span(t: Tensor) -> int:
    return 1 + sum((size - 1) * abs(stride) for size, stride in zip(t.shape, t.strides, strict=True))


def _copy(op: Op) -> Kinds:
    """cudaMemcpy where nothing has to be reordered or cast (memcpy_eligible in Copy.cu), else a kernel."""
    target = op.inputs[op.mutated[0]] if op.mutated else (op.outputs[0] if op.outputs else None)
    source = op.inputs[1] if op.mutated and len(op.inputs) > 1 else (op.inputs[0] if op.inputs else None)
    if target is None or source is None:
        return ["copy"]
    return ["memcpy"] if _same_layout(source, target) else ["copy"]


def _batched_cat(op: Op) -> Kinds:
    inputs = [t for t in op.inputs if t.numel]
    if any(t.dtype != op.outputs[0].dtype for t in inputs) or len(op.outputs[0].shape) > 4:
        return ["copy"] * max(len(inputs), 1)
    return ["copy"] * max(ceil(len(inputs) / CAT_BATCH), 1)


def _functional(kind: Category) -> Callable[[Op], Kinds]:
    """An op that copies its input and then works on the copy in place; in place it is the one kernel."""

    def kinds(op: Op) -> Kinds:
        return [kind] if op.mutated else ["memcpy", kind]

    return kinds


def _loss(op: Op) -> Kinds:
    """Pointwise, then the reduction unless ``reduction='none'``."""
    return ["pointwise", "reduction"] if op.outputs and op.outputs[0].numel == 1 < op.inputs[0].numel else ["pointwise"]


def _addmm(op: Op) -> Kinds:
    """A bias vector is cuBLASLt's epilogue; a full matrix is copied into the result first."""
    bias = op.inputs[0] if op.inputs else None
    if bias is None or len(bias.shape) <= 1 or op.mutated:
        return ["matmul"]
    return ["memcpy", "matmul"] if bias.is_contiguous and bias.shape == op.outputs[0].shape else ["copy", "matmul"]


def _convolution(op: Op) -> Kinds:
    """cuDNN's kernel; a bias is added by a kernel of its own."""
    return ["convolution", "pointwise"] if len(op.inputs) > 2 else ["convolution"]


def _convolution_backward(op: Op) -> Kinds:
    """Gradients of input and weight are a kernel each, that of the bias a reduction."""
    wanted = [t for t in op.outputs if t.numel]
    return ["convolution" if len(t.shape) > 1 else "reduction" for t in sorted(wanted, key=lambda t: -len(t.shape))]


def _layer_norm_backward(op: Op) -> Kinds:
    wanted = len([t for t in op.outputs if t.numel])
    return ["norm"] if wanted <= 1 else ["norm", "reduction"]


def _embedding_backward(op: Op) -> Kinds:
    """Up to 3072 indices one kernel over a zeroed table (embedding_dense_backward_cuda); more are sorted first."""
    indices = op.inputs[1].numel if len(op.inputs) > 1 else 0
    return ["pointwise", "index"] if indices <= 3072 else ["pointwise", "sort", "sort", "index"]


def _index_put(op: Op) -> Kinds:
    """Accumulating writes sort their indices first."""
    accumulates = any(a is True for a in op.arguments)
    kinds: list[Category] = ["sort", "sort", "index"] if accumulates else ["index"]
    return kinds if op.mutated else ["memcpy", *kinds]


def _scan(op: Op) -> Kinds:
    """One dimension: cub's scan with its initialisation; else one kernel along the rows."""
    return ["scan", "scan"] if op.inputs and len(op.inputs[0].shape) <= 1 else ["scan"]


def _where(op: Op) -> Kinds:
    return ["pointwise"]


_TABLE: dict[str, Callable[[Op], Kinds]] = {
    "clone": _copy, "copy": _copy, "contiguous": _copy, "_to_copy": _copy, "lift_fresh_copy": _copy,
    "cat": _batched_cat, "stack": _batched_cat,
    "constant_pad_nd": lambda op: ["pointwise", "copy"],
    "masked_fill": _functional("pointwise"), "index_fill": _functional("index"), "index_add": _functional("index"),
    "index_copy": _functional("index"), "scatter": _functional("index"), "scatter_add": _functional("index"),
    "scatter_reduce": _functional("index"), "slice_scatter": lambda op: ["memcpy", "copy"],
    "select_scatter": lambda op: ["memcpy", "copy"], "slice_backward": lambda op: ["pointwise", "copy"],
    "select_backward": lambda op: ["pointwise", "copy"], "index_put": _index_put, "_index_put_impl": _index_put,
    "mse_loss": _loss, "l1_loss": _loss, "smooth_l1_loss": _loss, "huber_loss": _loss, "binary_cross_entropy": _loss,
    "nll_loss_backward": lambda op: ["pointwise", "index"], "nll_loss2d_backward": lambda op: ["pointwise", "index"],
    "addmm": _addmm, "baddbmm": _addmm,
    "convolution": _convolution, "_convolution": _convolution, "convolution_backward": _convolution_backward,
    "native_layer_norm_backward": _layer_norm_backward, "_fused_rms_norm_backward": _layer_norm_backward,
    "native_group_norm": lambda op: ["norm", "norm", "norm"],
    "native_group_norm_backward": lambda op: ["norm"] * 4,
    "native_batch_norm": lambda op: ["norm", "norm"], "_native_batch_norm_legit": lambda op: ["norm", "norm"],
    "native_batch_norm_backward": lambda op: ["norm", "norm"],
    "logsumexp": lambda op: ["reduction", "pointwise", "pointwise", "reduction", "pointwise", "pointwise"],
    "embedding_dense_backward": _embedding_backward,
    "cumsum": _scan, "cumprod": _scan,
    "sort": lambda op: ["sort", "sort"], "topk": lambda op: ["sort", "sort"], "argsort": lambda op: ["sort", "sort"],
    "nonzero": lambda op: ["reduction", "memcpy", "index", "index"],
    "eye": lambda op: ["pointwise", "pointwise"],
    "randperm": lambda op: ["random", "sort", "sort"],
    "_scaled_dot_product_flash_attention_backward": lambda op: ["attention"] * 3,
    "_scaled_dot_product_cudnn_attention_backward": lambda op: ["attention"] * 3,
    "_scaled_dot_product_efficient_attention_backward": lambda op: ["attention"] * 2,
    "_scaled_dot_product_flash_attention_for_cpu_backward": lambda op: ["attention"] * 3,
}  # fmt: skip


def launch_kinds(op: Op) -> Kinds:
    """The categories of an op's launches in order; empty for views, allocations and what runs on the host."""
    kind = category(op)
    if kind is None:
        return []
    if kind == "memcpy":
        return ["memcpy"]
    root = op_root(op)
    if kind == "foreach":
        return _foreach(op)
    rule = _TABLE.get(root)
    return [kind] if rule is None else rule(op)


def predicted_launches(op: Op) -> tuple[PredictedLaunch, ...]:
    """The launches of an op. The first carries the op's tensors and bytes, the others nothing more."""
    kinds = launch_kinds(op)
    if not kinds:
        return ()
    read, written = op_bytes(op)
    first = PredictedLaunch(
        category=kinds[0], name=op.name, reads=reads(op), writes=writes(op), read_bytes=read, write_bytes=written
    )
    rest = [PredictedLaunch(category=k, name=op.name, read_bytes=0, write_bytes=0) for k in kinds[1:]]
    return (first, *rest)
