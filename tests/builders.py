"""Ten-line literals for rules: tensors, ops, passes and compiled graphs without a capture."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from fusionaudit.config import Config
from fusionaudit.device import Device
from fusionaudit.findings import Finding, Location
from fusionaudit.inductor.model import CompiledGraph, FusionDecision, GeneratedCall, GeneratedKernel, InductorLog, Node
from fusionaudit.program.costs import category, op_bytes, reads, writes
from fusionaudit.program.model import HostSync, Kernel, Pass, Program
from fusionaudit.tensors import Tensor, total_bytes
from fusionaudit.trace.schema import Op, Phase

DEVICE = Device(
    name="NVIDIA H200",
    key="h200",
    sm_count=132,
    threads_per_sm=2048,
    blocks_per_sm=32,
    shared_bytes_per_sm=233472,
    l2_bytes=60 << 20,
    peak_bandwidth_bytes_per_s=4_814_000_000_000,
    peak_flops_per_s={"float32": 60_000_000_000_000, "bfloat16": 989_000_000_000_000},
)
FILE = "/home/user/script.py"
MEGA = 1 << 20


def t(storage: str, *shape: int, dtype: str = "float32", parameter: bool = False, device: str = "cuda") -> Tensor:
    """A row-major tensor with a storage of its own."""
    plain = Tensor.contiguous(shape, dtype, storage, device)
    return Tensor(
        shape=plain.shape, strides=plain.strides, dtype=dtype, storage=storage, device=device, is_parameter=parameter
    )


def line(number: int) -> Location:
    """A line of the one script."""
    return Location(file=FILE, line=number, function="f")


def op(
    name: str,
    inputs: Iterable[Tensor],
    *outputs: Tensor,
    at: int = 1,
    mutated: Sequence[int] = (),
    phase: Phase = "forward",
    stream: int = 0,
    arguments: tuple[Any, ...] = (),
    region: str | None = None,
) -> Op:
    """An op of aten; the pass gives it its id."""
    full = name if "." in name else f"aten.{name}.default"
    return Op(
        id=0,
        name=full,
        inputs=tuple(inputs),
        outputs=outputs,
        mutated=tuple(mutated),
        location=line(at),
        phase=phase,
        stream=stream,
        arguments=arguments,
        region=region,
    )


def eager(*ops: Op, name: str = "eager", engine: str = "deviceless", syncs: Sequence[HostSync] = ()) -> Pass:
    """A pass of ops, one kernel each, timed by the byte model; each step gives them the same arguments."""
    numbered = tuple(Op(**{**{f: getattr(o, f) for f in o.__dataclass_fields__}, "id": i}) for i, o in enumerate(ops))
    kernels = []
    for o in numbered:
        kind = category(o)
        if kind is None:
            continue
        read, write = op_bytes(o)
        moved = None if read is None or write is None else DEVICE.transfer_ns(read + write)
        opaque = moved is None or kind in ("matmul", "convolution", "attention")
        kernels.append(
            Kernel(
                id=len(kernels),
                name=f"{o.name}_kernel",
                category=kind,
                ops=(o.id,),
                op_names=(o.name,),
                reads=reads(o),
                writes=writes(o),
                read_bytes=read,
                write_bytes=write,
                duration_ns=None if opaque or moved is None else max(moved, DEVICE.launch_ns),
                time_basis=None if opaque else "predicted",
                location=o.location,
                phase=o.phase,
                region=o.region,
            )
        )
    return Pass(
        name=name,  # type: ignore[arg-type]
        engine=engine,
        ops=numbered,
        kernels=tuple(kernels),
        syncs=tuple(syncs),
        steps=2,
        repeated=frozenset(o.id for o in numbered),
    )


def program(*passes: Pass, uses_compile: bool = False, device: Device | None = DEVICE) -> Program:
    """A program on the H200."""
    environment = {"uses_compile": True} if uses_compile else {}
    return Program(engine=passes[0].engine, device=device, passes=passes, environment=environment)


def call(
    target: str,
    inputs: Iterable[Tensor] = (),
    outputs: Iterable[Tensor] = (),
    *,
    aten: Sequence[str] = ("add",),
    nodes: Sequence[str] = (),
    kind: str = "triton",
    kernel: str = "pointwise",
    numels: dict[str, int] | None = None,
    at: int = 1,
    split: bool = False,
    reread: int = 0,
    source: str = "",
) -> tuple[GeneratedCall, GeneratedKernel | None]:
    """A call of a graph, with the kernel that it launches where that is generated."""
    ins, outs = tuple(inputs), tuple(outputs)
    made = GeneratedCall(
        index=0,
        kind=kind,  # type: ignore[arg-type]
        target=target,
        category=kernel,
        aten=tuple(aten),
        nodes=tuple(nodes),
        reads=ins,
        writes=outs,
        read_bytes=total_bytes(ins),
        write_bytes=total_bytes(outs),
        reread_bytes=reread,
        numels=tuple((numels or {}).values()),
        location=line(at),
        locations=(line(at),),
    )
    if kind != "triton":
        return made, None
    generated = GeneratedKernel(
        name=target,
        category=kernel,
        aten=tuple(aten),
        nodes=tuple(nodes),
        numels=dict(numels or {"x": max((x.numel for x in outs), default=1)}),
        args=(),
        dtypes=tuple(x.dtype for x in (*ins, *outs)),
        accesses=(),
        source=source,
        split_reduction=split,
        location=line(at),
    )
    return made, generated


def graph(
    *calls: tuple[GeneratedCall, GeneratedKernel | None],
    inputs: Iterable[Tensor] = (),
    outputs: Iterable[str] = (),
    nodes: Sequence[Node] = (),
    name: str = "0/0/forward",
) -> CompiledGraph:
    """A graph of calls in order."""
    numbered = []
    for index, (made, _) in enumerate(calls):
        numbered.append(GeneratedCall(**{**{f: getattr(made, f) for f in made.__dataclass_fields__}, "index": index}))
    return CompiledGraph(
        id=name,
        compile_id=name.rsplit("/", 1)[0],
        kind=name.rsplit("/", 1)[1],  # type: ignore[arg-type]
        kernels=tuple({k.name: k for _, k in calls if k is not None}.values()),
        calls=tuple(numbered),
        nodes=tuple(nodes),
        inputs=tuple(inputs),
        outputs=tuple(outputs),
    )


def compiled(
    *graphs: CompiledGraph,
    decisions: Sequence[FusionDecision] = (),
    runs: int = 1,
    engine: str = "deviceless",
    duration_ns: int | None = None,
    loose: Sequence[Op] = (),
    **figures: Any,
) -> Pass:
    """A pass in which each graph ran ``runs`` times; ``figures`` are further fields of every kernel."""
    kernels: list[Kernel] = []
    for g in graphs:
        for _ in range(runs):
            for c in g.calls:
                moved = None if c.read_bytes is None or c.write_bytes is None else c.read_bytes + c.write_bytes
                modelled = max(DEVICE.transfer_ns(moved) or 0, DEVICE.launch_ns)
                opaque = c.category in ("matmul", "convolution", "attention", "opaque", "sort")
                kernels.append(
                    Kernel(
                        id=len(kernels),
                        name=c.target,
                        category=c.category,  # type: ignore[arg-type]
                        op_names=c.aten,
                        nodes=c.nodes,
                        reads=c.reads,
                        writes=c.writes,
                        read_bytes=c.read_bytes,
                        write_bytes=c.write_bytes,
                        reread_bytes=c.reread_bytes,
                        duration_ns=duration_ns if duration_ns is not None else (None if opaque else modelled),
                        time_basis="measured" if duration_ns is not None else (None if opaque else "predicted"),
                        graph=g.id,
                        call=c.index,
                        location=c.location,
                        phase="backward" if g.kind == "backward" else "forward",
                        **figures,
                    )
                )
    log = InductorLog(graphs=graphs, decisions=tuple(decisions))
    again = frozenset(g.id for g in graphs)
    return Pass(
        name="compiled",
        engine=engine,
        kernels=tuple(kernels),
        ops=tuple(loose),
        log=log,
        steps=2,
        repeated_graphs=again,
    )


def run(rule: Any, *passes: Pass, uses_compile: bool = False, config: Config | None = None) -> list[Finding]:
    """All findings of one rule."""
    return list(rule.check(program(*passes, uses_compile=uses_compile), config or Config()))


def warnings(rule: Any, *passes: Pass, uses_compile: bool = False) -> list[Finding]:
    """The findings at severity warning or above."""
    return [f for f in run(rule, *passes, uses_compile=uses_compile) if f.severity != "info"]
