"""Logs as TORCH_LOGS writes them: real ones, cut ones, interleaved ones, planted ones."""

from __future__ import annotations

import gzip
import json
import time
from pathlib import Path

import pytest

from fusionaudit.errors import AuditError
from fusionaudit.inductor.fusion_log import CAUSES, cause_of
from fusionaudit.inductor.log_lines import parse_lines
from fusionaudit.inductor.model import CompiledGraph, InductorLog
from fusionaudit.inductor.output_code import parse_output_code, resolve
from fusionaudit.inductor.read import parse_log, read_inductor

DATA = Path(__file__).parent / "data" / "inductor"
TEXTUAL = ("extern_kernels", "torch.ops")


def log(name: str) -> InductorLog:
    return read_inductor(DATA / f"{name}.log.gz")


def plain(name: str) -> str:
    return gzip.decompress((DATA / f"{name}.log.gz").read_bytes()).decode()


def graph(name: str, kind: str) -> CompiledGraph:
    return next(g for g in log(name).graphs if g.kind == kind)


@pytest.mark.parametrize(("name", "expected"), json.loads((DATA / "expected_calls.json").read_text()).items())
def test_calls_are_those_that_ran(name: str, expected: list[str]) -> None:
    targets = [
        c.target for g in log(name).graphs for c in g.calls if c.kind == "triton" or c.target.startswith(TEXTUAL)
    ]
    if name == "case37":  # its list is in the order of the text; a partition's code stands before the op between two
        assert sorted(targets) == sorted(expected)
        assert targets[1] == "torch.ops.aten.nonzero.default"
    else:
        assert targets == expected


def test_each_launch_of_a_reused_kernel_has_its_own_line() -> None:
    calls = [c for c in log("relu_layers").graphs[0].calls if c.kind == "triton"]
    assert {c.target for c in calls} == {"triton_poi_fused_addmm_relu_0"}
    assert [c.written for c in calls] == [("buf1",), ("buf3",), ("buf5",)], "the matmuls' buffers by other names"
    assert [c.location.line for c in calls if c.location is not None] == [10, 11, 12]
    relus = [sorted(n for n in c.nodes if n.startswith("relu")) for c in calls]
    assert relus == [["relu"], ["relu_1"], ["relu_2"]]


def test_sum_abs_bytes_lines_and_reason() -> None:
    read = log("sum_abs")
    first, second = read.graphs[0].calls
    assert (first.read_bytes, first.write_bytes) == (4 << 28, 8192)
    assert (second.read_bytes, second.write_bytes) == (8192, 4)
    assert (first.numels, second.numels) == ((2048, 131072), (1, 2048))
    assert first.location is not None
    assert (first.location.file, first.location.line) == ("/home/user/sum_abs_nvtx.py", 4)
    # The second kernel's comment lists abs as well; it only adds the partial sums.
    assert (first.nodes, second.nodes, second.aten) == (("abs_1", "sum_1"), ("sum_1",), ("aten.sum",))
    assert [k.split_reduction for k in read.graphs[0].kernels] == [True, False]
    (decision,) = read.decisions
    assert (decision.cause, decision.shared_bytes) == ("split-reduction", 8192)
    assert decision.location == first.location
    assert read.notes == ()
    assert read.cache_hits == 0


def test_block_bytes() -> None:
    start = time.perf_counter()
    read = log("block")
    assert time.perf_counter() - start < 4  # 0.6 s on an idle core of 2025
    assert [g.id for g in read.graphs] == ["0/0/forward", "0/0/backward"]
    triton = [c for g in read.graphs for c in g.calls if c.kind == "triton"]
    assert all(c.read_bytes is not None and c.write_bytes is not None for c in triton)
    norm = read.graphs[0].calls[0]
    # 8192 rows of 1024 bf16 and two weights in; the same rows and two float32 a row out.
    assert norm.read_bytes == 8192 * 1024 * 2 + 2 * 1024 * 2
    assert norm.write_bytes == 8192 * 1024 * 2 + 2 * 8192 * 4
    targets = [c.target for c in read.graphs[1].calls]
    at = targets.index("aten.sum.dim_IntList")
    assert targets[at + 1] == "aten._to_copy.default"  # the workspace of a mixed-order reduction is summed by aten
    unknown = [c.target for g in read.graphs for c in g.calls if c.read_bytes is None or c.write_bytes is None]
    assert unknown == []


