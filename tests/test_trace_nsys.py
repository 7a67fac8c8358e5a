"""Nsight Systems exports become Traces: real captures, literal exports of every shape, and broken files."""

from __future__ import annotations

import os
import sqlite3
import stat
from pathlib import Path

import pytest
from nsys_exports import PID, ExportFile

from fusionaudit.errors import AuditError
from fusionaudit.program.steps import steady_activities
from fusionaudit.trace.load import load_trace
from fusionaudit.trace.nsys_sqlite import read_nsys
from fusionaudit.trace.schema import Activity, Trace

CAPTURES = Path(__file__).parent / "data" / "captures"

ABS = "aten::abs, seq = 0, op_id = 1, sizes = [[8]], input_op_ids = [(0,-1)]"
ABS_OUT = "aten::abs, op_id = 3, sizes = [[8], [0]], input_op_ids = [(0,-1), (2,0)]"
SUM = "aten::sum, seq = 1, op_id = 5, sizes = [[8], []], input_op_ids = [(1,0), (0,-1)]"


def step_of(trace: Trace) -> list[Activity]:
    first, last = steady_activities(trace.activities).spans[-1]
    return list(trace.activities[first:last])


# -- real captures -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "schema", "steps", "kernels", "gpu_ns"),
    [
        ("nsys2023.4_sum_abs_eager", "3.7.2", 3, 2, 752_799),
        ("nsys2023.4_sum_abs_compiled", "3.7.2", 3, 2, 242_591),
        ("nsys2025.3_sum_abs_eager_n24", "3.20.3", 3, 2, 56_159),
        ("nsys2025.3_sum_abs_compiled_n24", "3.20.3", 3, 2, 16_511),
        ("nsys2023.4_block_eager", "3.7.2", 2, 48, 2_018_839),
        ("nsys2025.3_block_eager", "3.20.3", 2, 48, 2_018_506),
        ("nsys2023.4_block_compiled", "3.7.2", 2, 52, 1_799_099),
        ("nsys2023.4_tiny_eager", "3.7.2", 2, 120, 212_769),
        ("nsys2023.4_tiny_compiled", "3.7.2", 2, 61, 148_446),
        ("nsys2023.4_tiny_graph", "3.7.2", 2, 62, 164_128),
        ("nsys2025.3_tiny_graph", "3.20.3", 2, 62, 162_654),
    ],
)
def test_steady_step_of_a_real_capture(name: str, schema: str, steps: int, kernels: int, gpu_ns: int) -> None:
    trace = load_trace(CAPTURES / f"{name}.sqlite")
    found = steady_activities(trace.activities)
    step = step_of(trace)
    only_kernels = [a for a in step if a.kind == "kernel"]
    assert trace.format == f"nsys {schema}"
    assert (found.source, len(found.spans), found.confidence) == ("period", steps, 1.0)
    assert len(only_kernels) == kernels
    assert sum(a.duration_ns for a in only_kernels) == gpu_ns
    tied = sum(a.op is not None or a.graph_call is not None for a in step)
    assert tied / len(step) >= 0.99
    assert not [n for n in trace.notes if n.blocks]
    assert trace.device is not None
    assert trace.device.peak_bandwidth_bytes_per_s == 4_814_304_000_000
    assert (trace.device.sm_count, trace.device.compute_capability) == (132, (9, 0))


@pytest.mark.parametrize("name", ["nsys2023.4_block_eager", "nsys2023.4_block_compiled", "nsys2023.4_tiny_eager"])
def test_every_launch_of_the_step_has_an_op(name: str) -> None:
    step = step_of(load_trace(CAPTURES / f"{name}.sqlite"))
    assert [a.name for a in step if a.op is None] == []


def test_backward_runs_on_another_thread_and_is_tied_there() -> None:
    step = step_of(load_trace(CAPTURES / "nsys2023.4_block_compiled.sqlite"))
    assert len({a.thread for a in step}) == 2
    calls = list(dict.fromkeys((a.graph_call_id, a.thread) for a in step if a.graph_call is not None))
    assert len(calls) == 2
    assert calls[0][1] != calls[1][1]


def test_the_dataflow_of_emit_nvtx_is_kept() -> None:
    step = step_of(load_trace(CAPTURES / "nsys2023.4_sum_abs_eager.sqlite"))
    absolute, fill, total = step
    assert absolute.op is not None
    assert total.op is not None
    assert (absolute.op.name, absolute.op.shapes) == ("aten.abs", ((1 << 28,),))
    assert (total.op.name, total.op.shapes) == ("aten.sum", ((1 << 28,), ()))
    assert total.op.input_ops[0] == (absolute.op.op_id, 0)
    assert (fill.kind, fill.bytes, fill.op) == ("memset", 4, total.op)


