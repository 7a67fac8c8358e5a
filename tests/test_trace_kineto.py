"""torch.profiler traces become Traces: real ones of an H200, literal ones, and broken files."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from fusionaudit.errors import AuditError
from fusionaudit.program.steps import steady_activities
from fusionaudit.trace.load import load_trace
from fusionaudit.trace.schema import Trace

CAPTURES = Path(__file__).parent / "data" / "captures"
KINETO = CAPTURES / "kineto"


def event(cat: str, name: str, ts: float, dur: float, tid: int = 1, **args: Any) -> dict[str, Any]:
    """One complete event; times in microseconds, as in the files."""
    return {"ph": "X", "cat": cat, "name": name, "pid": 7, "tid": tid, "ts": ts, "dur": dur, "args": args}


def launch(number: int, ts: float, name: str = "cudaLaunchKernel", tid: int = 1) -> dict[str, Any]:
    return event("cuda_runtime", name, ts, 2.0, tid, correlation=number)


def kernel(name: str, ts: float, number: int, **args: Any) -> dict[str, Any]:
    known = {"device": 0, "stream": 7, "registers per thread": 32, "shared memory": 16, "grid": [8, 1, 1]}
    return event("kernel", name, ts, 1.5, 7, correlation=number, block=[128, 1, 1], **known, **args)


def load(path: Path, events: list[dict[str, Any]], **more: Any) -> Trace:
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events} | more))
    return load_trace(path)


# -- real traces -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "kernels", "gpu_ns"),
    [
        ("sum_abs_eager", 2, 56_510),
        ("sum_abs_compiled", 2, 16_191),
        ("block_eager", 48, 2_019_661),
        ("tiny_graph", 62, 163_515),
    ],
)
def test_step_of_a_real_trace(name: str, kernels: int, gpu_ns: int) -> None:
    trace = load_trace(KINETO / f"kineto_{name}.json.gz")
    found = steady_activities(trace.activities)
    first, last = found.spans[-1]
    step = trace.activities[first:last]
    assert (trace.format, found.source, len(found.spans)) == ("kineto 1", "marks", 2)
    only_kernels = [a for a in step if a.kind == "kernel"]
    assert len(only_kernels) == kernels
    assert sum(a.duration_ns for a in only_kernels) == gpu_ns
    assert all(a.op is not None or a.graph_call is not None for a in step)
    assert trace.device is not None
    assert (trace.device.name, trace.device.sm_count) == ("NVIDIA H200", 132)


def test_same_kernels_and_ops_as_nsys() -> None:
    """One workload, two tools: the step has the same launches of the same ops, in the same order."""
    steps = []
    for path in (KINETO / "kineto_block_eager.json.gz", CAPTURES / "nsys2023.4_block_eager.sqlite"):
        trace = load_trace(path)
        first, last = steady_activities(trace.activities).spans[-1]
        step = trace.activities[first:last]
        ops = [(a.kind, a.grid, a.block, a.registers, a.bytes, a.op.name if a.op else None) for a in step]
        shapes = [a.op.shapes if a.op else None for a in step if a.op and not a.op.name.startswith("aten._foreach")]
        steps.append((ops, shapes))
    assert steps[0] == steps[1]


def test_dtypes_and_strides_come_along() -> None:
    trace = load_trace(KINETO / "kineto_block_eager.json.gz")
    product = next(a.op for a in trace.activities if a.op is not None and a.op.name == "aten.addmm")
    assert product.dtypes[:3] == ("bfloat16", "bfloat16", "bfloat16")
    bias, left, right = product.inputs[:3]
    assert (bias.shape, left.shape, right.shape) == ((3072,), (8192, 1024), (1024, 3072))
    assert right.strides == (1, 1024)


# -- literals ----------------------------------------------------------------------------------------------------------


def test_innermost_op_step_region_and_recorder(tmp_path: Path) -> None:
    #   thread 1  |--- step 0 ------------------------------------------------------------|
    #               |- aten::linear(1): |- aten::addmm(2) -| -|  |- fusionaudit:op 9 |- aten::abs(4) -| -|
    #   launches                            ^1                                          ^2
    #   thread 2                                                                     ^3 (no op there)
    events = [
        event("user_annotation", "fusionaudit:step 0", 0, 100, **{"External id": 100}),
        event("cpu_op", "aten::linear", 1, 30, **{"External id": 1, "Input Dims": [[2, 3]], "Input type": ["float"]}),
        event(
            "cpu_op", "aten::addmm", 2, 20, **{
                "External id": 2, "Sequence number": 5, "Input Dims": [[4], [2, 3], [3, 4], [], []],
                "Input type": ["float", "float", "float", "Scalar", "Scalar"],
                "Input Strides": [[1], [3, 1], [1, 3], [], []],
            },
        ),
        event("user_annotation", "fusionaudit:op 9 aten.abs.default", 40, 20),
        event("cpu_op", "aten::abs", 41, 15, **{"External id": 4, "Input Dims": [[8]], "Input type": ["c10::Half"]}),
        launch(1, 5), launch(2, 45), launch(3, 50, tid=2), launch(4, 200, name="cuLaunchKernel"),
        kernel("gemm", 10, 1), kernel("abs", 50, 2), kernel("other", 60, 3), kernel("late", 210, 4),
        event("gpu_memcpy", "Memcpy DtoH (Device -> Pageable)", 220, 1, 7, correlation=5, bytes=4, device=0, stream=7),
        launch(5, 215, name="cudaMemcpyAsync"), launch(6, 216, name="cudaStreamSynchronize"),
        {"ph": "M", "name": "process_name", "args": {"name": "python"}},
    ]  # fmt: skip
    trace = load(tmp_path / "t.json", events)
    gemm, absolute, other, late, copy = trace.activities
    assert gemm.op is not None
    assert (gemm.op.name, gemm.op.op_id, gemm.op.sequence, gemm.op.parents) == ("aten.addmm", 2, 5, (1,))
    assert gemm.op.shapes == ((4,), (2, 3), (3, 4), (), ())
    assert [(t.shape, t.strides, t.dtype) for t in gemm.op.inputs][1:] == [
        ((2, 3), (3, 1), "float32"),
        ((3, 4), (1, 3), "float32"),
    ]
    assert absolute.op is not None
    assert (absolute.op.name, absolute.op.op_id, absolute.op.recorded) == ("aten.abs.default", 9, True)
    assert (other.op, other.step) == (None, 0)
    assert (late.op, late.step) == (None, None)
    assert (gemm.start_ns, gemm.end_ns, gemm.launch_start_ns, gemm.launch_end_ns) == (10_000, 11_500, 5_000, 7_000)
    assert (gemm.grid, gemm.block, gemm.registers, gemm.static_shared_bytes) == ((8, 1, 1), (128, 1, 1), 32, 16)
    assert (copy.name, copy.copy_kind, copy.bytes) == ("[CUDA memcpy Device-to-Host]", "Device-to-Host", 4)
    assert [(s.name, s.end_ns - s.start_ns) for s in trace.syncs] == [("cudaStreamSynchronize", 2000)]
    assert trace.device is None


def test_lists_of_tensors_are_opened_up(tmp_path: Path) -> None:
    arguments = {"External id": 2, "Input Dims": [[[4], [2, 3]], []], "Input type": ["TensorList", "Scalar"]}
    events = [event("cpu_op", "aten::_foreach_add_", 2, 20, **arguments), launch(1, 5), kernel("k", 10, 1)]
    op = load(tmp_path / "t.json", events).activities[0].op
    assert op is not None
    assert op.shapes == ((4,), (2, 3), ())


def test_graph_replay_has_no_ops_but_its_graph_call(tmp_path: Path) -> None:
    events = [
        event("user_annotation", "## Call CompiledFxGraph fabc ##", 0, 50),
        event("cpu_op", "aten::copy_", 1, 40, **{"External id": 3}),
        launch(1, 5, name="cudaGraphLaunch"),
        kernel("a", 10, 1),
        kernel("b", 12, 1),
    ]
    trace = load(tmp_path / "t.json", events)
    assert [(a.graph_call, a.graph_call_id, a.op, a.graph_node) for a in trace.activities] == [
        ("fabc", 0, None, 0),
        ("fabc", 0, None, 1),
    ]
    assert [a.launch_start_ns for a in trace.activities] == [5000, None]
    assert [n.kind for n in trace.notes] == ["opaque-graph"]


def test_a_bare_list_of_events_and_threads_with_names(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    call, op = launch(1, 5), event("cpu_op", "aten::abs", 1, 40, **{"External id": 3})
    call["tid"] = op["tid"] = "thread main"
    path.write_text(json.dumps([op, call, kernel("a", 10, 1)]))
    (only,) = load_trace(path).activities
    assert only.op is not None


# -- broken files ------------------------------------------------------------------------------------------------------


def error_of(path: Path) -> str:
    with pytest.raises(AuditError) as caught:
        load_trace(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_broken_traces(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text('{"traceEvents": [{"ph": "X"')
    assert "cut off" in error_of(path)
    path.write_text('{"name": "package"}')
    assert "no traceEvents" in error_of(path)
    path.write_text("[" * 100_000)
    assert "t.json" in error_of(path)
    path.write_text('{"traceEvents": []}')
    assert "zero kernels" in error_of(path)
    path.write_text(json.dumps({"traceEvents": [event("cpu_op", "aten::add", 1, 2)]}))
    assert "zero kernels" in error_of(path)
    path.write_text(json.dumps({"traceEvents": [kernel("a", "soon", 1)]}))  # type: ignore[arg-type]
    assert "not as torch.profiler writes it" in error_of(path)


@pytest.mark.parametrize("kept", [5, 100, 2000])
def test_a_gzip_cut_in_half(tmp_path: Path, kept: int) -> None:
    path = tmp_path / "t.json.gz"
    path.write_bytes((KINETO / "kineto_sum_abs_eager.json.gz").read_bytes()[:kept])
    assert "t.json.gz" in error_of(path)


def test_a_gzipped_database_says_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "e.sqlite.gz"
    path.write_bytes(gzip.compress((CAPTURES / "nsys2023.4_sum_abs_eager.sqlite").read_bytes()))
    assert "gunzip" in error_of(path)


def test_nothing_in_a_trace_is_run(tmp_path: Path) -> None:
    planted = "__import__('os').system('touch pwned')"
    arguments = {"External id": 3, "Concrete Inputs": [planted], "Input Dims": [planted], "Input type": [planted]}
    events = [event("cpu_op", f"aten::{planted}", 1, 40, **arguments), launch(1, 5), kernel(planted, 10, 1)]
    trace = load(tmp_path / "t.json", events)
    assert trace.activities[0].name == planted
    assert [p.name for p in tmp_path.iterdir()] == ["t.json"]