def test_decisions_are_few_and_share_data() -> None:
    read = log("block")
    pairs = [(d.graph, d.first, d.second, d.cause) for d in read.decisions]
    assert len(pairs) == len(set(pairs)) < 40
    assert all(d.cause in CAUSES and d.cause != "no-shared-data" and d.shared_bytes != 0 for d in read.decisions)
    assert all(d.first_nodes and d.second_nodes for d in read.decisions if d.cause == "split-reduction")


def test_graph_and_trace_together() -> None:
    trace = DATA / "dedicated_log_torch_trace_sum_abs.log.gz"
    both = read_inductor(DATA / "sum_abs_n24.log.gz", trace)
    assert both.graphs[0].cache_key == "f62btuork5uyzu37oteh5fueeivcdj4tsov4bf24hilvbzxjwvq5"
    alone = read_inductor(None, trace)
    assert [c.target for c in alone.graphs[0].calls] == [c.target for c in both.graphs[0].calls]
    assert alone.graphs[0].calls[0].location == both.graphs[0].calls[0].location
    assert both.graphs[0].nodes[0].op == "aten.abs.default"


def test_symbols_resolve_to_other_sizes() -> None:
    read = log("case38")
    dynamic = next(g for g in read.graphs if g.symbols)
    (name,) = dynamic.symbols
    hint = dynamic.symbols[name]
    other = resolve(dynamic, {name: 2 * hint})
    gelu = [next(c for c in g.calls if "gelu" in c.target) for g in (dynamic, other)]
    assert gelu[1].write_bytes == 2 * (gelu[0].write_bytes or 0)
    assert [c.target for c in other.calls] == [c.target for c in dynamic.calls]
    assert resolve(dynamic, {"s999": 4}) is dynamic


def test_recompiles_breaks_and_cudagraphs() -> None:
    (again,) = log("case38").recompiles
    assert "size mismatch at index 1. expected 37, actual 52" in again.guard
    assert [s.reason for s in log("case38").cudagraph_skips] == ["recorded again for 4 different input sizes"]
    (broken,) = log("case41").breaks
    assert broken.reason == "Call to `torch._dynamo.graph_break()`"
    assert broken.location is not None
    assert broken.location.file.endswith("case41.py")
    assert [s.reason for s in log("case37").cudagraph_skips] == ["unbacked binding ops: aten.nonzero.default"]


def test_why_a_function_was_given_up_whole() -> None:
    head = "V1130 00:52:17.097000 9019 torch/_dynamo/symbolic_convert.py:5124] [0/0] [__graph_breaks] "
    texts = (
        "Graph break in user code at /home/u/moe.py:35",
        "Graph Break Reason: Failed to handle graph break gracefully. Skipping the function and falling back to eager. "
        "Graph break encountered:",
        "",
        "Dynamic shape operator",
        "  Explanation: Operator `aten.nonzero.default`'s output shape depends on input Tensor data.",
    )
    (broken,) = parse_log("".join(f"{head}{text}\n" for text in texts)).breaks
    what = "Dynamic shape operator: Operator `aten.nonzero.default`'s output shape depends on input Tensor data"
    assert broken.reason == f"{what} (so the whole function runs eagerly)"


def test_the_limit_at_which_dynamo_gives_up() -> None:
    """Three frames: one that reached its limit (torch 2.13 and before 2.8), one that did not."""

    def again(frame: int) -> str:
        where = "V1129 23:02:17.29300{0} 72 torch/_dynamo/guards.py:5396] [{0}/1] [__recompiles] "
        told = ("Recompiling function f{0} in /home/u/s.py:2{0}", "    - {0}/0: s.k == 0  # s.k+=1")
        return "\n".join((where + line).format(frame) for line in told)

    gave_up = "W1129 23:23:28.551000 72 torch/_dynamo/convert_frame.py:1994] [{}/8] torch._dynamo hit config.{} (8)"
    text = [again(n) for n in range(3)]
    text += [gave_up.format(0, "recompile_limit"), gave_up.format(1, "cache_size_limit")]
    read = parse_log("\n".join(text), name="limit")
    assert [(r.function, r.limit) for r in read.recompiles] == [("f0", 8), ("f1", 8), ("f2", None)]