@pytest.mark.parametrize("name", ["nsys2023.4_tiny_graph", "nsys2025.3_tiny_graph"])
def test_replayed_kernels_are_in_their_graph_call(name: str) -> None:
    trace = load_trace(CAPTURES / f"{name}.sqlite")
    step = step_of(trace)
    replayed = [a for a in step if a.graph_node is not None]
    assert len(replayed) == 61
    assert len({a.graph_node for a in replayed}) == 61
    assert {a.graph_call for a in replayed} == {"fnocoyzbxg5kzwvtuwnuhjra74afktkz6expvj5z32apaxpsufvs"}
    assert len({a.graph_call_id for a in replayed}) == 1
    launched = [a for a in replayed if a.launch_start_ns is not None]
    assert launched == replayed[:1]
    assert [n.kind for n in trace.notes] == ["opaque-graph"]
    assert "305 of 305" in trace.notes[0].text


# -- literals ----------------------------------------------------------------------------------------------------------


def test_innermost_op_and_nested_ranges_of_one_name(tmp_path: Path) -> None:
    #   thread 1   |--- aten::linear(9) ------------------------------|
    #                 |--- aten::abs(1) ----|  |-- aten::addmm(10) -|
    #                     |- aten::abs(3) -|
    #   launches             ^1                      ^2                  ^3
    file = ExportFile(tmp_path / "e.sqlite")
    file.gpu()
    file.range("aten::linear, seq = 7, op_id = 9, sizes = [[2, 3]], input_op_ids = [(0,-1)]", 100, 900)
    file.range(ABS, 110, 300, registered=True)
    file.range(ABS_OUT, 120, 290)
    file.range("aten::addmm, op_id = 10, sizes = [[4], [2, 3], []], input_op_ids = [(0,-1), (1,0), (0,-1)]", 400, 600)
    file.launch("abs", 130, number=1)
    file.launch("gemm", 450, number=2)
    file.launch("loose", 950, number=3)
    trace = read_nsys(file.close())
    first, second, third = (a.op for a in trace.activities)
    assert first is not None
    assert second is not None
    assert (first.name, first.op_id, first.sequence, first.parents) == ("aten.abs", 1, 0, (9,))
    assert (second.name, second.op_id, second.shapes) == ("aten.addmm", 10, ((4,), (2, 3), ()))
    assert second.input_ops == ((0, -1), (1, 0), (0, -1))
    assert third is None
    assert [op.op_id for op in trace.range_ops] == [9, 1, 3, 10]
    assert trace.activities[0].dynamic_shared_bytes == 16
    assert (trace.activities[0].launch_start_ns, trace.activities[0].launch_end_ns) == (130, 132)


def test_our_recorder_wins_and_marks_hold_for_other_threads(tmp_path: Path) -> None:
    #   thread 1   |--- step 4 -------------------------| |- compile -|
    #                |--- region loss ----------------|
    #   thread 2       |- op 17 add -|   |- add(3) -|
    #   launches          ^1                ^2              ^3 (thread 1)
    file = ExportFile(tmp_path / "e.sqlite")
    file.range("fusionaudit:step 4", 100, 500)
    file.range("fusionaudit:region loss", 110, 490)
    file.range("fusionaudit:op 17 aten.add.Tensor", 120, 200, tid=PID + 2)
    file.range("aten::add, op_id = 2, sizes = [[2]], input_op_ids = [(0,-1)]", 125, 190, tid=PID + 2)
    file.range("aten::add, op_id = 3, sizes = [[2]], input_op_ids = [(0,-1)]", 300, 400, tid=PID + 2)
    file.range("fusionaudit:compile", 600, 700)
    file.launch("k", 130, number=1, tid=PID + 2)
    file.launch("k", 310, number=2, tid=PID + 2)
    file.launch("k", 610, number=3)
    one, two, three = read_nsys(file.close()).activities
    assert one.op is not None
    assert two.op is not None
    assert (one.op.name, one.op.op_id, one.op.recorded) == ("aten.add.Tensor", 17, True)
    assert (two.op.op_id, two.op.recorded) == (3, False)
    assert [(a.step, a.region, a.compiling) for a in (one, two, three)] == [
        (4, "loss", False),
        (4, "loss", False),
        (None, None, True),
    ]


