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


BLOCK_FILE = "/home/ada/work/block.py"
BLOCK_SOURCES = {
    BLOCK_FILE: {
        str(n): text
        for n, text in enumerate(
            ["class Block(nn.Module):", "    def forward(self, x):", "        h = self.norm1(x)",
             "        q, k, v = self.qkv(h).chunk(3, dim=-1)", "        a = F.scaled_dot_product_attention(q, k, v)",
             "        x = x + self.proj(a)", "        h = F.gelu(self.fc1(self.norm2(x)))",
             "        return x + self.fc2(h)",
             "", "loss = block(x).float().pow(2).mean()", "loss.backward()", "optimizer.step()"], start=20,
        )
    }
}  # fmt: skip


def block() -> Document:
    """A transformer block in eager: matmuls, attention, elementwise, and an optimizer loop of two kernels x 12."""
    hidden = tensor((8, 1024, 1024), "bfloat16", "h0")
    wide = tensor((8, 1024, 4096), "bfloat16", "w0")
    at = 0
    kernels: list[Kernel] = []
    ops: list[Op] = []

    def add(
        op: str,
        name: str,
        category: str,
        reads: tuple[Tensor, ...],
        writes: tuple[Tensor, ...],
        ns: int,
        line: int,
        phase: str = "forward",
    ) -> None:
        nonlocal at
        where = Location(file=BLOCK_FILE, line=line, function="forward")
        number = len(kernels)
        ops.append(Op(id=number, name=f"aten.{op}", inputs=reads, outputs=writes, location=where))
        kernels.append(
            kernel(
                number,
                name,
                category=category,
                ops=(number,),
                op_names=(f"aten.{op}",),
                reads=reads,
                writes=writes,
                duration_ns=ns,
                start_ns=at,
                location=where,
                phase=phase,
                registers=168 if category == "matmul" else 30,
                local_memory_bytes=64 if op == "native_layer_norm.default" else 0,
            )
        )
        at += ns + 1400

    def new(like: Tensor, name: str) -> Tensor:
        return tensor(like.shape, like.dtype, name)

    elementwise = "void at::native::vectorized_elementwise_kernel<8, at::native::{}, std::array<char*, 3ul>>(int)"
    gemm = "nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_TNT"
    add(
        "native_layer_norm.default",
        "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<c10::BFloat16>",
        "norm",
        (hidden,),
        (new(hidden, "h1"),),
        21_000,
        22,
    )
    add("addmm.default", gemm, "matmul", (new(hidden, "h1"),), (new(wide, "w1"),), 122_000, 23)
    add(
        "_scaled_dot_product_cudnn_attention.default",
        "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16",
        "attention",
        (new(wide, "w1"),),
        (new(hidden, "h2"),),
        96_000,
        24,
    )
    add("addmm.default", gemm, "matmul", (new(hidden, "h2"),), (new(hidden, "h3"),), 40_000, 25)
    add(
        "add.Tensor",
        elementwise.format("CUDAFunctor_add<c10::BFloat16>"),
        "pointwise",
        (hidden, new(hidden, "h3")),
        (new(hidden, "h4"),),
        17_000,
        25,
    )
    add("addmm.default", gemm, "matmul", (new(hidden, "h4"),), (new(wide, "w2"),), 121_000, 26)
    add(
        "gelu.default",
        elementwise.format("GeluCUDAKernelImpl"),
        "pointwise",
        (new(wide, "w2"),),
        (new(wide, "w3"),),
        41_000,
        26,
    )
    add(
        "mul.Tensor",
        elementwise.format("MulFunctor<float>"),
        "pointwise",
        (new(wide, "w3"),),
        (new(wide, "w4"),),
        40_000,
        26,
    )
    add("addmm.default", gemm, "matmul", (new(wide, "w4"),), (new(hidden, "h5"),), 118_000, 27)
    add(
        "add.Tensor",
        elementwise.format("CUDAFunctor_add<c10::BFloat16>"),
        "pointwise",
        (new(hidden, "h4"), new(hidden, "h5")),
        (new(hidden, "h6"),),
        17_000,
        27,
    )
    weight = tensor((1024, 1024), "float32", "p")
    for _ in range(12):
        add(
            "mul_.Tensor",
            elementwise.format("MulFunctor<float>"),
            "pointwise",
            (weight,),
            (weight,),
            3_100,
            31,
            "optimizer",
        )
        add(
            "addcdiv_.default",
            elementwise.format("addcdiv_cuda_scalar"),
            "pointwise",
            (weight,),
            (weight,),
            5_900,
            31,
            "optimizer",
        )
    p = Pass(
        name="eager",
        engine="nsys",
        steps=8,
        kernels=tuple(kernels),
        ops=tuple(ops),
        step_ns=at,
        idle_ns=1400 * 34,
        unmatched_kernels=1,
    )
    findings = [
        Finding(
            rule="FA101",
            pass_name="eager",
            severity="warning",
            message="gelu and mul run as two kernels: 134 MB go out to memory and back between them.",
            ops=("aten.gelu.default", "aten.mul.Tensor"),
            op_ids=(6, 7),
            kernel_ids=(6, 7),
            location=Location(file=BLOCK_FILE, line=26, function="forward"),
            avoidable_bytes=134_217_728,
            saving_ns=32_000,
            basis="modelled",
            remedy="Compile Block.forward.",
            reason="Eager runs one kernel an op.",
        ),
        Finding(
            rule="FA106",
            pass_name="eager",
            severity="warning",
            message="12 parameters are updated one by one: 24 launches that a foreach update does in 2.",
            ops=("aten.mul_.Tensor", "aten.addcdiv_.default") * 12,
            op_ids=tuple(range(10, 34)),
            kernel_ids=tuple(range(10, 34)),
            location=Location(file=BLOCK_FILE, line=31),
            saving_ns=30_800,
            basis="modelled",
            remedy="Pass fused=True (or foreach=True) to the optimizer.",
            confidence="medium",
        ),
        Finding(
            rule="FA201",
            pass_name="eager",
            severity="info",
            message="The GPU waits 6% of the step between short kernels.",
            saving_ns=40_000,
            basis="modelled",
            remedy="Try mode='reduce-overhead'.",
            confidence="low",
            verification=Verification(
                verdict="refuted",
                reason="a CUDA graph of the step is not faster here",
                baseline_ns=790_000,
                cuda_graph_ns=792_000,
            ),
        ),
    ]
    program = Program(engine="nsys", device=H200, passes=(p,), environment={"torch": "2.11.0"})
    return build_document(
        program,
        findings,
        exit_code=0,
        sources=BLOCK_SOURCES,
        version="0.1.0",
        notes=[
            Note(kind="match-rate", text="97% of 34 kernels matched to ops", pass_name="eager"),
            Note(kind="missing-pass", text="no compiled pass", remedy="run with --passes eager,compiled"),
        ],
    )


