"""Documents for the report tests, built through the types that the pipeline uses.

``sum_abs`` is the first example of the README (2 eager kernels, 2.15 of 3.22 GB avoidable); ``block`` a transformer
block with loops; ``hostile`` has markup and control characters wherever a capture can carry text; ``many`` is large.
"""

from __future__ import annotations

from typing import Any

from fusionaudit.device import Device
from fusionaudit.findings import Finding, Location, Note, Verification
from fusionaudit.inductor.model import (
    CompiledGraph,
    CudagraphSkip,
    FusionDecision,
    GeneratedCall,
    GraphBreak,
    InductorLog,
    Recompile,
)
from fusionaudit.program.model import Kernel, Pass, Program
from fusionaudit.report.document import Document, build_document
from fusionaudit.tensors import Tensor
from fusionaudit.trace.schema import Op

H200 = Device(
    name="NVIDIA H200", key="h200", compute_capability=(9, 0), sm_count=132,
    peak_bandwidth_bytes_per_s=4_800_000_000_000, threads_per_sm=2048, l2_bytes=60 * 2**20,
    peak_flops_per_s={"bfloat16": 989_000_000_000_000},
)  # fmt: skip
FILE = "/home/ada/work/sum_abs.py"
SOURCES = {
    FILE: {
        "9": "",
        "10": "def loss(x):",
        "11": '    """Sum of magnitudes."""',
        "12": "    return x.abs().sum()",
        "13": "",
        "14": "x = torch.randn(2**28, device='cuda')",
    }
}


def tensor(shape: tuple[int, ...], dtype: str = "float32", storage: str | None = None) -> Tensor:
    return Tensor.contiguous(shape, dtype, storage)


def kernel(number: int, name: str, **given: Any) -> Kernel:
    """A kernel with times and bytes filled from its tensors."""
    reads, writes = given.get("reads", ()), given.get("writes", ())
    values: dict[str, Any] = {
        "id": number, "name": name, "category": "pointwise", "duration_ns": 1000, "time_basis": "measured",
        "read_bytes": sum(t.nbytes or 0 for t in reads), "write_bytes": sum(t.nbytes or 0 for t in writes),
        "registers": 32, "local_memory_bytes": 0, "occupancy": 0.75, "stream": 7,
        "grid": (132, 1, 1), "block": (256, 1, 1),
        "launch_ns": 3200, "gap_ns": 900,
    }  # fmt: skip
    return Kernel(**{**values, **given})