def test_ranges_that_are_no_ops(tmp_path: Path) -> None:
    file = ExportFile(tmp_path / "e.sqlite")
    for number, text in enumerate(
        [
            "TorchDynamo Cache Lookup, op_id = 1",
            "Torch-Compiled Region: 0/0, op_id = 2",
            "Optimizer.step#AdamW.step, op_id = 3",
            "autograd::engine::evaluate_function: AddBackward0, op_id = 4",
            "cub::DeviceReduce::Sum",
            "CompiledFunction, seq = 1, op_id = 6, sizes = [[8]], input_op_ids = [(0,-1)]",
            "my epoch",
        ]
    ):
        file.range(text, 100 * number, 100 * number + 90)
        file.launch("k", 100 * number + 10, number=number + 1)
    file.range("AddBackward0, seq = 5, op_id = 9, sizes = [[8]], input_op_ids = [(3,0)]", 1000, 1100)
    file.launch("custom", 1010, number=20)
    file.range("mine::op, op_id = 10, sizes = [[8]], input_op_ids = [(3,0)]", 1200, 1300)
    file.launch("custom", 1210, number=21)
    file.range("add_kernel, op_id = 11, sizes = [[8]], input_op_ids = [(3,0)]", 1250, 1290)
    file.launch("add_kernel", 1260, number=22)
    names = [a.op.name if a.op else None for a in read_nsys(file.close()).activities]
    assert names == [None] * 7 + ["AddBackward0", "mine.op", "add_kernel"]


def test_graph_calls_are_counted_and_kept_to_their_thread(tmp_path: Path) -> None:
    file = ExportFile(tmp_path / "e.sqlite")
    for i, (start, tid) in enumerate([(100, PID + 1), (300, PID + 2), (500, PID + 1)]):
        file.range("## Call CompiledFxGraph fabc ##, op_id = 7", start, start + 100, tid=tid)
        file.launch("triton_poi_0", start + 10, number=i, tid=tid)
    file.launch("other", 510, number=9, tid=PID + 3)
    activities = read_nsys(file.close()).activities
    assert [a.graph_call_id for a in activities if a.name != "other"] == [0, 1, 2]
    assert [a.graph_call for a in activities if a.name == "other"] == [None]


@pytest.mark.parametrize("table", ["CUDA_GRAPH_EVENTS", "CUDA_GRAPH_NODE_EVENTS"])
def test_a_replayed_kernel_takes_its_op_from_the_capture(tmp_path: Path, table: str) -> None:
    #   capture   |- aten::abs(1) -|  |- aten::sum(5) -|     (node 100, 101; cloned to 200, 201 and 300, 301)
    #   replay    |--- Call CompiledFxGraph fabc: cudaGraphLaunch ---|     301 was made unseen
    file = ExportFile(tmp_path / "e.sqlite")
    file.range(ABS, 100, 200)
    file.range(SUM, 300, 400)
    columns = "start globalTid graphNodeId originalGraphNodeId"
    for start, node, origin in [(110, 100, None), (310, 101, None), (500, 200, 100), (501, 201, 101), (600, 300, 200)]:
        file.add(table, columns, start=start, globalTid=PID + 1, graphNodeId=node, originalGraphNodeId=origin)
    file.call(1, 105, 120)
    file.call(2, 305, 320)
    file.range("## Call CompiledFxGraph fabc ##", 1000, 1100)
    file.call(3, 1010, 1020, name="cudaGraphLaunch_v10000")
    for i, node in enumerate([300, 201, 301]):
        file.kernel(f"k{i}", 1030 + 10 * i, 1035 + 10 * i, call=3, node=node)
    trace = read_nsys(file.close())
    assert [a.op.op_id if a.op else None for a in trace.activities] == [1, 5, None]
    assert {a.graph_call for a in trace.activities} == {"fabc"}
    assert [a.launch_start_ns for a in trace.activities] == [1010, None, None]
    assert [(n.kind, n.text.split(" have")[0]) for n in trace.notes if n.kind != "old-export"] == [
        ("opaque-graph", "1 of 3 launches replayed from CUDA graphs")
    ]


