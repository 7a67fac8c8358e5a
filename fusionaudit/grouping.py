"""The groups of an audit, read from its document: each kernel of a step with its ops, tensors and lines, and the events
that launch nothing and still decide what can fuse."""

from __future__ import annotations

import hashlib
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from fusionaudit.config import Thresholds
from fusionaudit.data_sizes import Sizes, data_sizes
from fusionaudit.groups import MOST_TENSORS, FlowOp, Group, Key, Lock, Ref, Section, bare, short
from fusionaudit.report.document import Document
from fusionaudit.tensors import Tensor

LOCKED_PASSES = ("eager", "compiled", "imported")

ALIASING = frozenset(
    "aten." + name
    for name in (
        "view", "_unsafe_view", "reshape", "permute", "transpose", "t", "expand", "slice", "select", "squeeze",
        "unsqueeze", "detach", "alias", "as_strided", "split", "split_with_sizes", "unbind", "diagonal", "unfold",
        "lift_fresh", "chunk", "narrow", "view_as", "expand_as", "flatten", "unflatten",
    )
)  # fmt: skip
"""Ops that only rename memory: they never decide what shares a kernel, so they are no part of a group."""

_RESUMED = re.compile(r"^(?:torch_dynamo_resume_in_)+(.+?)(?:_at_\d+)+$")
"""What Dynamo calls the rest of a function after a graph break."""


def key_of(document: Document) -> Key:
    """Target, versions and engine of an audit. ``"unknown"`` where the document does not say."""
    environment = document.get("environment") or {}
    target = document.get("target") or {}
    engine = str(document.get("engine"))

    def version(name: str) -> str:
        value = environment.get(name) or environment.get(f"{name}_version")
        return str(value).split("+")[0] if value else "unknown"

    return Key(
        target=str(target.get("key") or target.get("name") or "unknown").replace(" ", "-"),
        sm_count=target.get("sm_count"),
        torch=version("torch"),
        triton=version("triton"),
        engine="deviceless" if engine == "deviceless" else "measured",
    )


class _Refs:
    """Locations of a document as refs; the text comes from the document's own ``sources``."""

    def __init__(self, document: Document) -> None:
        self.sources: dict[str, dict[str, str]] = document.get("sources") or {}

    def one(self, location: dict[str, Any] | None) -> Ref | None:
        if not location:
            return None
        file, line = str(location["file"]), int(location["line"])
        code = self.sources.get(file, {}).get(str(line), "")
        name = file.replace("\\", "/").rsplit("/", 1)[-1]
        function = _RESUMED.sub(r"\1", location.get("function") or "?")
        return Ref(file=name, function=function, code=bare(code), path=file, line=line)

    def all(self, locations: Iterable[dict[str, Any] | None]) -> tuple[Ref, ...]:
        found = (self.one(x) for x in locations)
        return tuple(dict.fromkeys(r for r in found if r is not None))


def base_op(name: str) -> str:
    """``aten.add`` for ``aten.add.Tensor``."""
    return ".".join(name.split(".")[:2])


def _ops(names: Sequence[str]) -> tuple[str, ...]:
    ops = tuple(dict.fromkeys(base_op(n) for n in names))
    return tuple(o for o in ops if o not in ALIASING) or ops


def _tensors(data: Sequence[dict[str, Any]], sizes: Sizes | None = None) -> tuple[str, ...]:
    """Tensors as text, in the order of the arguments; more than fit on a line (an optimizer's) as one text, in which
    their order is no part."""
    texts = tuple(short(Tensor.from_json(t), (sizes or {}).get(t["storage"])) for t in data)
    if len(texts) <= MOST_TENSORS:
        return texts
    digest = hashlib.sha256("\n".join(sorted(texts)).encode()).hexdigest()[:8]
    elements = sum(math.prod(t["shape"]) for t in data)
    return (f"{len(texts)} tensors of {elements} elements #{digest}",)


def _graph_sections(p: dict[str, Any], refs: _Refs) -> dict[str, Section]:
    """A section for each graph that has kernels in the step, in order of their first kernel."""
    by_id = {g["id"]: g for g in p["graphs"]}
    out: dict[str, Section] = {}
    taken: dict[Section, int] = {}
    for kernel in p["kernels"]:
        name = kernel.get("graph")
        if name is None or name in out:
            continue
        graph = by_id.get(name, {})
        first = next((c["location"] for c in graph.get("calls", []) if c.get("location")), kernel.get("location"))
        place = refs.one(first)
        section = Section(
            pass_name=p["name"],
            kind=graph.get("kind") or name.split("#")[0].rsplit("/", 1)[-1],
            graph=True,
            place=f"{place.file} {place.function}" if place else "",
            inputs=_tensors(graph.get("inputs") or []),
            dynamic=len(graph.get("symbols") or {}),
            cuda_graph=bool(graph.get("cuda_graph")),
        )
        taken[section] = taken.get(section, 0) + 1
        out[name] = replace(section, number=taken[section])
    return out


