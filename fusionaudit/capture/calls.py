"""One aten call as JSON: tensors by index, scalars as they are, everything else tagged; and what its schema says."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

_DEVICE_SYNCS = frozenset(
    {
        "aten.nonzero.default", "aten.masked_select.default", "aten._unique2.default", "aten.unique_dim.default",
        "aten.unique_consecutive.default", "aten.equal.default",
    }
)  # fmt: skip
"""Ops whose output size (or Python result) depends on device data: the host waits for it."""

HOST_SYNC = "host sync"
"""What an observer of the recorder is told where the host reads from the device or waits for it."""


@dataclass(frozen=True, kw_only=True)
class Schema:
    """What the recorder needs to know about one overload.

    ``written`` are positions and names of written arguments; ``kernels`` are the devices for which a composite op has a
    kernel of its own.
    """

    name: str
    skip: bool
    composite: bool
    kernels: frozenset[str]
    written: frozenset[int | str]
    waits: bool


def read_schema(func: Any) -> Schema:
    """The schema of an OpOverload or a higher-order operator; profiler and prim helpers are to be skipped."""
    schema = getattr(func, "_schema", None)
    if schema is None:
        return Schema(
            name=f"higher_order.{func.name() if callable(getattr(func, 'name', None)) else func}",
            skip=False, composite=False, kernels=frozenset(), written=frozenset(), waits=False,
        )  # fmt: skip
    written: set[int | str] = set()
    for i, argument in enumerate(schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            written.update((i, argument.name))
    name = str(func)
    full, has_kernel = schema_name(func), torch._C._dispatch_has_kernel_for_dispatch_key
    composite = has_kernel(full, "CompositeImplicitAutograd")
    return Schema(
        name=name,
        skip=func.namespace in ("profiler", "prim", "prims", "debugprims", "inductor"),
        composite=bool(composite),
        kernels=frozenset(key.lower() for key in ("CPU", "CUDA") if composite and has_kernel(full, key)),
        written=frozenset(written),
        waits=name in _DEVICE_SYNCS,
    )


def schema_name(func: Any) -> str:
    """``aten::add.Tensor`` as the dispatcher names it."""
    name = func._schema.name
    overload = func._schema.overload_name
    return f"{name}.{overload}" if overload else name


def encode_scalar(value: Any) -> Any:
    """A non-tensor argument as JSON; what JSON has no form for gets a tag (``{"dtype": "float32"}``)."""
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else {"float": str(value)}
    if isinstance(value, torch.SymInt):
        return _symbolic(value, int)
    if isinstance(value, torch.SymFloat):
        return _symbolic(value, float)
    if isinstance(value, torch.SymBool):
        return _symbolic(value, bool)
    if isinstance(value, complex):
        return {"complex": [value.real, value.imag]}
    if isinstance(value, torch.dtype):
        return {"dtype": str(value).removeprefix("torch.")}
    if isinstance(value, torch.device):
        return {"device": str(value)}
    if isinstance(value, torch.layout):
        return {"layout": str(value).removeprefix("torch.")}
    if isinstance(value, torch.memory_format):
        return {"memory_format": str(value).removeprefix("torch.")}
    return {"object": type(value).__name__}


def _symbolic(value: Any, kind: Callable[[Any], Any]) -> Any:
    hint = getattr(value.node, "hint", None)
    return {"object": str(value)} if hint is None else kind(hint)


class Encoded:
    """The arguments of one call: ``inputs`` are the tensors in order, ``arguments`` rebuilds the call."""

    def __init__(self, schema: Schema, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.tensors: list[torch.Tensor] = []
        self.mutated: list[int] = []
        self.arguments: list[Any] = [self._encode(value, i in schema.written) for i, value in enumerate(args)]
        if kwargs:
            self.arguments.append({"kwargs": {k: self._encode(v, k in schema.written) for k, v in kwargs.items()}})

    def _encode(self, value: Any, written: bool) -> Any:
        if isinstance(value, torch.Tensor):
            index = len(self.tensors)
            self.tensors.append(value)
            if written:
                self.mutated.append(index)
            return {"tensor": index}
        if isinstance(value, (list, tuple)):
            return [self._encode(v, written) for v in value]
        return encode_scalar(value)


def tensors_of(value: Any) -> list[torch.Tensor]:
    """All tensors in a result or argument, depth first through lists, tuples and dicts."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (list, tuple)):
        return [t for v in value for t in tensors_of(v)]
    if isinstance(value, dict):
        return [t for v in value.values() for t in tensors_of(v)]
    return []
