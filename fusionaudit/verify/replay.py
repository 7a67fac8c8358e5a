"""Recorded ops as a graph that runs again: in eager, in fp64, under torch.compile, or captured in a CUDA graph."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fusionaudit.errors import AuditError
from fusionaudit.tensors import Tensor
from fusionaudit.trace.schema import Op
from fusionaudit.verify.chain import UnsupportedChainError
from fusionaudit.verify.timing import first_line

Key = tuple[Any, ...]
RANDOM = ("dropout", "bernoulli", "rand", "normal", "uniform", "exponential", "multinomial")


def key_of(tensor: Tensor) -> Key:
    """One view of one storage."""
    return (tensor.storage, tensor.offset, tensor.shape, tensor.strides, tensor.dtype)


def find_operator(name: str) -> Any:
    """``torch.ops.aten.add.Tensor`` for ``aten.add.Tensor``."""
    found: Any = torch.ops
    for part in name.split("."):
        found = getattr(found, part, None)
        if found is None:
            raise UnsupportedChainError(f"{name} is not an operator of this torch {torch.__version__}")
    return found


def draws_anew(op: Op) -> bool:
    """True for an op whose result is drawn at random on each call."""
    return any(word in op.name for word in RANDOM) and "backward" not in op.name


@dataclass(frozen=True, kw_only=True)
class Replay:
    """``module(*inputs)`` runs the ops and returns one tensor per entry of ``outputs``.

    ``inputs`` are the views that come from outside; ``mutated`` the storages of inputs that are written in place.
    """

    module: torch.fx.GraphModule
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    mutated: frozenset[str]


def build_replay(
    ops: Sequence[Op],
    outputs: Sequence[Tensor],
    device: torch.device,
    *,
    wide: torch.dtype | None = None,
    random: bool = False,
) -> Replay:
    """The graph of recorded ops; with ``wide`` every floating dtype that is asked for becomes that one.

    Ops that draw random numbers are refused, unless ``random``: their results cannot be compared, only timed.
    """
    graph = torch.fx.Graph()
    env: dict[Key, torch.fx.Node] = {}
    base: dict[str, torch.fx.Node] = {}
    held: dict[str, str] = {}
    made: set[str] = set()
    inputs: list[Tensor] = []
    mutated: set[str] = set()
    first = graph.output(())  # placeholders go to the front, calls before the output

    def read(tensor: Tensor) -> torch.fx.Node:
        key = key_of(tensor)
        if tensor.storage is None:
            raise UnsupportedChainError("a tensor's storage was not recorded")
        if key in env:
            return env[key]
        if tensor.storage in made:
            source = base[tensor.storage]
            if tensor.dtype != held[tensor.storage]:  # view_as_complex, view_as_real, view(dtype)
                source = graph.call_function(torch.ops.aten.view.dtype, (source, _seen_as(tensor.dtype, wide)))
            node = graph.call_function(
                torch.ops.aten.as_strided.default,
                (source, list(tensor.shape), list(tensor.strides), tensor.offset),
            )
        else:
            anchor = next(iter(graph.nodes))
            with graph.inserting_before(anchor if not inputs else _after_placeholders(graph)):
                node = graph.placeholder(f"t{len(inputs)}")
            inputs.append(tensor)
        env[key] = node
        return node

    def rebuild(op: Op, value: Any) -> Any:
        if isinstance(value, list):
            return [rebuild(op, v) for v in value]
        if not isinstance(value, dict):
            return value
        if "tensor" in value:
            return read(op.inputs[value["tensor"]])
        if "float" in value:
            return float(value["float"])
        if "complex" in value:
            return complex(*value["complex"])
        if "dtype" in value:
            dtype = getattr(torch, value["dtype"])
            return wide if wide is not None and dtype.is_floating_point else dtype
        if "device" in value:
            return device if value["device"] != "cpu" or device.type == "cpu" else torch.device("cpu")
        if "layout" in value or "memory_format" in value:
            return getattr(torch, next(iter(value.values())))
        raise UnsupportedChainError(f"{op.name}: an argument was not recorded ({value})")

    with graph.inserting_before(first):
        for op in ops:
            if not random and draws_anew(op):
                raise UnsupportedChainError(f"{op.name} draws random numbers: its results cannot be compared")
            arguments = list(op.arguments)
            kwargs: dict[str, Any] = {}
            if arguments and isinstance(arguments[-1], dict) and "kwargs" in arguments[-1]:
                kwargs = {k: rebuild(op, v) for k, v in arguments.pop()["kwargs"].items()}
            args = [rebuild(op, v) for v in arguments]
            if wide is not None and op.base_name in ("aten._softmax", "aten._log_softmax") and len(args) > 2:
                args[2] = False  # half_to_float
            node = graph.call_function(find_operator(op.name), tuple(args), kwargs)
            mutated |= {s for i in op.mutated if (s := op.inputs[i].storage) is not None and s not in made}
            many = len(op.outputs) > 1 or _returns_list(op.name)
            if many and _has_gaps(op):
                node = graph.call_function(only_tensors, (node,))
            for position, tensor in enumerate(op.outputs):
                if tensor.storage is None:
                    continue
                result = graph.call_function(operator.getitem, (node, position)) if many else node
                env[key_of(tensor)] = result
                if tensor.storage not in {t.storage for t in op.inputs}:
                    made.add(tensor.storage)
                    base[tensor.storage], held[tensor.storage] = result, tensor.dtype
        found = tuple(read(tensor) for tensor in outputs)
    first.args = (found,)
    graph.lint()
    module = torch.fx.GraphModule(torch.nn.Module(), graph)
    return Replay(module=module, inputs=tuple(inputs), outputs=tuple(outputs), mutated=frozenset(mutated))


def _seen_as(name: str, wide: torch.dtype | None) -> torch.dtype:
    """The dtype of a view on another dtype's storage, where floating ones are ``wide``."""
    dtype: torch.dtype = getattr(torch, name)
    if wide is None:
        return dtype
    if not (dtype.is_floating_point or dtype.is_complex):
        raise UnsupportedChainError(f"one storage is read as two dtypes, {name} among them")
    return wide.to_complex() if dtype.is_complex else wide


