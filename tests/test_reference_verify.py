"""Verdicts, comparisons and the verification of an audit, with measured times stood in for (no GPU)."""

from __future__ import annotations

import io
import json

import pytest
import torch
from host_emulation import HostLaunch
from reference_cases import CHAINS, record
from rich.console import Console

from fusionaudit.errors import AuditError
from fusionaudit.findings import Verification
from fusionaudit.report.document import _op
from fusionaudit.tensors import Tensor
from fusionaudit.trace.schema import Op
from fusionaudit.verify import reference
from fusionaudit.verify.audit import combine, executions, verify_audit, without
from fusionaudit.verify.bench import bench
from fusionaudit.verify.bench_all import failures, limited
from fusionaudit.verify.bench_table import render_bench
from fusionaudit.verify.candidates import Versions
from fusionaudit.verify.chain import refit, right_align
from fusionaudit.verify.check import compare, tolerance_of
from fusionaudit.verify.generated import prepare
from fusionaudit.verify.reference import Subject, draw_case, judge, make_subject, settled
from fusionaudit.verify.replay import build_replay, draw_buffers, on_device
from fusionaudit.verify.timing import Timing, summary


def timing(median: int, spread: int = 10, *, waits: bool = False) -> Timing:
    return summary([median + spread * (i - 10) / 10 for i in range(21)], waits=waits)


def document(name: str, *, rule: str = "FA101", times: int = 1) -> dict:
    ops = [_op(op) for op in record(*CHAINS[name]())]
    ids = [op["id"] for op in ops]
    finding = {
        "rule": rule, "pass": "eager", "message": "m", "ops": [op["name"] for op in ops], "op_ids": ids,
        "evidence": {"times": times}, "verification": None,
    }  # fmt: skip
    other = {**finding, "rule": "FA204", "op_ids": []}
    return json.loads(json.dumps({"passes": [{"name": "eager", "ops": ops}], "findings": [finding, other]}))


@pytest.fixture
def times(monkeypatch):
    """Stands in for the clock: set the times of the versions."""
    found = {"eager": timing(1000), "reference": timing(400)}
    monkeypatch.setattr(reference, "time_versions", lambda *_: {"cold": found, "warm": found})
    monkeypatch.setattr(reference, "make_versions", lambda *_, **__: Versions())
    return found


def test_confirmed_finding_of_an_audit(times, tmp_path):
    said = []
    out = verify_audit(document("scale_bias_relu"), progress=said.append, launch=HostLaunch(tmp_path))
    check = out["findings"][0]["verification"]
    assert check["verdict"] == "confirmed"
    assert (check["baseline_ns"], check["reference_ns"], check["saving_ns"]) == (1000, 400, 600)
    assert check["max_error"] < 1e-5
    assert check["reference"] == "elementwise"
    assert out["findings"][1]["verification"] is None
    assert said == ["verify 1 of 1: FA101 m"]


def test_refuted_finding_goes_to_the_end(times, tmp_path):
    times["reference"] = timing(1100)
    out = verify_audit(document("scale_bias_relu"), launch=HostLaunch(tmp_path))
    assert [f["rule"] for f in out["findings"]] == ["FA204", "FA101"]
    assert out["findings"][1]["verification"]["verdict"] == "refuted"
    assert "not faster" in out["findings"][1]["verification"]["reason"]


def test_wrong_reference_is_said_and_never_timed(times, tmp_path):
    launch = HostLaunch(
        tmp_path, lambda text: text.replace("y0.item[v] = narrow<float>(", "y0.item[v] = narrow<float>(1.01f * ")
    )
    check = verify_audit(document("scale_bias_relu"), launch=launch)["findings"][0]["verification"]
    assert check["verdict"] == "inconclusive"
    assert check["reason"].startswith("wrong result: output 0: relative error 1.0")
    assert check["baseline_ns"] is None