def _kernel_groups(p: dict[str, Any], refs: _Refs) -> list[Group]:
    sections = _graph_sections(p, refs)
    calls = {(g["id"], c["index"]): c for g in p["graphs"] for c in g["calls"]}
    sizes = data_sizes(p["kernels"])
    groups = []
    for kernel in p["kernels"]:
        graph = kernel.get("graph")
        call = calls.get((graph, kernel.get("call")), {})
        own = Section(pass_name=p["name"], kind=kernel.get("phase") or "forward")
        tensors = [*kernel["reads"], *kernel["writes"]]
        groups.append(
            Group(
                section=sections.get(graph, own) if graph else own,
                ops=_ops(kernel["ops"]) or (kernel["category"],),
                reads=_tensors(kernel["reads"], sizes),
                writes=_tensors(kernel["writes"], sizes),
                refs=refs.all([kernel.get("location"), *call.get("locations", [])]),
                copy=kernel["category"] in ("memcpy", "memset"),
                bytes=None if any(t["storage"] in sizes for t in tensors) else kernel["global_bytes"],
                nodes=tuple(kernel.get("nodes") or ()),
                graph_ids=(graph,) if graph else (),
            )
        )
    return groups


def _event_groups(p: dict[str, Any], refs: _Refs) -> list[Group]:
    """Graph breaks, host syncs, skipped CUDA graphs and recompilations without end: they launch nothing and still
    decide what can fuse."""
    section = Section(pass_name=p["name"], kind="events")
    out = []
    for what, op, rows in (
        ("break", "graph break", p.get("breaks") or []),
        ("sync", "", p.get("syncs") or []),
        ("skip", "cudagraph skip", p.get("cudagraph_skips") or []),
        ("recompile", "", _lasting(p.get("recompiles") or [])),
    ):
        for row in rows:
            out.append(
                Group(
                    section=section,
                    what=what,
                    ops=(op or base_op(row["name"]),),
                    refs=refs.all([row.get("location")]),
                    launches=int(what == "sync"),
                    bytes=0,
                    note=" ".join(str(row.get("reason") or "").split())[:160],
                )
            )
    return out


def _lasting(recompiles: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """One of each function's recompilations for each kind of guard that will fail again: it failed more often than a
    graph for any value, or any size, explains."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for row in recompiles:
        found[(str(row.get("location") or row["function"]), str(row.get("kind")))].append(row)
    least = {"value": 2, "size": Thresholds().expired_recompiles}
    lasting = [rows[0] for (_, kind), rows in found.items() if len(rows) >= least.get(kind, math.inf)]
    return [{**row, "name": f"{row['kind']} guard", "reason": row["guard"].split("#")[0]} for row in lasting]


def _identity(group: Group) -> tuple[object, ...]:
    return (group.section, group.what, group.copy, group.ops, group.reads, group.writes, group.refs)


def merge(groups: Iterable[Group]) -> tuple[Group, ...]:
    """Equal groups made one, launches and bytes added; in order of section, then of first appearance."""
    merged: dict[tuple[object, ...], Group] = {}
    for group in groups:
        key = _identity(group)
        seen = merged.get(key)
        if seen is None:
            merged[key] = group
            continue
        known = None if seen.bytes is None or group.bytes is None else seen.bytes + group.bytes
        merged[key] = replace(
            seen,
            launches=seen.launches + group.launches,
            bytes=known,
            nodes=tuple(dict.fromkeys((*seen.nodes, *group.nodes))),
            graph_ids=tuple(dict.fromkeys((*seen.graph_ids, *group.graph_ids))),
        )
    order = {s: i for i, s in enumerate(dict.fromkeys(g.section for g in merged.values()))}
    return tuple(sorted(merged.values(), key=lambda g: order[g.section]))


def groups_of(document: Document) -> tuple[Group, ...]:
    """The fusion groups of an audit, pass by pass, in order of execution."""
    refs = _Refs(document)
    out: list[Group] = []
    for p in document["passes"]:
        if p["name"] in LOCKED_PASSES:
            out += merge([*_kernel_groups(p, refs), *_event_groups(p, refs)])
    return tuple(out)


def flow_of(document: Document) -> tuple[FlowOp, ...]:
    """What the ops of the eager step read from each other; ops that only rename memory are left out."""
    refs = _Refs(document)
    eager: dict[str, Any] = next((p for p in document["passes"] if p["name"] == "eager"), {})
    makers: dict[str, int] = {}
    out: list[FlowOp] = []
    for op in eager.get("ops") or []:
        before = {t["storage"] for t in op["inputs"]}
        changed = [op["inputs"][i]["storage"] for i in op["mutated"] if i < len(op["inputs"])]
        made = [t["storage"] for t in op["outputs"] if t["storage"] not in before]
        if not (made or changed):
            continue
        read = {(makers[t["storage"]], short(Tensor.from_json(t))) for t in op["inputs"] if t["storage"] in makers}
        makers.update(dict.fromkeys((*made, *changed), len(out)))
        out.append(FlowOp(name=base_op(op["name"]), ref=refs.one(op["location"]), inputs=tuple(sorted(read))))
    return tuple(out)


def compiled_by(document: Document) -> str:
    """``script`` or ``fusionaudit``: who called torch.compile in the compiled pass; empty where there is none."""
    if not any(p["name"] == "compiled" for p in document["passes"]):
        return ""
    told = any(n["kind"] == "compiled-for-you" for n in document.get("notes") or [])
    return "fusionaudit" if told else "script"


def lock_of(document: Document) -> Lock:
    """The lock that describes this audit."""
    tool = (document.get("tool") or {}).get("version") or ""
    return Lock(
        key=key_of(document), groups=groups_of(document), tool=tool, compiled_by=compiled_by(document),
        flow=flow_of(document),
    )  # fmt: skip
