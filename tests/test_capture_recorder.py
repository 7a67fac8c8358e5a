"""The recorder on CPU tensors: one record an op, storages, phases, lines, views, in-place, forks and threads."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from fusionaudit.capture import marks
from fusionaudit.capture.lines import LineWriter
from fusionaudit.capture.marker import CaptureMarker
from fusionaudit.capture.recorder import Recorder
from fusionaudit.tensors import Tensor

HERE = os.path.abspath(__file__)


class Ranges:
    """Keeps what was pushed and popped."""

    def __init__(self) -> None:
        self.open: list[str] = []
        self.log: list[str] = []

    def push(self, text: str) -> str:
        self.open.append(text)
        self.log.append(f"+{text}")
        return text

    def pop(self, token: str) -> None:
        assert self.open.pop() == token
        self.log.append(f"-{token}")


def record(tmp_path: Path, program: Any, **options: Any) -> list[dict[str, Any]]:
    recorder = Recorder(tmp_path / "ops.jsonl", **options)
    with recorder.recording():
        program(recorder)
    recorder.close()
    return [json.loads(line) for line in (tmp_path / "ops.jsonl").read_text().splitlines()]


def ops(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [r for r in records if r["kind"] == "op"]


def test_one_record_an_op_with_its_line(tmp_path: Path) -> None:
    x = torch.randn(4, 8)
    records = record(tmp_path, lambda _: x.abs().sum())
    assert [r["name"] for r in records] == ["aten.abs.default", "aten.sum.default"]
    first, second = records
    assert first["outputs"] == second["inputs"]
    assert first["location"]["file"] == HERE
    assert first["phase"] == "forward"
    assert Tensor.from_json(first["inputs"][0]) == Tensor(
        shape=(4, 8), strides=(8, 1), dtype="float32", storage=first["inputs"][0]["storage"], device="cpu"
    )
    assert second["id"] > first["id"]


def test_views_share_the_storage_and_in_place_names_what_it_writes(tmp_path: Path) -> None:
    def program(_: Any) -> None:
        x = torch.zeros(4, 6)
        x[1:, ::2].add_(1)
        torch.add(x[0], 1, out=x[1])

    found = {r["name"]: r for r in ops(record(tmp_path, program))}
    added = found["aten.add_.Tensor"]
    assert added["mutated"] == [0]
    assert added["inputs"][0]["storage"] == found["aten.zeros.default"]["outputs"][0]["storage"]
    assert added["inputs"][0]["strides"] == [6, 2]
    assert added["inputs"][0]["offset"] == 6
    out = found["aten.add.out"]
    assert out["mutated"] == [1]
    assert out["arguments"] == [{"tensor": 0}, 1, {"kwargs": {"out": {"tensor": 1}}}]


def test_arguments_that_json_has_no_form_for(tmp_path: Path) -> None:
    def program(_: Any) -> None:
        torch.full((2,), float("-inf"), dtype=torch.float64).to(torch.bfloat16)

    full, cast = ops(record(tmp_path, program))
    assert full["arguments"][1] == {"float": "-inf"}
    assert cast["arguments"][-1]["kwargs"]["dtype"] == {"dtype": "bfloat16"}


def test_storage_names_are_never_reused(tmp_path: Path) -> None:
    def program(_: Any) -> None:
        for _i in range(50):
            torch.ones(1000)  # freed at once: the allocator gives the same address again

    names = [r["outputs"][0]["storage"] for r in ops(record(tmp_path, program))]
    assert len(set(names)) == 50


def test_backward_takes_the_forward_line_and_the_phase(tmp_path: Path) -> None:
    w = torch.nn.Parameter(torch.randn(4, 4))
    lines: dict[str, int] = {}

    def program(_: Any) -> None:
        here = program.__code__.co_firstlineno
        y = torch.tanh(torch.ones(4, 4) @ w)
        lines["tanh"] = here + 2
        y.sum().backward()

    records = ops(record(tmp_path, program))
    back = next(r for r in records if r["name"] == "aten.tanh_backward.default")
    assert back["phase"] == "backward"
    assert back["location"]["line"] == lines["tanh"]
    product = next(r for r in records if r["name"] == "aten.mm.default")
    assert [t.get("is_parameter", False) for t in product["inputs"]] == [False, True]


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return (2 * x) * grad


def test_a_custom_backward_keeps_its_own_lines(tmp_path: Path) -> None:
    x = torch.randn(3, requires_grad=True)
    records = ops(record(tmp_path, lambda _: Square.apply(x).sum().backward()))
    own = [r for r in records if r["phase"] == "backward" and r["name"] == "aten.mul.Tensor"]
    assert {r["location"]["function"] for r in own} == {"backward"}


def test_the_optimizer_is_a_phase_of_its_own(tmp_path: Path) -> None:
    w = torch.nn.Parameter(torch.randn(4))
    optimizer = torch.optim.SGD([w], lr=0.1, momentum=0.9, foreach=True)

    def program(_: Any) -> None:
        (w * w).sum().backward()
        optimizer.step()
        w.detach().clone()

    records = ops(record(tmp_path, program))
    phases = [r["phase"] for r in records]
    assert "optimizer" in phases
    assert phases[-1] == "forward"
    foreach = [r for r in records if "foreach" in r["name"]]
    assert foreach
    assert all(r["phase"] == "optimizer" and r["mutated"] for r in foreach)


def test_inference_mode_shows_what_composite_ops_are_made_of(tmp_path: Path) -> None:
    layer = torch.nn.Linear(4, 4)

    def program(_: Any) -> None:
        with torch.inference_mode():
            layer(torch.ones(2, 4))

    assert "aten.addmm.default" in [r["name"] for r in ops(record(tmp_path, program))]


def test_a_read_of_the_device_is_a_sync_mark(tmp_path: Path) -> None:
    x = torch.ones(3)
    on_gpu = record(tmp_path, lambda _: x.sum().item(), device_of=lambda tensor: "cuda")
    (mark,) = [r for r in on_gpu if r["kind"] == "sync"]
    assert mark["name"] == "aten._local_scalar_dense.default"
    assert mark["bytes"] == 4
    assert mark["location"]["file"] == HERE
    assert not [r for r in record(tmp_path, lambda _: x.sum().item()) if r["kind"] == "sync"]


def test_threads_that_the_program_starts_are_recorded(tmp_path: Path) -> None:
    def program(_: Any) -> None:
        thread = threading.Thread(target=lambda: torch.ones(3).exp())
        thread.start()
        thread.join()

    assert [r["name"] for r in ops(record(tmp_path, program))] == ["aten.ones.default", "aten.exp.default"]


@pytest.mark.filterwarnings("ignore:This process")
def test_a_fork_neither_records_nor_repeats_what_is_buffered(tmp_path: Path) -> None:
    def program(_: Any) -> None:
        x = torch.ones(3)
        child = os.fork()
        if child == 0:
            x.exp()
            os._exit(0)
        os.waitpid(child, 0)
        x.abs()

    assert [r["name"] for r in ops(record(tmp_path, program))] == ["aten.ones.default", "aten.abs.default"]


def test_steps_regions_and_ranges(tmp_path: Path) -> None:
    ranges = Ranges()
    recorder = Recorder(tmp_path / "ops.jsonl", ranges=ranges)
    marker = CaptureMarker(ranges, recorder)
    marks.activate(marker)
    try:
        with recorder.recording():
            for _ in range(2):
                marks.step()
                with marks.region("outer"), marks.region("inner"):
                    torch.ones(2)
                torch.zeros(2)
    finally:
        marks.activate(None)
        marker.close()
        recorder.close()
    records = [json.loads(line) for line in (tmp_path / "ops.jsonl").read_text().splitlines()]
    assert [r.get("index") for r in records if r["kind"] == "step"] == [0, 1]
    assert [r["region"] for r in ops(records)] == ["outer > inner", None] * 2
    assert ranges.open == []
    assert ranges.log[:4] == [
        "+fusionaudit:step 0", "+fusionaudit:region outer", "+fusionaudit:region outer > inner",
        "+fusionaudit:op 0 aten.ones.default",
    ]  # fmt: skip


def test_a_step_inside_a_region_keeps_ranges_nested() -> None:
    ranges = Ranges()
    marker = CaptureMarker(ranges, None)
    marker.step()
    marker.enter_region("loop")
    marker.step()
    assert ranges.open == ["fusionaudit:step 1", "fusionaudit:region loop"]
    marker.exit_region()
    marker.close()
    assert ranges.open == []


def test_a_regions_name_may_be_any_text(tmp_path: Path) -> None:
    """torch.profiler writes names into its JSON as they are: a quote in one would end it."""
    from fusionaudit.trace.range_text import understand

    ranges = Ranges()
    marker = CaptureMarker(ranges, None)
    marker.enter_region('é "x"\\')
    marker.enter_region("100%22")
    text = ranges.open[-1]
    assert text == "fusionaudit:region %C3%A9 %22x%22%5C > 100%2522"
    meaning = understand(text, 0)
    assert meaning is not None
    assert (meaning.kind, meaning.value) == ("region", 'é "x"\\ > 100%22')
    marker.close()
    cpu = torch.profiler.ProfilerActivity.CPU
    with torch.profiler.profile(activities=[cpu]) as profiler, torch.profiler.record_function(text):
        pass
    profiler.export_chrome_trace(str(tmp_path / "trace.json"))
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert [e["name"] for e in events if str(e.get("name")).startswith("fusionaudit:")] == [text]


def test_marks_do_nothing_outside_a_capture() -> None:
    marks.step()
    with marks.region("x"):
        pass


def test_a_full_disk_stops_the_writing_not_the_program() -> None:
    writer = LineWriter(Path("/dev/full"))
    writer.write({"kind": "op"})
    writer.flush()
    assert writer.error is not None
    assert writer.error.strerror == "No space left on device"
    writer.write({"kind": "op"})
    writer.close()


def test_compiled_code_is_left_alone(tmp_path: Path) -> None:
    torch._dynamo.reset()
    graphs: list[int] = []

    def backend(graph: Any, _: Any) -> Any:
        graphs.append(1)
        return graph

    compiled = torch.compile(lambda x: torch.relu(x) + 1, backend=backend)
    record(tmp_path, lambda _: compiled(torch.ones(3)))
    assert graphs == [1]