def many(count: int = 50_000, kinds: int = 3_000) -> Document:
    """A step of ``count`` launches of ``kinds`` kinds, with 400 findings: built as a document, for its size."""
    first = block()
    template, op = first["passes"][0]["kernels"][6], first["passes"][0]["ops"][6]
    kernels, ops, at = [], [], 0
    for i in range(count):
        kind = (i * 7919) % kinds
        shape = [8, 16 + kind % 977, 64 * (1 + kind % 31)]
        storage = {
            "shape": shape,
            "strides": [shape[1] * shape[2], shape[2], 1],
            "dtype": "bfloat16",
            "storage": f"s{i}",
        }
        width = 2_000 + (i * 104_729) % 40_000
        location = {
            "file": f"/home/ada/work/model/layer_{kind % 40}.py",
            "line": 10 + kind % 300,
            "function": "forward",
        }
        size = shape[0] * shape[1] * shape[2] * 4
        name = f"void at::native::vectorized_elementwise_kernel<8, at::native::Functor_{kind}<c10::BFloat16>>(int)"
        kernels.append(
            {
                **template,
                "id": i,
                "name": name,
                "op_ids": [i],
                "reads": [storage],
                "writes": [storage],
                "shapes": [shape, shape],
                "start_ns": at,
                "duration_ns": width,
                "location": location,
                "global_bytes": size,
                "read_bytes": size // 2,
                "write_bytes": size // 2,
            }
        )
        ops.append({**op, "id": i, "inputs": [storage], "outputs": [storage], "location": location})
        at += width + 700
    finding = first["findings"][0]
    findings = [
        {
            **finding,
            "op_ids": list(range(i * 100, i * 100 + 5)),
            "kernels": list(range(i * 100, i * 100 + 5)),
            "location": kernels[i * 100]["location"],
            "saving_ns": 1000 * (400 - i),
            "fingerprint": f"{i:016x}",
        }
        for i in range(min(400, count // 100))
    ]
    row = {
        **first["passes"][0]["per_step"],
        "launches": count,
        "distinct_kernels": kinds,
        "gpu_time_ns": sum(k["duration_ns"] for k in kernels),
        "global_bytes": sum(k["global_bytes"] for k in kernels),
    }
    p = {**first["passes"][0], "kernels": kernels, "ops": ops, "edges": [], "per_step": row}
    return {**first, "passes": [p, {**p, "name": "compiled"}], "findings": findings}


def with_clean() -> Document:
    """``sum_abs`` with the passes of a real run: the recorder's eager pass has a long gap, the clean ones do not."""
    from dataclasses import replace

    program = sum_abs_program()
    eager, compiled = program.passes
    late = replace(eager.kernels[1], start_ns=2_000_000)
    slowed = replace(eager, kernels=(eager.kernels[0], late), step_ns=2_265_000, idle_ns=1_511_000)
    bare = tuple(replace(k, ops=(), op_names=(), location=None) for k in eager.kernels)
    clean_eager = replace(eager, name="clean_eager", ops=(), kernels=bare)  # type: ignore[arg-type]
    clean = replace(compiled, name="clean", ops=())
    program = replace(program, passes=(slowed, compiled, clean, clean_eager))
    return build_document(program, sum_abs_findings(), exit_code=0, sources=SOURCES, version="0.1.0")