def _returns_list(name: str) -> bool:
    returns = find_operator(name)._schema.returns
    return len(returns) > 1 or (len(returns) == 1 and "List" in str(returns[0].type))


def _has_gaps(op: Op) -> bool:
    """Results that are no tensors (``None`` where a mask asks for none, integers) lie between the recorded ones."""
    returns = find_operator(op.name)._schema.returns
    return len(returns) > 1 and len(op.outputs) != len(returns)


def only_tensors(results: Sequence[Any]) -> list[Any]:
    """The results that are tensors, as the recorder counts them."""
    return [r for r in results if isinstance(r, torch.Tensor)]


def _after_placeholders(graph: torch.fx.Graph) -> torch.fx.Node:
    found: torch.fx.Node = next(node for node in graph.nodes if node.op != "placeholder")
    return found


def extent(tensor: Tensor) -> int:
    """Elements of the storage up to the last one that the view touches."""
    return tensor.offset + 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.strides, strict=True))


def draw_buffers(tensors: Sequence[Tensor], device: torch.device, *, positive: bool = False) -> dict[str, torch.Tensor]:
    """A flat buffer of fresh random values for each storage, large enough for all its views."""
    sizes: dict[str, int] = {}
    dtypes: dict[str, torch.dtype] = {}
    on_host: set[str] = set()
    for tensor in tensors:
        assert tensor.storage is not None
        if tensor.device.startswith("cpu") and device.type != "cpu":
            if tensor.shape:
                raise UnsupportedChainError("a tensor of the chain is on the CPU")
            on_host.add(tensor.storage)  # a number for the host: kernels take it as an argument
        dtype = getattr(torch, tensor.dtype)
        if dtypes.setdefault(tensor.storage, dtype) != dtype:
            raise UnsupportedChainError("one storage is read as two dtypes")
        sizes[tensor.storage] = max(sizes.get(tensor.storage, 0), extent(tensor))
    host = torch.device("cpu")
    return {s: draw(n, dtypes[s], host if s in on_host else device, positive=positive) for s, n in sizes.items()}


def draw(n: int, dtype: torch.dtype, device: torch.device, *, positive: bool = False) -> torch.Tensor:
    """Fresh random values: N(0, 1), or uniform in [0.25, 1] where the ops need positive ones; small integers."""
    if dtype == torch.bool:
        return torch.rand(n, device=device) > 0.5
    if not dtype.is_floating_point:
        return torch.randint(0, 8, (n,), device=device).to(dtype)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    values = (
        torch.rand(n, device=device, dtype=wide).mul_(0.75).add_(0.25)
        if positive
        else torch.randn(n, device=device, dtype=wide)
    )
    return values.to(dtype)


def on_device(ops: Sequence[Op]) -> list[Op]:
    """The ops without those of CPU tensors only (an optimizer's step counters), with which no device is busy, and
    without reads by the host (``.item()``, ``.cpu()``), which no CUDA graph can hold."""

    def is_host(op: Op) -> bool:
        tensors = op.outputs or op.inputs
        read = op.base_name == "aten._local_scalar_dense"
        return read or (bool(tensors) and all(t.device.startswith("cpu") for t in tensors))

    return [op for op in ops if not is_host(op)]


def view(buffers: dict[str, torch.Tensor], tensor: Tensor) -> torch.Tensor:
    """A recorded view of its buffer."""
    assert tensor.storage is not None
    return buffers[tensor.storage].as_strided(tensor.shape, tensor.strides, tensor.offset)


def call(
    replay: Replay, buffers: dict[str, torch.Tensor], *, wide: torch.dtype | None = None
) -> tuple[torch.Tensor, ...]:
    """Run once on copies of what is written in place; floating inputs are widened first where ``wide`` is given."""
    own = dict(buffers)
    for storage, buffer in own.items():
        if wide is not None and buffer.dtype.is_floating_point:
            own[storage] = buffer.to(wide)
        elif storage in replay.mutated:
            own[storage] = buffer.clone()
    try:
        return tuple(replay.module(*(view(own, t) for t in replay.inputs)))
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        raise AuditError(f"the recorded ops cannot be run again: {first_line(error)}") from None