def sum_abs_program(engine: str = "nsys") -> Program:
    x, y, out = tensor((2**28,), storage="x"), tensor((2**28,), storage="y"), tensor((), storage="out")
    partial = tensor((1024,), storage="partial")
    here = Location(file=FILE, line=12, function="loss")
    basis = "measured" if engine != "deviceless" else "predicted"
    abs_op = Op(id=4, name="aten.abs.default", inputs=(x,), outputs=(y,), location=here)
    sum_op = Op(id=5, name="aten.sum.default", inputs=(y,), outputs=(out,), location=here)
    eager = Pass(
        name="eager", engine=engine, steps=20, step_ns=760_000, idle_ns=6_000, ops=(abs_op, sum_op),
        kernels=(
            kernel(0, "void at::native::vectorized_elementwise_kernel<4, at::native::AbsFunctor<float>, "
                   "std::array<char*, 2ul>>(int, at::native::AbsFunctor<float>, std::array<char*, 2ul>)",
                   ops=(4,), op_names=("aten.abs.default",), reads=(x,), writes=(y,), duration_ns=489_000,
                   location=here, start_ns=1_000, time_basis=basis),
            kernel(1, "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::func_wrapper_t<"
                   "float, at::native::sum_functor<float, float, float>::operator()(at::TensorIterator&)::{lambda("
                   "float, float)#1}>, unsigned int, float, 4, 4>>(at::native::ReduceOp<float, float>)",
                   category="reduction",
                   ops=(5,), op_names=("aten.sum.default",), reads=(y,), writes=(out,), duration_ns=265_000,
                   location=here, start_ns=496_000, registers=40, time_basis=basis),
        ),
    )  # fmt: skip
    calls = (
        GeneratedCall(index=0, kind="triton", target="triton_red_fused_abs_sum_0", category="reduction",
                      aten=("aten.abs", "aten.sum"), nodes=("abs_1", "sum_1"), reads=(x,), writes=(partial,),
                      read_bytes=2**30, write_bytes=4096, location=here),
        GeneratedCall(index=1, kind="triton", target="triton_per_fused_abs_sum_1", category="persistent_reduction",
                      aten=("aten.abs", "aten.sum"), nodes=("sum_1",), reads=(partial,), writes=(out,),
                      read_bytes=4096, write_bytes=4, location=here),
    )  # fmt: skip
    graph = CompiledGraph(
        id="0/0/inference", compile_id="0/0", kind="inference", kernels=(), calls=calls,
        source="# kernel path: /tmp/x.py\n@triton.jit\ndef triton_red_fused_abs_sum_0(in_ptr0, out_ptr0):\n    pass\n",
    )  # fmt: skip
    compiled = Pass(
        name="compiled", engine=engine, steps=20, step_ns=275_000, idle_ns=4_000,
        kernels=(
            kernel(0, "triton_red_fused_abs_sum_0", category="reduction", ops=(), op_names=("aten.abs", "aten.sum"),
                   reads=(x,), writes=(partial,), duration_ns=262_000, location=here, start_ns=1_000,
                   graph="0/0/inference", call=0, registers=31, time_basis=basis),
            kernel(1, "triton_per_fused_abs_sum_1", category="persistent_reduction", op_names=("aten.abs", "aten.sum"),
                   reads=(partial,), writes=(out,), duration_ns=2_300, location=here, start_ns=265_000,
                   graph="0/0/inference", call=1, registers=18, time_basis=basis),
        ),
        log=InductorLog(graphs=(graph,), decisions=(
            FusionDecision(graph="0/0/inference", first="op0", second="op1", reason="nodes numel/rnumel incompatibility"
                           " (1, 1024), (1024, 262144)", cause="split_reduction", first_nodes=("sum_1",),
                           second_nodes=("sum_1",), location=here, shared_bytes=4096),
        )),
    )  # fmt: skip
    return Program(
        engine=engine, device=H200, passes=(eager, compiled),
        environment={"python": "3.11.9", "torch": "2.11.0", "triton": "3.6.0", "driver": "570.86", "nsys": "2023.4.1",
                     "command": ["python", FILE], "cwd": "/home/ada/work", "hostname": "gpu-box-7", "user": "ada"},
    )  # fmt: skip


def sum_abs_findings() -> list[Finding]:
    here = Location(file=FILE, line=12, function="loss")
    return [
        Finding(
            rule="FA107", pass_name="compiled", severity="info", message="torch.compile already fuses abs into sum.",
            ops=("aten.abs", "aten.sum"), kernel_ids=(0,), location=here, remedy="Nothing to do by hand.",
        ),
        Finding(
            rule="FA102", pass_name="eager", severity="warning",
            message="abs writes 1.07 GB that only sum reads: one kernel can read x once and reduce it.",
            ops=("aten.abs.default", "aten.sum.default"), op_ids=(4, 5), kernel_ids=(0, 1), location=here,
            avoidable_bytes=2**31, saving_ns=503_000, basis="modelled",
            reason="Eager runs one kernel an op; the intermediate goes through global memory.",
            remedy="Compile loss with torch.compile, or call torch.linalg.vector_norm(x, 1).",
            evidence={"intermediate_bytes": 2**30, "minimum_bytes": 2**30 + 4, "chain_bytes": 3 * 2**30 + 4},
            verification=Verification(
                verdict="confirmed", reason="fused reference is 2.84x faster at this shape",
                reference="sum_of_map", baseline_ns=754_000, reference_ns=265_000, compile_ns=266_000,
                cuda_compute_ns=268_000, cuda_graph_ns=751_000, saving_ns=489_000, max_error=1e-7,
            ),
        ),
    ]  # fmt: skip