def test_an_old_export_without_newer_columns(tmp_path: Path) -> None:
    file = ExportFile(
        tmp_path / "e.sqlite",
        version="2.4.0",
        lacking=("graphNodeId", "localMemoryPerThread", "textId", "demangledName"),
    )
    file.range(ABS, 100, 200)
    file.launch("abs<float>", 110, number=1)
    trace = read_nsys(file.close())
    assert trace.format == "nsys 2.4.0"
    assert trace.activities[0].name == "abs"
    assert trace.activities[0].op is not None
    assert trace.activities[0].local_bytes_per_thread is None
    (note,) = trace.notes
    assert note.kind == "old-export"
    assert "spills" in note.text
    assert "CUDA graphs" in note.text
    assert "TARGET_INFO_GPU" in note.text


def test_several_processes_one_is_audited(tmp_path: Path) -> None:
    other = 9 << 24
    file = ExportFile(tmp_path / "e.sqlite")
    file.gpu()
    file.range(ABS, 100, 200)
    file.launch("mine", 110, number=1)
    file.call(1, 100, 900, tid=other + 1)
    file.kernel("theirs", 150, 900, call=1, pid=other)
    trace = read_nsys(file.close())
    assert [(a.name, a.op is not None) for a in trace.activities] == [("mine", True)]
    assert [n.kind for n in trace.notes] == ["several-processes"]


def test_syncs(tmp_path: Path) -> None:
    file = ExportFile(tmp_path / "e.sqlite")
    file.gpu()
    file.range("aten::_local_scalar_dense, op_id = 4, sizes = [[]], input_op_ids = [(1,0)]", 200, 300)
    file.launch("k", 100, number=1)
    file.call(2, 210, 220, name="cudaMemcpyAsync_v3020")
    file.copy(215, 218, call=2, kind=2, size=4)
    file.call(3, 230, 260, name="cudaStreamSynchronize_v3020")
    file.call(4, 400, 450, name="cudaMemcpy_v3020")
    file.copy(410, 440, call=4, kind=2, size=64)
    file.call(5, 500, 510, name="cudaMemcpy_v3020")
    file.copy(505, 509, call=5, kind=1, size=64)
    trace = read_nsys(file.close())
    assert [(s.name, s.end_ns - s.start_ns, s.op.op_id if s.op else None) for s in trace.syncs] == [
        ("cudaStreamSynchronize", 30, 4),
        ("cudaMemcpy", 50, None),
    ]
    assert [a.name for a in trace.activities if a.kind == "memcpy"] == [
        "[CUDA memcpy Device-to-Host]",
        "[CUDA memcpy Device-to-Host]",
        "[CUDA memcpy Host-to-Device]",
    ]


@pytest.mark.parametrize(
    ("text", "owner", "blocks"),
    [
        ("CUPTI dropped 276 records. Some CUPTI events might be missing.", PID, True),
        ("Not all CUDA events might have been collected.", PID, True),
        ("Not all CUDA events might have been collected.", 9 << 24, None),
        ("Not all NVTX events might have been collected.", PID, False),
        ("No CUDA events collected. Does the process use CUDA?", PID, None),
        ("Number of CUPTI events produced: \t3519, CUPTI buffers: 50.", PID, None),
        (
            "Some events (12) were lost. Certain charts (including CPU utilization) may be wrong.",
            PID,
            None,
        ),
    ],
)
def test_lost_events(tmp_path: Path, text: str, owner: int, blocks: bool | None) -> None:
    file = ExportFile(tmp_path / "e.sqlite", version="3.20.3")
    file.gpu()
    file.range(ABS, 100, 200)
    file.launch("k", 110, number=1)
    file.add("DIAGNOSTIC_EVENT", "severity text globalPid", severity=2, text=text, globalPid=owner)
    notes = read_nsys(file.close()).notes
    assert [n.blocks for n in notes if n.kind == "lost-events"] == ([] if blocks is None else [blocks])


def test_lost_events_of_exports_without_diagnostics(tmp_path: Path) -> None:
    file = ExportFile(tmp_path / "e.sqlite")
    file.launch("k", 110, number=1)
    file.string("CUPTI dropped 3 records. Some CUPTI events might be missing.")
    assert [n.blocks for n in read_nsys(file.close()).notes if n.kind == "lost-events"] == [True]


def test_launches_without_a_kernel_are_lost(tmp_path: Path) -> None:
    file = ExportFile(tmp_path / "e.sqlite")
    file.launch("k", 110, number=1)
    file.call(2, 200, 210)
    (note,) = [n for n in read_nsys(file.close()).notes if n.kind == "lost-events"]
    assert note.blocks
    assert note.text.startswith("1 of 2 launch calls")


