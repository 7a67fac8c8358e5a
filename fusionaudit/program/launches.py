"""How many launches one aten op makes on an NVIDIA GPU, and of which kind: the eager pass without a GPU.

A table by op name; everything else makes one kernel of its category, a view makes none. Against recorded runs of an
H200 with torch 2.11 the counts were equal in 33 of 42 scripts (tests/data/deviceless names the others). They are wrong
where cuBLAS and cuDNN choose by heuristics that are not public: split-K matmuls (one more kernel), convolution
layouts, recurrent layers (counted as one); and a custom op counts as one. Tiny fills (``Memset``) of the semaphores of
split reductions are not counted.

Bytes of a convolution are known for each of its launches (:func:`launch_operands`). Those of another op
(:mod:`fusionaudit.program.costs`) belong to its first launch; its others carry 0, since what they move beyond the op's
floor is not known.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import ceil

from fusionaudit.program.costs import category, op_bytes, op_root, reads, writes
from fusionaudit.program.model import Category
from fusionaudit.tensors import Tensor, total_bytes
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
NORM_TENSORS = 400
"""MAX_TENSORS_PER_KERNEL of ATen's ForeachReduceOp.cu: tensors whose chunks one launch adds up."""
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
        # Partial sums are zeroed; one pass over the chunks (its results are no list); each tensor's chunks are added.
        passes = multi_tensor_launches(numels, 1) + ceil(len(numels) / NORM_TENSORS)
        norms: list[Category] = ["foreach"] * passes
        return ["pointwise", *norms]
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
    # A stack is a cat of its inputs as they are.
    if any(t.dtype != op.outputs[0].dtype or len(t.shape) > 4 for t in inputs):
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


Operands = tuple[tuple[Tensor, ...], tuple[Tensor, ...]]
"""What one launch reads and what it writes."""


def launch_operands(op: Op) -> tuple[Operands, ...]:
    """The operands of each launch of an op that works in several; empty where not known.

    cuDNN's convolution has no bias: ATen adds it over the result (seen on an H200, channels-last too), and sums the
    output's gradient for the bias's.
    """
    found, root = reads(op), op_root(op)
    if root in ("convolution", "_convolution") and len(found) > 2 and op.outputs:
        result = op.outputs[0]
        return (found[:2], (result,)), ((result, found[2]), (result,))
    if root == "convolution_backward" and len(found) > 2:
        gradient, given, weight = found[:3]
        wanted = sorted((t for t in op.outputs if t.numel), key=lambda t: -len(t.shape))
        return tuple(
            ((gradient,) if len(t.shape) <= 1 else (gradient, given if t.shape == weight.shape else weight), (t,))
            for t in wanted
        )
    return ()


def _row_norm(op: Op) -> Kinds:
    """One kernel over contiguous rows (expect_contiguous)."""
    return [*_made_contiguous(op, 1), "norm"]


def _row_norm_backward(op: Op) -> Kinds:
    """Gradients of the input, then those of weight and bias; gradient and input are made contiguous."""
    wanted = len([t for t in op.outputs if t.numel])
    return _made_contiguous(op, 2) + (["norm"] if wanted <= 1 else ["norm", "reduction"])


def _made_contiguous(op: Op, operands: int) -> list[Category]:
    return ["copy" for t in op.inputs[:operands] if not t.is_contiguous]


SINGLE_TILE = 2304
"""Keys of 8 bytes that cub sorts in one block (radix sort's single-tile policy: 256 threads, 9 items each)."""


def _sorted(keys: int, bits: int) -> list[Category]:
    """cub's radix sort: one block, or a histogram, its prefix sum and a pass for each 8 bits."""
    return ["sort"] if keys <= SINGLE_TILE else ["sort"] * (2 + ceil(bits / 8))


def _embedding_backward(op: Op) -> Kinds:
    """Up to 3072 indices one kernel over a zeroed table (embedding_dense_backward_cuda).

    More are numbered and sorted by all 64 bits; then come their runs, two prefix sums over these, and the sums by run
    (counted on an H200, torch 2.11).
    """
    indices = op.inputs[1].numel if len(op.inputs) > 1 else 0
    gradient: list[Category] = [] if op.inputs[0].is_contiguous else ["copy"]
    if indices <= 3072:
        return [*gradient, "pointwise", "index"]
    runs: list[Category] = ["pointwise", "scan", "index", "index", "scan", "scan", "index", "index", "index", "index"]
    return [*gradient, "pointwise", *_sorted(indices, 64), *runs]