def test_a_trace_tells_the_limit_too(tmp_path: Path) -> None:
    def line(header: dict[str, object], payload: str = "") -> str:
        told = json.dumps({**header, "frame_id": 0})
        body = "".join("\t" + p + "\n" for p in payload.split("\n")) if payload else ""
        return f"V1129 23:47:56.825000 20341 torch/_dynamo/utils.py:2009] {told}\n{body}"

    named = {"compile_id": "0/7", "co_filename": "/home/u/s.py", "co_firstlineno": 5, "co_name": "f"}
    gave_up = {"compile_id": "0/8", "co_filename": None, "fail_reason": "Dynamo recompile limit exceeded\n  too many"}
    reasons = {"artifact": {"name": "recompile_reasons", "encoding": "json"}}
    text = line({"compilation_metrics": named, "frame_compile_id": 7})
    for number in (7, 8):
        text += line({**reasons, "frame_compile_id": number}, json.dumps([f"0/{number - 1}: s.k == {number - 1}"]))
    text += line({"compilation_metrics": gave_up, "frame_compile_id": 8})
    (tmp_path / "trace.log").write_text(text)
    read = read_inductor(None, tmp_path)
    assert [(r.function, r.location and r.location.line, r.limit) for r in read.recompiles] == [("f", 5, 8)] * 2


def test_host_work_is_no_launch() -> None:
    kinds = [(c.target, c.kind, c.category) for g in log("case35").graphs for c in g.calls]
    assert kinds[0][:2] == ("cpp_fused_0", "cpu")
    assert kinds[1] == ("copy_", "copy", "memcpy")


def test_data_dependent_size_is_unknown_and_said() -> None:
    read = log("case37")
    assert [c.read_bytes is None for c in read.graphs[0].calls] == [False, True, True]
    (note,) = read.notes
    assert note.kind == "unknown-bytes"
    assert "nonzero" in note.text