def test_recording_that_stopped_before_the_program(tmp_path: Path) -> None:
    #   aten::abs   launches at 110; again at 1000 and 1200, where no CUDA call is recorded any more
    file = ExportFile(tmp_path / "e.sqlite")
    file.range(ABS, 100, 200)
    file.launch("k", 110, number=1)
    file.range(ABS, 1000, 1100)
    file.range(ABS, 1200, 1300)
    (note,) = [n for n in read_nsys(file.close()).notes if n.kind == "lost-events"]
    assert note.blocks
    assert "2 ops after the last CUDA call" in note.text


# -- broken files ------------------------------------------------------------------------------------------------------


def error_of(path: Path) -> str:
    with pytest.raises(AuditError) as caught:
        load_trace(path)
    text = str(caught.value)
    assert "\n" not in text
    assert caught.value.exit_code == 2
    return text


def test_files_that_are_no_traces(tmp_path: Path) -> None:
    path = tmp_path / "x.sqlite"
    assert "no such file" in error_of(path)
    path.write_bytes(b"")
    assert "empty" in error_of(path)
    path.write_text("hello")
    assert "not a database" in error_of(path)
    assert "folder" in error_of(tmp_path)
    report = tmp_path / "r.nsys-rep"
    report.write_bytes(b"\x00\x01report")
    assert "nsys export" in error_of(report)


@pytest.mark.parametrize("kept", [100, 5000, 20000, 33000])
def test_a_truncated_database(tmp_path: Path, kept: int) -> None:
    path = tmp_path / "cut.sqlite"
    path.write_bytes((CAPTURES / "nsys2023.4_sum_abs_eager.sqlite").read_bytes()[:kept])
    assert "cut.sqlite" in error_of(path)


def test_damage_in_the_middle(tmp_path: Path) -> None:
    data = bytearray((CAPTURES / "nsys2023.4_block_eager.sqlite").read_bytes())
    data[40_000:90_000] = b"\xff" * 50_000
    path = tmp_path / "hole.sqlite"
    path.write_bytes(bytes(data))
    assert "hole.sqlite" in error_of(path)


def test_foreign_tables(tmp_path: Path) -> None:
    path = tmp_path / "shop.sqlite"
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE customers (name)")
    db.close()
    assert "not an Nsight Systems export (tables: customers)" in error_of(path)


def test_no_kernel_table_and_zero_kernels(tmp_path: Path) -> None:
    file = ExportFile(tmp_path / "none.sqlite")
    file.range(ABS, 100, 200)
    assert "no kernel table" in error_of(file.close())
    file = ExportFile(tmp_path / "zero.sqlite")
    file.launch("k", 100, number=1)
    file._db.execute("DELETE FROM CUPTI_ACTIVITY_KIND_KERNEL")
    assert "zero kernels" in error_of(file.close())


@pytest.mark.parametrize("values", [{"end": "soon"}, {"gridX": "wide"}, {"globalPid": "mine"}, {"deviceId": "GPU 0"}])
def test_values_of_another_type(tmp_path: Path, values: dict[str, object]) -> None:
    file = ExportFile(tmp_path / "odd.sqlite")
    file.kernel("k", 100, call=1, **({"end": 110} | values))  # type: ignore[arg-type]
    assert "odd.sqlite" in error_of(file.close())


def test_a_view_in_place_of_a_table_is_not_run(tmp_path: Path) -> None:
    path = tmp_path / "view.sqlite"
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE META_DATA_EXPORT (name, value)")
        db.execute("CREATE VIEW CUPTI_ACTIVITY_KIND_KERNEL AS SELECT load_extension('/tmp/evil') AS start, 1 AS end")
    db.close()
    assert "no kernel table" in error_of(path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
def test_no_permission(tmp_path: Path) -> None:
    path = tmp_path / "mine.sqlite"
    path.write_bytes((CAPTURES / "nsys2023.4_sum_abs_eager.sqlite").read_bytes())
    path.chmod(0)
    assert "no permission" in error_of(path)
    path.chmod(stat.S_IRUSR)


def test_reading_leaves_nothing_beside_the_file(tmp_path: Path) -> None:
    path = tmp_path / "e x%20?.sqlite"
    path.write_bytes((CAPTURES / "nsys2023.4_sum_abs_eager.sqlite").read_bytes())
    tmp_path.chmod(0o555)
    try:
        load_trace(path)
    finally:
        tmp_path.chmod(0o755)
    assert [p.name for p in tmp_path.iterdir()] == [path.name]