def sum_abs(engine: str = "nsys") -> Document:
    findings = sum_abs_findings()
    if engine == "deviceless":
        from dataclasses import replace

        findings = [replace(f, verification=None, basis="predicted" if f.saving_ns else None) for f in findings]
    return build_document(
        sum_abs_program(engine), findings, exit_code=0, sources=SOURCES, version="0.1.0",
        created="2026-11-29T14:00:00+00:00",
        notes=[Note(kind="match-rate", text="100% of 4 kernels matched to ops")],
    )  # fmt: skip


HOSTILE = '<script>window.pwned=1</script><img src=x onerror="window.pwned=1">\'"&{{7*7}}${1}</script>\x1b[31m\u202e'


def hostile() -> Document:
    """Every text that a capture carries holds markup, escapes of a terminal and template syntax."""
    t = Tensor.contiguous((4,), HOSTILE, HOSTILE)
    here = Location(file=f"/tmp/{HOSTILE}.py", line=3, function=HOSTILE)
    op = Op(id=1, name=f"aten.{HOSTILE}", inputs=(t,), outputs=(t,), location=here, region=HOSTILE)
    first = kernel(0, HOSTILE, ops=(1,), op_names=(HOSTILE,), reads=(t,), writes=(t,), location=here, graph=HOSTILE,
                   read_bytes=16, write_bytes=16, region=HOSTILE, start_ns=0)  # fmt: skip
    second = kernel(1, HOSTILE + "2", op_names=(HOSTILE,), reads=(t,), location=here, read_bytes=None, start_ns=2000)
    graph = CompiledGraph(
        id=HOSTILE, compile_id=HOSTILE, kind="forward", kernels=(), source=HOSTILE * 3,
        calls=(GeneratedCall(index=0, kind="triton", target=HOSTILE, category="pointwise", aten=(HOSTILE,),
                             nodes=(HOSTILE,), location=here),),
    )  # fmt: skip
    log = InductorLog(
        graphs=(graph,),
        decisions=(FusionDecision(graph=HOSTILE, first=HOSTILE, second=HOSTILE, reason=HOSTILE, cause=HOSTILE,
                                  location=here),),
        breaks=(GraphBreak(location=here, reason=HOSTILE, compile_id=HOSTILE),),
        recompiles=(Recompile(location=here, function=HOSTILE, guard=HOSTILE),),
        cudagraph_skips=(CudagraphSkip(reason=HOSTILE, location=here),),
    )  # fmt: skip
    program = Program(
        engine="nsys", device=Device(name=HOSTILE, peak_bandwidth_bytes_per_s=10**12),
        passes=(Pass(name="compiled", engine="nsys", kernels=(first, second), ops=(op,), steps=2, log=log),),
        environment={HOSTILE: HOSTILE, "torch": HOSTILE},
    )  # fmt: skip
    finding = Finding(
        rule="FA101", pass_name="compiled", severity="warning", message=HOSTILE, ops=(HOSTILE,), op_ids=(1,),
        kernel_ids=(0, 1), location=here, avoidable_bytes=16, reason=HOSTILE, remedy=HOSTILE,
        evidence={HOSTILE: HOSTILE},
        graph=HOSTILE, verification=Verification(verdict="inconclusive", reason=HOSTILE, details={HOSTILE: HOSTILE}),
    )  # fmt: skip
    return build_document(
        program, [finding], exit_code=1, sources={here.file: {"3": HOSTILE, "4": HOSTILE}}, version=HOSTILE,
        notes=[Note(kind=HOSTILE, text=HOSTILE, remedy=HOSTILE)],
    )  # fmt: skip
