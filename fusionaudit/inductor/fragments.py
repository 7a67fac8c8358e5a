"""Reads the comments above generated kernels and calls: ops, source nodes and the graph fragment."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from fusionaudit.tensors import Tensor

_SOURCES = re.compile(r"#\s*(?:Topologically Sorted )?Source Nodes: \[(.*?)\](?:, Original ATen: \[(.*?)\])?")
_FRAGMENT = re.compile(
    r"#\s+%(?P<name>\w+) : (?:Tensor )?\s*(?:\"(?P<type>[^\"]*)\")?\s*(?:\[num_users=\d+\])?\s*= "
    r"(?P<kind>PlaceHolder|call_function|get_attr|placeholder)\[target=(?P<target>[^\]]+)\](?P<rest>.*)$"
)
_RETURN = re.compile(r"#\s+return (.*)$")
_NAMES = re.compile(r"%(\w+)")
_TYPE = re.compile(r"^(\w+)\[([^\]]*)\](?:\[([^\]]*)\])?(?P<device>\w+)?")

SHORT_DTYPES: dict[str, str] = {
    "f16": "float16", "f32": "float32", "f64": "float64", "bf16": "bfloat16", "i8": "int8", "i16": "int16",
    "i32": "int32", "i64": "int64", "u8": "uint8", "u16": "uint16", "u32": "uint32", "u64": "uint64", "b8": "bool",
    "c32": "complex32", "c64": "complex64", "c128": "complex128", "f8e4m3fn": "float8_e4m3fn", "f8e5m2": "float8_e5m2",
    "f8e4m3fnuz": "float8_e4m3fnuz", "f8e5m2fnuz": "float8_e5m2fnuz", "f8e8m0fnu": "float8_e8m0fnu",
}  # fmt: skip
"""torch.fx's abbreviations (torch.utils._dtype_abbrs) to dtype names."""


@dataclass(frozen=True, kw_only=True)
class FragmentNode:
    """A line of a graph fragment: fx name, aten target, names of its inputs, its tensor type as text."""

    name: str
    target: str
    inputs: tuple[str, ...]
    type: str | None
    placeholder: bool


@dataclass(frozen=True, kw_only=True)
class Fragment:
    """The comment block of one kernel or call."""

    aten: tuple[str, ...] = ()
    source_nodes: tuple[str, ...] = ()
    nodes: tuple[FragmentNode, ...] = ()
    returns: tuple[str, ...] = ()

    def computed(self) -> tuple[str, ...]:
        """The nodes that the kernel itself computes, in order.

        The comment lists more (pytorch issue 189270): the whole upstream of a node that an earlier kernel has written
        already. A node counts when the returned nodes need it and everything it needs is there: a placeholder of the
        fragment or a counted node. What is returned always counts (the second stage of a split reduction reads only
        the partials). Wrong where a kernel recomputes a value that is a placeholder of it as well.
        """
        listed = {n.name: n for n in self.nodes if not n.placeholder}
        given = {n.name for n in self.nodes if n.placeholder}
        if not self.returns:
            return tuple(listed)
        returned = {r for r in self.returns if r in listed}
        counted: dict[str, bool] = {}
        plural = [n.name for n in self.nodes if not n.placeholder and n.type is None]

        def sources(node: FragmentNode) -> list[str]:
            out = []
            for name in node.inputs:
                if name not in listed and name not in given and name.startswith("getitem"):
                    out.extend(plural)  # parts of multi-output nodes are not listed
                else:
                    out.append(name)
            return [s for s in out if s != node.name]

        # Listed in topological order: one pass tells which nodes have all they need.
        for name, node in listed.items():
            needed = sources(node)
            counted[name] = all((s in given and s not in returned) or counted.get(s, False) for s in needed)
        unreturned = not returned and any(r.startswith("buf") for r in self.returns)
        reachable: set[str] = set()
        stack = list(returned)
        if unreturned or any(r not in listed for r in self.returns):
            # Partials (buf1) and parts of multi-output nodes (getitem_3) have no line of their own.
            used = {s for n in listed.values() for s in sources(n)}
            stack.extend(n for n in listed if n not in used or n in plural)
        while stack:
            name = stack.pop()
            if name in reachable or name not in listed:
                continue
            reachable.add(name)
            stack.extend(s for s in sources(listed[name]) if s not in given or s in returned)
        computed = tuple(n for n in listed if n in reachable and (counted[n] or n in returned))
        # Nothing loaded (the zeros of a pad): it is the last op that the kernel does a part of.
        return computed or tuple(listed)[-1:]


def parse_fragment(lines: Iterable[str]) -> Fragment:
    """The comment lines directly above a kernel or a call; lines of other kinds are skipped."""
    aten: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    nodes: list[FragmentNode] = []
    returns: tuple[str, ...] = ()
    for line in lines:
        line = line.strip()
        found = _SOURCES.match(line)
        if found:
            sources = tuple(s.strip() for s in found.group(1).split(",") if s.strip())
            aten = tuple(s.strip() for s in (found.group(2) or "").split(",") if s.strip())
            nodes, returns = [], ()
            continue
        found = _FRAGMENT.match(line)
        if found:
            nodes.append(
                FragmentNode(
                    name=found["name"],
                    target=found["target"],
                    inputs=tuple(_NAMES.findall(found["rest"])),
                    type=found["type"],
                    placeholder=found["kind"].lower() == "placeholder",
                )
            )
            continue
        found = _RETURN.match(line)
        if found:
            returns = tuple(_NAMES.findall(found.group(1)))
    return Fragment(aten=aten, source_nodes=sources, nodes=tuple(nodes), returns=returns)


def short_op(target: str) -> str:
    """``aten.abs.default`` for ``torch.ops.aten.abs.default``."""
    return target.removeprefix("torch.ops.")


def tensor_type(text: str | None) -> tuple[str, str, str, str] | None:
    """(dtype, sizes, strides, device) of ``f32[2048, s0][1, 2048]cuda:0``; sizes and strides as text."""
    found = _TYPE.match(text or "")
    if found is None or found.group(1) not in SHORT_DTYPES:
        return None
    return SHORT_DTYPES[found.group(1)], found.group(2), found.group(3) or "", found["device"] or "cuda"


def static_tensor(text: str | None, storage: str | None = None) -> Tensor | None:
    """A Tensor from fx's type text where all sizes are numbers."""
    parts = tensor_type(text)
    if parts is None:
        return None
    dtype, sizes, strides, device = parts
    try:
        shape = tuple(int(s) for s in sizes.split(",") if s.strip())
        steps = tuple(int(s) for s in strides.split(",") if s.strip())
    except ValueError:
        return None
    if len(steps) != len(shape):
        return Tensor.contiguous(shape, dtype, storage=storage, device=device)
    return Tensor(shape=shape, strides=steps, dtype=dtype, storage=storage, device=device)