def test_cut_in_half() -> None:
    text = plain("block")
    at = text.index("triton_red_fused_sum_view_7.run(")
    read = parse_log(text[:at], name="half")
    assert [g.id for g in read.graphs] == ["0/0/forward"]
    assert any(n.kind == "cut-off" and n.blocks for n in read.notes)
    for size in range(0, len(text), len(text) // 23):
        parse_log(text[:size])


def test_half_a_gzip(tmp_path: Path) -> None:
    whole = (DATA / "block.log.gz").read_bytes()
    (tmp_path / "half.log.gz").write_bytes(whole[: len(whole) // 2])
    assert any(n.kind == "cut-off" for n in read_inductor(tmp_path / "half.log.gz").notes)


def test_no_log(tmp_path: Path) -> None:
    with pytest.raises(AuditError, match="cannot read"):
        read_inductor(tmp_path / "none.txt")
    (tmp_path / "binary").write_bytes(b"SQLite format 3\x00\x00")
    with pytest.raises(AuditError, match="binary"):
        read_inductor(tmp_path / "binary")
    assert [n.kind for n in parse_log("hello\nworld\n").notes] == ["no-log"]
    assert parse_log("").notes == ()
    (tmp_path / "empty").mkdir()
    with pytest.raises(AuditError, match="no structured"):
        read_inductor(None, tmp_path / "empty")


def test_interleaved_and_ranked_lines() -> None:
    lines = plain("sum_abs").split("\n")
    noise: list[str] = []
    for number, line in enumerate(lines):
        noise.append(f"[rank0]:{line}" if line else line)
        if number % 7 == 0:
            noise += [
                "epoch 3 loss 0.1",
                "V1129 11:32:24.641001 551 torch/_dynamo/guards.py:1] [1/0] [__guards] GUARDS:",
            ]
    read = parse_log("\n".join(noise))
    assert [c.read_bytes for c in read.graphs[0].calls] == [4 << 28, 8192]


def test_prefixes() -> None:
    texts = {
        "V1129 11:32:24.063000 550 torch/_inductor/scheduler.py:1] [0/0] [__fusion] text": ("0/0", "fusion", "text"),
        "V1129 11:32:24.063000 550 torch/x.py:1] [0/1_1] [__output_code] ": ("0/1", "output_code", ""),
        "V1129 11:32:24.063000 550 torch/x.py:1] [!1/0] [__schedule]  two": ("!1/0", "schedule", " two"),
        "I1129 11:32:24.063000 550 torch/x.py:1] [__cudagraphs] [0/0] Running": (None, "cudagraphs", "[0/0] Running"),
        "W1129 11:32:24.063000 550 torch/x.py:1] plain": (None, None, "plain"),
        "V1129 11:32:24.063000 550 torch/x.py:1] [0/0/1] [__fusion]": ("0/0/1", "fusion", ""),
    }
    for text, expected in texts.items():
        (line,) = parse_lines(text)
        assert (line.compile_id, line.artifact, line.text) == expected


def test_warm_cache_cannot_judge() -> None:
    text = "\n".join(line for line in plain("sum_abs").split("\n") if "[__fusion]" not in line)
    cached = text.replace("_inductor/graph.py:2552]", "_inductor/codecache.py:1347]") + "\n"
    read = parse_log(cached)
    assert read.cache_hits == 1
    assert [(n.kind, n.blocks) for n in read.notes] == [("warm-cache", True)]
    # The same code again in a process that compiled it: its decisions are in the log.
    assert parse_log(plain("sum_abs") + cached).cache_hits == 0
    # Decisions of other graphs say nothing about the cached one.
    assert [n.kind for n in parse_log(plain("block") + cached).notes if n.blocks] == ["warm-cache"]


def test_a_trace_of_a_warm_cache_cannot_judge(tmp_path: Path) -> None:
    miss = gzip.decompress((DATA / "dedicated_log_torch_trace_sum_abs.log.gz").read_bytes()).decode()
    hit = miss.replace("fx_graph_cache_miss", "fx_graph_cache_hit")
    for name, text, hits in (("cold", miss, 0), ("warm", hit, 1), ("again", miss + hit, 0)):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "trace.log").write_text(text)
        read = read_inductor(None, folder)
        assert read.cache_hits == hits
        assert [(n.kind, n.blocks) for n in read.notes if n.kind == "warm-cache"] == [("warm-cache", True)] * hits


def test_nothing_planted_runs(tmp_path: Path) -> None:
    """Code in every place where an evaluator would run it: module, call function, sizes, kernel, comment."""
    witness = tmp_path / "ran"
    planted = f"__import__('pathlib').Path({str(witness)!r}).touch()"
    kernel = f"import os\n{planted}\n@triton_heuristics.pointwise(size_hints={planted})\n@triton.jit\n"
    kernel += f"def k(in_ptr0, xnumel):\n    xnumel = 4\n    {planted}\n    tl.load(in_ptr0 + ({planted}), None)\n"
    code = f"""# AOT ID: ['0_inference']
{planted}
k = async_compile.triton('k', '''{kernel}''', device_str='cuda')
def call(args):
    arg0_1, = args
    {planted}
    assert_size_stride(arg0_1, ({planted},), (1,))
    buf0 = empty_strided_cuda(({planted}, 4), (4, 1), torch.float32)
    k.run(arg0_1, {planted}, stream={planted})
    eval({planted!r})
    return (buf0, {planted})
def get_args():
    arg0_1 = {planted}
    return [arg0_1]
"""
    found = parse_output_code(code, compile_id="0/0", symbols={"s0": 3})
    assert [c.target for c in found.calls] == ["k"]
    prefix = "V1129 11:32:24.641000 550 torch/_inductor/graph.py:2552] [0/0] [__output_code] "
    lines = ["Output code: ", *code.split("\n")]
    read = parse_log("".join(f"{prefix}{line}\n" for line in lines))
    assert [g.id for g in read.graphs] == ["0/0/inference"]
    assert not witness.exists()


def test_causes_cover_what_inductor_says() -> None:
    """Strings of torch 2.11 to 2.14 (scheduler.py, choices.py, simd.py)."""
    expected = {
        "numel/rnumel mismatch (reduce) (2048, 1), (131072, 2048)": "iteration-mismatch",
        "nodes numel incompatibility": "iteration-mismatch",
        "invalid tiling for reduction": "memory-order",
        "tiling mismatch (1, 2, 3)": "memory-order",
        "intermediate nodes between node1 & node2": "dependency",
        "node1 must go before node2": "dependency",
        "will create cycle": "dependency",
        "no shared data": "no-shared-data",
        "no shared data due to indexing mismatch": "index-mismatch",
        "memory deps did not match": "index-mismatch",
        "score_fusion_memory_threshold": "low-score",
        "exceeds max fusion": "size-limit",
        "register spilling of the fused kernel": "size-limit",
        "fusion_prevent_too_many_reads_and_writes": "size-limit",
        "Fusion will increase peak memory": "peak-memory",
        "Nodes are too far away. Fusing them may increase peak memory.": "peak-memory",
        "candidate producer is not dep of any foreach consumer": "foreach",
        "Split scan cannot fuse with reductions": "scan",
        "prologue fusion turned off": "template",
        "template epilogue not satisfied": "template",
        "epilogue reads from buffers other than the mutated output": "template",
        "node1 is extern but not a triton kernel": "extern-barrier",
        "node2 is extern or nop": "extern-barrier",
        "device mismatch (cuda:0 vs cpu)": "device",
        "fusion for buffer explicit disabled": "user-setting",
        "grouped node must not be fused with other nodes": "user-setting",
        "node1 and node2 uses different buf layouts": "memory-order",
        "reduction fusion does not preserve strict sum ordering": "memory-order",
        "buf4 is a reduction which is not yet supported by EVT": "template",
        "buf4's size: (4, 8) differs from buf2's size: (8, 4)": "template",
        "something new": "other",
    }
    assert {reason: cause_of(reason) for reason in expected} == expected
    assert cause_of("numel/rnumel mismatch (reduce)", same_reduction=True) == "split-reduction"


def test_inputs_that_share_a_storage() -> None:
    """torch 2.13 writes hints of aliased inputs as views of one storage; their dtype is the storage's."""
    code = """
def call(args):
    select, = args
    assert_size_stride(select, (4, 16), (192, 1), 'input')
    buf0 = torch.ops.aten._scaled_dot_product_efficient_attention.default(select, select, select)
    buf1 = buf0[0]
    assert_size_stride(buf1, (4, 16), (16, 1), 'op')
    return (buf1, )
def get_args():
    _shared_storage_9 = rand_strided((768, ), (1, ), device='cuda:0', dtype=torch.bfloat16)
    select = torch.as_strided(_shared_storage_9, (4, 16), (192, 1))
    return [select]
"""
    (call,) = parse_output_code(code).calls
    assert (call.read_bytes, call.write_bytes) == (4 * 16 * 2, 4 * 16 * 2)


def test_results_of_torch_2_14_say_what_they_are() -> None:
    code = """
def call(args):
    arg0_1, arg1_1 = args
    assert_size_stride(arg0_1, (2, 3, 16, 16), (768, 256, 16, 1))
    buf0 = extern_kernels.convolution(arg0_1, arg1_1, stride=(1, 1), bias=None)
    assert_tensor_metadata(buf0, (2, 8, 16, 16), (2048, 256, 16, 1), torch.float32, 'torch.ops.aten.convolution')
    return (buf0, )
def get_args():
    arg0_1 = rand_strided((2, 3, 16, 16), (768, 256, 16, 1), device='cuda:0', dtype=torch.float32)
    arg1_1 = rand_strided((8, 3, 3, 3), (27, 9, 3, 1), device='cuda:0', dtype=torch.float32)
    return [arg0_1, arg1_1]
"""
    (call,) = parse_output_code(code).calls
    assert [(t.shape, t.dtype) for t in call.writes] == [((2, 8, 16, 16), "float32")]
    assert call.write_bytes == 2 * 8 * 16 * 16 * 4


def test_what_an_index_put_of_a_graph_writes_over() -> None:
    """Five rows of a hundred: the target is not read, and not written whole."""
    code = """
def call(args):
    x, i, v = args
    assert_size_stride(x, (100, 64), (64, 1))
    assert_size_stride(i, (5, ), (1, ))
    assert_size_stride(v, (5, 64), (64, 1))
    aten.index_put_(x, [i], v, False)
    return (x, )
def get_args():
    x = rand_strided((100, 64), (64, 1), device='cuda:0', dtype=torch.float32)
    i = rand_strided((5, ), (1, ), device='cuda:0', dtype=torch.int64)
    v = rand_strided((5, 64), (64, 1), device='cuda:0', dtype=torch.float32)
    return [x, i, v]
"""
    (call,) = parse_output_code(code).calls
    assert (call.read_bytes, call.write_bytes) == (5 * 8 + 5 * 64 * 4, 5 * 64 * 4)


def test_views_of_complex_numbers_are_of_another_dtype() -> None:
    """As torch 2.13 writes it: the dtype of an extern result is in no line, and its view's is not its own."""
    code = """
k = async_compile.triton('k', '''
@triton_heuristics.pointwise(triton_meta={'signature': {'in_ptr0': '*fp32', 'out_ptr0': '*fp32', 'xnumel': 'i32'}})
@triton.jit
def k(in_ptr0, out_ptr0, xnumel, XBLOCK : tl.constexpr):
    xnumel = 128
    x0 = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)[:]
    tmp0 = tl.load(in_ptr0 + (x0), None)
    tl.store(out_ptr0 + (x0), tmp0, None)
''', device_str='cuda')
def call(args):
    arg0_1, arg1_1 = args
    assert_size_stride(arg0_1, (4, 16, 2), (32, 2, 1))
    buf0 = torch.ops.aten.view_as_complex.default(arg0_1)
    assert_size_stride(buf0, (4, 16), (16, 1), 'op')
    buf1 = torch.ops.aten.mul.Tensor(buf0, arg1_1)
    buf2 = buf1
    assert_size_stride(buf2, (4, 16), (16, 1), 'op')
    buf3 = torch.ops.aten.view_as_real.default(buf2)
    assert_size_stride(buf3, (4, 16, 2), (32, 2, 1), 'op')
    buf4 = empty_strided_cuda((4, 16, 2), (32, 2, 1), torch.float32)
    k.run(buf3, buf4, 128, stream=raw_stream0)
    return (buf4, )
def get_args():
    arg0_1 = rand_strided((4, 16, 2), (32, 2, 1), device='cuda:0', dtype=torch.float32)
    arg1_1 = rand_strided((4, 16), (16, 1), device='cuda:0', dtype=torch.complex64)
    return [arg0_1, arg1_1]
"""
    calls = [c for c in parse_output_code(code).calls if c.kind != "cpu"]
    dtypes = [([t.dtype for t in c.reads], [t.dtype for t in c.writes]) for c in calls]
    assert dtypes == [(["complex64", "complex64"], ["complex64"]), (["float32"], ["float32"])]


def test_frames_of_the_capture_are_no_lines_of_the_user() -> None:
    from fusionaudit.inductor.graph_text import parse_graph

    lines = [
        "        # File: /usr/lib/fusionaudit/capture/targets.py:330 in forward, code: return module._call_impl(x)",
        '        abs_1: "f32[4][1]cuda:0" = torch.ops.aten.abs.default(arg0_1)',
        "        # File: /home/ada/net.py:3 in forward, code: return x + 1",
        '        add: "f32[4][1]cuda:0" = torch.ops.aten.add.Tensor(abs_1, 1)',
    ]
    assert [n.location and n.location.line for n in parse_graph(lines)] == [None, 3]


def test_fragment_with_no_loads_names_its_last_op() -> None:
    from fusionaudit.inductor.fragments import parse_fragment

    text = """# Topologically Sorted Source Nodes: [h, padded], Original ATen: [aten.mul, aten.constant_pad_nd]
# Graph fragment:
#   %mul_1 : Tensor "bf16[256, 2880][2880, 1]cuda:0"[num_users=2] = call_function[target=torch.ops.aten.mul.Tensor](args = (%x, %y), kwargs = {})
#   %constant_pad_nd : Tensor "bf16[256, 3072][3072, 1]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.constant_pad_nd.default](args = (%mul_1, [0, 192], 0.0), kwargs = {})
#   return %buf2"""  # noqa: E501
    assert parse_fragment(text.split("\n")).computed() == ("constant_pad_nd",)


def test_foreach_kernels_have_their_ops() -> None:
    """They have no comment in the output code; the fusion log says what went into them."""
    calls = [c for g in log("case41").graphs for c in g.calls]
    assert [c.category for c in calls] == ["foreach", "foreach"]
    assert "aten._foreach_add" in calls[0].aten
    assert "aten._foreach_sqrt" in calls[1].aten
    assert all(c.nodes for c in calls)
    # Six 512 x 512 parameters: parameter, gradient and two moments in, and 13 scalars; three of the four out.
    assert (calls[1].read_bytes, calls[1].write_bytes) == (6 * 4 * (4 << 18) + 13 * 4, 6 * 3 * (4 << 18))
