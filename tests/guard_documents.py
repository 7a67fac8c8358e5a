"""Documents of a small program for the guard's tests, written as an ASCII step.

eager      mul ──▶ add ──▶ gelu ──▶ mm              (one kernel each, lines 10..13 of block.py)
compiled   [mul + add + gelu] ──▶ mm                (graph 0/0/forward)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

SHAPE = (1024, 1024)
MEGABYTE = 4 * 1024 * 1024

LINES = {
    10: "h = x * scale",
    11: "h = h + bias",
    12: "h = F.gelu(h)",
    13: "return h @ w",
}


def tensor(storage: str, dtype: str = "float32", shape: tuple[int, ...] = SHAPE) -> dict[str, Any]:
    strides, step = [], 1
    for size in reversed(shape):
        strides.insert(0, step)
        step *= size
    return {"shape": list(shape), "strides": strides, "dtype": dtype, "storage": storage}


def at(line: int, file: str = "/home/a/block.py", function: str = "Block.forward") -> dict[str, Any]:
    return {"file": file, "line": line, "function": function}


def kernel(
    ops: Sequence[str], reads: Sequence[str], writes: Sequence[str], line: int | dict[str, Any], *,
    graph: str | None = None, call: int | None = None, dtype: str = "float32", nodes: Sequence[str] = (),
    name: str = "triton_poi_fused_0", phase: str = "forward", bytes_each: int = MEGABYTE,
    shape: tuple[int, ...] = SHAPE,
) -> dict[str, Any]:  # fmt: skip
    return {
        "name": name, "category": "pointwise", "ops": list(ops), "nodes": list(nodes),
        "reads": [tensor(r, dtype, shape) for r in reads],
        "writes": [tensor(w, dtype, shape) for w in writes],
        "global_bytes": bytes_each * (len(reads) + len(writes)),
        "graph": graph, "call": call, "phase": phase, "location": at(line) if isinstance(line, int) else line,
        "region": None,
    }  # fmt: skip


def eager() -> list[dict[str, Any]]:
    return [
        kernel(["aten.mul.Tensor"], ["x", "scale"], ["a"], 10),
        kernel(["aten.add.Tensor"], ["a", "bias"], ["b"], 11),
        kernel(["aten.gelu.default"], ["b"], ["c"], 12),
        kernel(["aten.mm.default"], ["c", "w"], ["d"], 13),
    ]


def compiled() -> list[dict[str, Any]]:
    return [
        kernel(
            ["aten.mul", "aten.add", "aten.gelu"], ["x", "scale", "bias"], ["c"], 10,
            graph="0/0/forward", call=0, nodes=["mul", "add", "gelu"],
        ),
        kernel(["aten.mm"], ["c", "w"], ["d"], 13, graph="0/0/forward", call=1, nodes=["mm"]),
    ]  # fmt: skip


def graph(
    name: str = "0/0/forward", locations: Sequence[Sequence[int]] = ((10, 11, 12), (13,)), **more: Any
) -> dict[str, Any]:
    calls = [
        {"index": i, "location": at(lines[0]), "locations": [at(n) for n in lines]} for i, lines in enumerate(locations)
    ]
    return {
        "id": name, "kind": name.rsplit("/", 1)[-1], "calls": calls, "symbols": {},
        "inputs": [tensor(s) for s in ("x", "scale", "bias", "w")], **more,
    }  # fmt: skip


def a_pass(
    name: str, kernels: Sequence[dict[str, Any]], graphs: Sequence[dict[str, Any]] = (), **more: Any
) -> dict[str, Any]:
    return {
        "name": name, "kernels": list(kernels), "graphs": list(graphs), "breaks": [], "syncs": [],
        "cudagraph_skips": [], "decisions": [], "recompiles": [], **more,
    }  # fmt: skip


def document(
    eager_kernels: Sequence[dict[str, Any]] | None = None,
    compiled_kernels: Sequence[dict[str, Any]] | None = None,
    graphs: Sequence[dict[str, Any]] | None = None,
    lines: dict[int, str] | None = None,
    *,
    torch: str = "2.13.0+cpu",
    triton: str = "3.7.1",
    target: str = "h100",
    engine: str = "deviceless",
    sms: int = 132,
    file: str = "/home/a/block.py",
    **compiled_more: Any,
) -> dict[str, Any]:
    passes = [
        a_pass("eager", eager() if eager_kernels is None else eager_kernels),
        a_pass(
            "compiled", compiled() if compiled_kernels is None else compiled_kernels,
            [graph()] if graphs is None else graphs, **compiled_more,
        ),
    ]  # fmt: skip
    return {
        "schema_version": 1,
        "tool": {"name": "fusionaudit", "version": "0.1.0"},
        "engine": engine,
        "target": {"name": "NVIDIA H100", "key": target, "sm_count": sms},
        "environment": {"torch": torch, "triton": triton},
        "passes": passes,
        "findings": [],
        "notes": [],
        "sources": {file: {str(n): "        " + text for n, text in (lines or LINES).items()}},
        "exit_code": 0,
    }