def _index_put(op: Op) -> Kinds:
    """Accumulating writes check and wrap each index tensor, make them one, sort it, then add (index_put_with_sort)."""
    kinds: list[Category] = ["index"]
    if any(a is True for a in op.arguments):
        indices = [t for t in op.inputs[1:] if t.dtype in ("int64", "int32")]
        keys = max((t.numel for t in indices), default=0)
        bits = max(op.inputs[0].numel - 1, 1).bit_length()
        number = max(len(indices), 1)
        # Least and greatest index, each compared and asserted; a remainder and a stride; their sum; rows, numbers.
        # A gradient does not check the indices that forward has used (unsafe).
        unsafe = op_root(op).startswith("_index_put_impl") and list(op.arguments[4:5]) == [True]
        checks: list[Category] = [] if unsafe else ["reduction", "pointwise", "pointwise"]
        arithmetic: list[Category] = ["pointwise"]
        kinds = [*checks * 2 * number, *arithmetic * (3 * number + 1), *_sorted(keys, bits), *kinds]
    return kinds if op.mutated else ["memcpy", *kinds]


def _nonzero(op: Op) -> Kinds:
    """Counted (cub: many blocks, then one), read by the host, selected; more dimensions than one are unpacked."""
    mask = op.inputs[0]
    counted: list[Category] = ["reduction", "reduction", "memcpy", "scan", "index"]
    return counted if len(mask.shape) <= 1 else [*counted, "index"]


def _index(op: Op) -> Kinds:
    """A gather; a boolean mask is first made indices."""
    masks = [t for t in op.inputs[1:] if t.dtype in ("bool", "uint8")]
    return [k for t in masks for k in _nonzero(replace(op, inputs=(t,)))] + ["index"]


def _scan(op: Op) -> Kinds:
    """One dimension: cub's scan with its initialisation; else one kernel along the rows."""
    return ["scan", "scan"] if op.inputs and len(op.inputs[0].shape) <= 1 else ["scan"]


def _cell_backward(op: Op) -> Kinds:
    """Gradients of the gates and of the state; each bias gradient is a sum over rows."""
    biases: list[Category] = ["reduction"] * sum(len(t.shape) == 1 and t.numel > 0 for t in op.outputs)
    return ["pointwise", *biases]


def _pow(op: Op) -> Kinds:
    """To the power of one (a square's backward) is a copy, to the power of zero a fill."""
    exponent = op.arguments[1] if len(op.arguments) > 1 else None
    return ["memcpy"] if exponent == 1 and not isinstance(exponent, bool) and not op.mutated else ["pointwise"]


def _sum(op: Op) -> Kinds:
    """A kernel reduces into its input's dtype, or 16 bits into 32; anything else is cast first (make_reduction)."""
    if not op.inputs or not op.outputs:
        return ["reduction"]
    given, made = op.inputs[0].dtype, op.outputs[0].dtype
    direct = given == made or (given in ("float16", "bfloat16") and made == "float32")
    return ["reduction"] if direct else ["copy", "reduction"]


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
    "sum": _sum, "mean": _sum, "prod": _sum, "pow": _pow,
    "addmm": _addmm, "baddbmm": _addmm,
    "convolution": _convolution, "_convolution": _convolution, "convolution_backward": _convolution_backward,
    "native_layer_norm": _row_norm, "_fused_rms_norm": _row_norm,
    "native_layer_norm_backward": _row_norm_backward, "_fused_rms_norm_backward": _row_norm_backward,
    # The product of gradient and result is a kernel of its own (softmax_backward_cuda_out).
    "_softmax_backward_data": lambda op: ["pointwise", "softmax"],
    "native_group_norm": lambda op: ["norm", "norm", "norm"],
    "native_group_norm_backward": lambda op: ["norm"] * 4,
    "native_batch_norm": lambda op: ["norm", "norm"], "_native_batch_norm_legit": lambda op: ["norm", "norm"],
    "native_batch_norm_backward": lambda op: ["norm", "norm"],
    "logsumexp": lambda op: ["reduction", "pointwise", "pointwise", "reduction", "pointwise", "pointwise"],
    "embedding_dense_backward": _embedding_backward,
    "cumsum": _scan, "cumprod": _scan,
    "sort": lambda op: ["sort", "sort"], "topk": lambda op: ["sort", "sort"], "argsort": lambda op: ["sort", "sort"],
    "nonzero": _nonzero, "index": _index, "masked_select": _index,
    "_thnn_fused_lstm_cell_backward_impl": _cell_backward, "_thnn_fused_gru_cell_backward": _cell_backward,
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
    """The launches of an op. Where only the op as a whole has bytes, the first carries them and the others none."""
    kinds = launch_kinds(op)
    if not kinds:
        return ()
    each = launch_operands(op)
    if len(each) == len(kinds):
        return tuple(
            PredictedLaunch(
                category=kind,
                name=op.name,
                reads=ins,
                writes=outs,
                read_bytes=total_bytes(ins),
                write_bytes=total_bytes(outs),
            )
            for kind, (ins, outs) in zip(kinds, each, strict=True)
        )
    read, written = op_bytes(op)
    first = PredictedLaunch(
        category=kinds[0], name=op.name, reads=reads(op), writes=writes(op), read_bytes=read, write_bytes=written
    )
    known = read is not None and written is not None
    more = 0 if known else None
    rest = [PredictedLaunch(category=k, name=op.name, read_bytes=more, write_bytes=more) for k in kinds[1:]]
    return (first, *rest)