def test_compile_error_is_said(times, tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise reference.AuditError("kernel does not compile for sm_90: boom")

    monkeypatch.setattr(HostLaunch, "__call__", refuse)
    check = verify_audit(document("scale_bias_relu"), launch=HostLaunch(tmp_path))["findings"][0]["verification"]
    assert (check["verdict"], check["reason"]) == ("inconclusive", "kernel does not compile for sm_90: boom")


def test_out_of_memory_is_said(times, tmp_path, monkeypatch):
    def full(*_, **__):
        raise torch.OutOfMemoryError("full")

    monkeypatch.setattr(reference, "draw_buffers", full)
    check = verify_audit(document("scale_bias_relu"), launch=HostLaunch(tmp_path))["findings"][0]["verification"]
    assert (check["verdict"], check["reason"]) == ("inconclusive", "out of memory on this GPU")


def test_unsupported_op_is_said_and_torch_compile_still_counts(times, tmp_path):
    del times["reference"]
    times["compile"] = timing(500)
    x, y = Tensor.contiguous((8, 8), "float32", "x"), Tensor.contiguous((8, 8), "float32", "y")
    op = Op(id=0, name="aten.cumsum.default", inputs=(x,), outputs=(y,), arguments=({"tensor": 0}, 1))
    check = reference.verify_ops([op], [0], HostLaunch(tmp_path))
    assert check.verdict == "confirmed"
    assert check.reference is None
    assert "no fused form is known for aten.cumsum.default" in check.details["no_reference"]
    times.pop("compile")
    assert reference.verify_ops([op], [0], HostLaunch(tmp_path)).verdict == "inconclusive"


@pytest.mark.parametrize(
    ("name", "arguments", "why"),
    [
        ("aten.native_dropout.default", ({"tensor": 0}, 0.5, True), "what it draws was not recorded"),
        ("aten.randn_like.default", ({"tensor": 0},), "draws random numbers in a way that no kernel here does"),
        ("aten.gone.default", ({"tensor": 0},), "not an operator"),
    ],
)
def test_ops_that_cannot_be_run_again(name, arguments, why, times, tmp_path):
    x, y = Tensor.contiguous((8,), "float32", "x"), Tensor.contiguous((8,), "float32", "y")
    check = reference.verify_ops(
        [Op(id=0, name=name, inputs=(x,), outputs=(y,), arguments=arguments)], [0], HostLaunch(tmp_path)
    )
    assert check.verdict == "inconclusive"
    assert __import__("re").search(why, check.reason)


def test_a_value_that_is_read_later_leaves_the_chain():
    ops = record(lambda x: (lambda y: (y * 2, y.cumsum(0)))(x.abs()), torch.randn(64))
    subject = make_subject(ops, [op.id for op in ops if "cumsum" not in op.name], sm_count=2)
    assert {p.tensor.storage for p in subject.program.outputs} == {ops[0].outputs[0].storage, ops[1].outputs[0].storage}
    alone = make_subject(ops[:2], [op.id for op in ops[:2]], sm_count=2)
    assert [p.tensor.storage for p in alone.program.outputs] == [ops[1].outputs[0].storage]


@pytest.mark.parametrize("name", ["softmax_and_zeros_like_it", "mean_and_ones_like_it"])
def test_a_value_that_only_gives_its_shape_is_a_result(name):
    """Nothing may drop the sum from the fused form: the script has it, though no recorded op reads its elements."""
    ops = record(*CHAINS[name]())
    subject = make_subject(ops, [op.id for op in ops], sm_count=2)
    assert len(subject.outputs) == 2
    assert any(node.function == "reduce_sum" for node in subject.program.nodes)


def test_results_that_are_no_tensors_are_passed_over():
    """A mask that asks for two of three gradients: the second recorded tensor is the third result."""

    def backward(g, x, mean, rstd, w, b):
        mask = [True, False, True]
        return torch.ops.aten.native_layer_norm_backward(g, x, [16], mean, rstd, w, b, mask)

    x = torch.randn(6, 16)
    statistics = (x.mean(-1, keepdim=True), x.var(-1, keepdim=True, correction=0).add(1e-5).rsqrt())
    inputs = (torch.randn(6, 16), x, *statistics, torch.randn(16), torch.randn(16))
    ops = record(backward, *inputs)
    replay = build_replay(ops, ops[-1].outputs, torch.device("cpu"))
    got = replay.module(*inputs)
    assert [tuple(t.shape) for t in got] == [(6, 16), (16,)]
    torch.testing.assert_close(got[1], inputs[0].sum(0))


def test_ops_of_cpu_tensors_are_no_part_of_a_step_on_the_device():
    count, x = (
        Tensor(shape=(), strides=(), dtype="float32", storage=s, device=d) for s, d in (("c", "cpu"), ("x", "cuda"))
    )
    step = Op(
        id=0, name="aten.add_.Tensor", inputs=(count,), outputs=(count,), mutated=(0,), arguments=({"tensor": 0}, 1)
    )
    read = Op(id=1, name="aten._local_scalar_dense.default", inputs=(count,), arguments=({"tensor": 0},))
    work = Op(id=2, name="aten.mul.Tensor", inputs=(x, count), outputs=(x,), arguments=({"tensor": 0}, {"tensor": 1}))
    look = Op(id=3, name="aten._local_scalar_dense.default", inputs=(x,), arguments=({"tensor": 0},))
    home = Op(id=4, name="aten._to_copy.default", inputs=(x,), outputs=(count,), arguments=({"tensor": 0},))
    assert on_device([step, read, work, look, home]) == [work]
    drawn = draw_buffers([x, count], torch.device("meta"))
    assert (drawn["x"].device.type, drawn["c"].device.type) == ("meta", "cpu")
    with pytest.raises(AuditError, match="on the CPU"):
        draw_buffers(
            [Tensor(shape=(3,), strides=(1,), dtype="float32", storage="c", device="cpu")], torch.device("meta")
        )


def test_ops_that_cannot_run_in_fp64_have_no_exact_result():
    """Without a kernel to check this is no reason to stop: the forms are compared with eager's own result."""
    x, y = Tensor.contiguous((8,), "bfloat16", "x"), Tensor.contiguous((8,), "float32", "y")
    op = Op(id=0, name="aten._softmax.default", inputs=(x,), outputs=(y,), arguments=({"tensor": 0}, "last", False))
    _, buffers, exact = draw_case(Subject(ops=[op], outputs=[y]), torch.device("cpu"))
    assert buffers.keys() == {"x"}
    assert exact is None


def test_a_number_of_the_host_goes_to_the_kernel_s_device():
    """A generated kernel reads it through a pointer: on a GPU one to the host's memory is an illegal access."""
    ops = record(lambda x, gain: torch.tanh(x + gain) * 2, torch.randn(8), torch.tensor(0.25))
    host = ops[0].inputs[1].storage
    assert host is not None
    kernel = make_subject(ops, [op.id for op in ops], sm_count=2).kernel
    assert kernel is not None
    given = []

    class Launch:
        def empty(self, shape, dtype):
            return torch.empty(shape, dtype=dtype, device="meta")

        def __call__(self, source, name, grid, block, args):
            given.extend(args)

    buffers = {ops[0].inputs[0].storage: torch.empty(8, device="meta"), host: torch.tensor([0.25])}
    run, _ = prepare(Launch(), kernel, buffers)
    run()
    assert {a.device.type for a in given if isinstance(a, torch.Tensor)} == {"meta"}


def test_a_complex_view_of_what_the_ops_made_is_replayed():
    def rotate(x, turns):
        return torch.view_as_real(torch.view_as_complex(x.float().reshape(4, 8, 2)) * turns).bfloat16()

    x, turns = torch.randn(4, 16, dtype=torch.bfloat16), torch.polar(torch.ones(8), torch.randn(8))
    ops = [op for op in record(rotate, x, turns) if "view" not in op.name]
    assert [op.base_name for op in ops] == ["aten._to_copy", "aten.mul", "aten._to_copy"]
    for wide in (None, torch.float64):
        replay = build_replay(ops, ops[-1].outputs, torch.device("cpu"), wide=wide)
        (got,) = replay.module(x if wide is None else x.to(wide), turns)
        torch.testing.assert_close(got.float().reshape(4, 8, 2), rotate(x, turns).float(), atol=0.02, rtol=0.02)


def test_what_only_the_backward_reads_is_no_result_of_a_library_call():
    def step(x):
        y = 0.5 * x * (1 + torch.erf(x * 0.70710678))
        y.sum().backward()
        return y

    ops = record(step, torch.randn(64, requires_grad=True))
    forward = [op.id for op in ops if op.phase == "forward" and op.base_name != "aten.sum"]
    every, call = (make_subject(ops, forward, sm_count=2, saved=saved).outputs for saved in (True, False))
    assert len(every) > len(call) == 1


def test_nothing_runs_after_an_error_that_ended_the_context(tmp_path, monkeypatch):
    """An illegal access makes every later call fail: what comes after it is not its own finding's fault."""
    made = document("scale_bias_relu")
    made["findings"].insert(1, {**made["findings"][0], "op_ids": made["findings"][0]["op_ids"][:2]})
    tried = []

    def fail(ops, ids, launch, *, saved):
        tried.append(ids)
        return Verification(verdict="inconclusive", reason="AcceleratorError: illegal memory access")

    def dead(_):
        raise RuntimeError("CUDA error: an illegal memory access was encountered\nhint")

    monkeypatch.setattr(reference, "verify_ops", fail)
    monkeypatch.setattr(torch.cuda, "synchronize", dead)
    launch = HostLaunch(tmp_path)
    launch.device = torch.device("cuda")
    out = [f["verification"]["reason"] for f in verify_audit(made, launch=launch)["findings"][:2]]
    assert len(tried) == 1
    assert out[0] == "AcceleratorError: illegal memory access"
    assert "not run: the GPU's context ended before, with 'CUDA error: an illegal memory access" in out[1]


def test_a_library_s_backward_is_not_refuted_by_what_the_ops_saved(times, tmp_path):
    times["reference"] = timing(1100)
    made = document("scale_bias_relu")
    made["findings"][0]["evidence"]["library"] = "GELU (exact)"
    for op in made["passes"][0]["ops"]:
        op["phase"] = "backward"
    check = verify_audit(made, launch=HostLaunch(tmp_path))["findings"][0]["verification"]
    assert (check["verdict"], "reads less" in check["reason"]) == ("inconclusive", True)


def test_executions_of_a_finding_are_taken_apart():
    finding = {"op_ids": [1, 2, 7, 8], "ops": ["a", "b"], "evidence": {"times": 2}}
    assert executions(finding) == [[1, 2], [7, 8]]
    assert executions({**finding, "evidence": {}}) == [[1, 2, 7, 8]]


def test_a_chain_around_a_library_s_call_is_verified_without_what_the_call_saves():
    whole = Verification(verdict="confirmed", reason="fused", saving_ns=300)
    call = Verification(verdict="confirmed", reason="called", saving_ns=200)
    assert without(whole, [call]).saving_ns == 100
    assert "0.2 us of that the library's call saves" in without(whole, [call]).reason
    assert without(whole, [call, call]).verdict == "refuted"
    unknown = without(whole, [Verification(verdict="inconclusive", reason="no form")])
    assert (unknown.verdict, unknown.saving_ns) == ("inconclusive", None)
    refuted = Verification(verdict="refuted", reason="slower", saving_ns=-50)
    assert without(refuted, [call]) == refuted
    assert without(whole, [refuted]).saving_ns == 300


def test_the_call_among_a_finding_s_ops_is_another_finding(monkeypatch, tmp_path):
    made = document("scale_bias_relu")
    whole = made["findings"][0]
    call = {**whole, "op_ids": whole["op_ids"][1:], "evidence": {"times": 1, "library": "SiLU"}}
    whole["evidence"]["beside"] = ["SiLU"]
    made["findings"].append(call)

    def verified(ops, ids, launch, *, saved):
        return Verification(verdict="confirmed", reason="faster", saving_ns=100 * len(ids))

    monkeypatch.setattr(reference, "verify_ops", verified)
    out = [f["verification"] for f in verify_audit(made, launch=HostLaunch(tmp_path))["findings"]]
    assert [v and v["saving_ns"] for v in out] == [100, None, 200]


def test_combined_executions_add_up():
    one = Verification(verdict="confirmed", reason="r", baseline_ns=10, reference_ns=4, saving_ns=6)
    lost = Verification(verdict="refuted", reason="s", baseline_ns=10, reference_ns=11, saving_ns=-1)
    assert combine([one, one]).saving_ns == 12
    assert (combine([one, lost]).verdict, combine([one, lost]).saving_ns) == ("confirmed", 5)
    assert combine([one, Verification(verdict="inconclusive", reason="oom")]).reason == "oom"


def test_verdicts():
    assert judge({"eager": timing(1000), "reference": timing(500)})[0] == "confirmed"
    assert judge({"eager": timing(1000), "reference": timing(1200), "compile": timing(500)})[0] == "confirmed"
    assert judge({"eager": timing(1000), "reference": timing(990)})[0] == "refuted"
    assert judge({"eager": timing(1000, 300), "reference": timing(900, 300)})[0] == "inconclusive"
    # Single calls scatter more than the versions differ, the medians of 21 calls do not.
    assert judge({"eager": timing(1000, 300), "reference": timing(600, 300)})[0] == "confirmed"
    assert judge({"eager": timing(1000), "compile": timing(1010), "template": timing(1020)})[0] == "refuted"
    best = judge({"eager": timing(1000), "compile": timing(1010), "aten._addmm_activation.default": timing(700)})
    assert (best[0], best[2]) == ("confirmed", 300)
    assert best[1].startswith("aten._addmm_activation (cuBLASLt's epilogue) takes 0.7 us")
    assert judge({"eager": timing(1000), "compile": timing(990)}, "no form")[0] == "inconclusive"
    assert judge({"eager": timing(1000)}, "no form")[0] == "inconclusive"


def test_a_host_that_is_too_slow_is_no_saving():
    """Eager's time holds waits for the host: the device time is what its CUDA graph takes."""
    found = {"eager": timing(5000, waits=True), "cuda_graph": timing(1000), "reference": timing(990)}
    assert judge(found)[0] == "refuted"
    assert judge({**found, "reference": timing(600)})[2] == 400
    assert judge({**found, "cuda_graph": timing(4000, waits=True), "reference": timing(600)})[2] == 4400


def test_more_calls_are_made_only_where_they_can_change_the_verdict():
    assert settled({"eager": timing(1000), "reference": timing(500)})
    assert settled({"eager": timing(1000), "reference": timing(1200)})
    assert not settled({"eager": timing(1000, 300), "reference": timing(900, 300)})
    assert not settled({"eager": timing(1000), "reference": timing(970)})
    assert settled({"eager": timing(1000), "cuda_graph": timing(500)})


def test_comparison():
    good = torch.randn(1000, dtype=torch.float64)
    assert compare([good.float()], [good]).ok
    assert not compare([good.float() * 1.001], [good]).ok
    assert not compare([torch.where(torch.arange(1000) == 999, torch.nan, good.float())], [good]).ok
    assert not compare([torch.where(torch.arange(1000) == 999, 0.0, good.float())], [good + 1]).ok
    spoiled = good.float()
    spoiled[7] += 0.01
    assert not compare([spoiled], [good]).ok
    infinite = torch.tensor([float("inf"), float("nan"), 1.0])
    assert compare([infinite], [infinite.double()]).ok
    assert not compare([torch.tensor([1, 2, 3])], [torch.tensor([1, 2, 4])]).ok
    # A program whose own rounding is worse than the tolerance sets the measure.
    assert compare([good.float() * 1.001], [good], [good.float() * 1.0009]).ok
    assert tolerance_of(torch.bfloat16, 1 << 20) < 0.02
    assert tolerance_of(torch.float32, 1 << 20) < 1e-5


def test_strides_over_a_space():
    assert right_align((5, 1), (1, 1), (3, 5, 4)) == (0, 1, 0)
    assert right_align((5,), (1,), (3, 4)) is None
    assert refit((6, 4), (4, 1), (2, 3, 4)) == (12, 4, 1)
    assert refit((2, 3, 4), (12, 4, 1), (6, 4)) == (4, 1)
    assert refit((2, 3, 4), (1, 8, 2), (6, 4)) is None
    assert refit((1, 6), (9, 1), (6, 1)) == (1, 0)


def test_what_must_hold_is_checked():
    row = {"pattern": "sum_abs", "dtype": "float32", "n": 1 << 28, "version": "reference", "time_ns": 300_000,
           "ideal_bytes": 1 << 30, "copy_share": 0.96, "speedup": 3.0, "limit": "", "problem": ""}  # fmt: skip
    assert len(failures([row])) == 2
    assert failures([{**row, "copy_share": 0.98, "speedup": 3.2}]) == []
    slow = {**row, "version": "compile", "time_ns": 200_000}
    assert "torch.compile" in failures([{**row, "copy_share": 0.98, "speedup": 3.2}, slow])[0]


@pytest.mark.parametrize(("version", "name"), [("compile", "torch.compile"), ("cuda_compute", "cuda.compute")])
def test_sum_abs_may_be_two_percent_slower_and_others_five(version, name):
    row = {"pattern": "sum_abs", "dtype": "float32", "n": 1 << 28, "version": "reference", "time_ns": 1_040_000,
           "ideal_bytes": 1 << 30, "copy_share": 0.98, "speedup": 3.2, "limit": "", "problem": ""}  # fmt: skip
    other = {**row, "version": version, "time_ns": 1_000_000}
    (found,) = failures([row, other])
    assert f"1.040 of {name}'s time, may be 1.02" in found
    assert failures([{**row, "time_ns": 1_015_000}, other]) == []
    assert failures([{**row, "pattern": "softmax"}, {**other, "pattern": "softmax"}]) == []
    late = failures([{**row, "pattern": "softmax", "time_ns": 1_060_000}, {**other, "pattern": "softmax"}])
    assert bool(late) == (version == "compile")


def test_a_limit_that_a_file_names_is_printed_with_its_share():
    row = {"pattern": "softmax_outer", "dtype": "float32", "n": 1 << 28, "version": "reference", "speedup": 2.5}
    row |= {"time_ns": 1, "ideal_bytes": 1 << 30, "copy_share": 0.75, "limit": "read twice", "problem": ""}
    assert failures([row]) == []
    assert "75.0% of the copy bandwidth; read twice" in limited([row])[0]


def test_table_fits_80_columns():
    row = {"pattern": "sum_abs", "dtype": "float32", "n": 1 << 28, "version": "reference:atomic", "kernels": 1,
           "intermediate_bytes": 3 << 30, "global_bytes": 3 << 30, "time_ns": 123_456_789,
           "bandwidth_bytes_per_s": 10**12,
           "copy_share": 0.987, "speedup": 3.05, "host_ns": 123_456, "deterministic": True, "problem": ""}  # fmt: skip
    broken = {"pattern": "sum_abs", "dtype": "float32", "n": 1 << 28, "version": "compile", "problem": "x" * 60}
    result = {"device": "NVIDIA H200", "torch": "2.11", "copy_bandwidth_bytes_per_s": 4.3e12, "rows": [row, broken]}
    out = io.StringIO()
    render_bench(result, Console(file=out, width=80))
    assert max(map(len, out.getvalue().splitlines())) <= 80
    assert "…" not in out.getvalue()


def test_bench_names_what_it_knows():
    with pytest.raises(AuditError, match=r"unknown pattern 'sofmax'.*softmax"):
        bench(["sofmax"])
    with pytest.raises(AuditError, match="unknown dtype"):
        bench(["softmax"], dtypes=["float33"])
    if not torch.cuda.is_available():
        with pytest.raises(AuditError, match="no CUDA device"):
            bench(["softmax"])
