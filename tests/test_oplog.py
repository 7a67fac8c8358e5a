"""The recorder's file is read whole, cut off, and broken."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fusionaudit.errors import AuditError
from fusionaudit.findings import Location
from fusionaudit.tensors import Tensor
from fusionaudit.trace.oplog import read_oplog
from fusionaudit.trace.schema import GraphCall, Op, StepMark, SyncMark

LINE = {"file": "/home/user/script.py", "line": 3, "function": "f"}
X = Tensor.contiguous((4, 2), "float32", "s1")
Y = Tensor.contiguous((4, 2), "float32", "s2")
ADD = {
    "kind": "op", "id": 17, "name": "aten.add_.Tensor", "inputs": [X.to_json(), Y.to_json()], "outputs": [X.to_json()],
    "mutated": [0], "arguments": [{"tensor": 0}, {"tensor": 1}, {"kwargs": {"alpha": 2}}], "location": LINE,
    "phase": "backward", "thread": 5, "stream": 1, "region": "loss",
}  # fmt: skip
RECORDS = [
    {"kind": "step", "index": 0},
    ADD,
    {
        "kind": "graph",
        "graph": "0/0/forward",
        "symbols": {"s0": 12},
        "inputs": [X.to_json()],
        "outputs": [],
        "location": LINE,
    },
    {"kind": "sync", "name": "aten._local_scalar_dense", "location": None, "bytes": 4},
]


def write(path: Path, *lines: object, end: str = "\n") -> Path:
    path.write_text("\n".join(x if isinstance(x, str) else json.dumps(x) for x in lines) + end)
    return path


def test_every_kind_of_record(tmp_path: Path) -> None:
    log = read_oplog(write(tmp_path / "ops.jsonl", *RECORDS))
    assert log.notes == ()
    assert log.records == (
        StepMark(index=0),
        Op(
            id=17, name="aten.add_.Tensor", inputs=(X, Y), outputs=(X,), mutated=(0,),
            arguments=({"tensor": 0}, {"tensor": 1}, {"kwargs": {"alpha": 2}}),
            location=Location(file="/home/user/script.py", line=3, function="f"), phase="backward", thread=5, stream=1,
            region="loss",
        ),
        GraphCall(
            graph="0/0/forward", symbols={"s0": 12}, inputs=(X,),
            location=Location(file="/home/user/script.py", line=3, function="f"),
        ),
        SyncMark(name="aten._local_scalar_dense", bytes=4),
    )  # fmt: skip


def test_a_record_with_only_what_it_must_have(tmp_path: Path) -> None:
    log = read_oplog(write(tmp_path / "ops.jsonl", {"kind": "op", "id": 1, "name": "aten.abs.default"}))
    assert log.records == (Op(id=1, name="aten.abs.default"),)


def test_an_empty_log_is_a_log(tmp_path: Path) -> None:
    path = tmp_path / "ops.jsonl"
    path.write_text("")
    assert read_oplog(path).records == ()


@pytest.mark.parametrize("kept", [1, 20, 150])
def test_a_last_line_that_was_cut_off(tmp_path: Path, kept: int) -> None:
    log = read_oplog(write(tmp_path / "ops.jsonl", *RECORDS, json.dumps(ADD)[:kept], end=""))
    assert len(log.records) == 4
    assert [n.kind for n in log.notes] == ["cut-off"]
    assert "4 records before it" in log.notes[0].text


def test_a_last_line_that_only_lacks_its_newline(tmp_path: Path) -> None:
    log = read_oplog(write(tmp_path / "ops.jsonl", *RECORDS, end=""))
    assert (len(log.records), log.notes) == (4, ())


def test_broken_lines_in_the_middle_and_newer_records(tmp_path: Path) -> None:
    lines = [RECORDS[0], "{", {"kind": "op"}, ADD | {"phase": "sideways"}, [], {"kind": "future"}, RECORDS[3]]
    log = read_oplog(write(tmp_path / "ops.jsonl", *lines))
    assert [type(r).__name__ for r in log.records] == ["StepMark", "SyncMark"]
    assert [n.kind for n in log.notes] == ["broken-lines", "newer-log"]
    assert "4 broken lines" in log.notes[0].text


def test_not_an_op_log_at_all(tmp_path: Path) -> None:
    path = tmp_path / "ops.jsonl"
    path.write_bytes(b"\x00\xff\x00\n\x01\n")
    with pytest.raises(AuditError, match="not an op log"):
        read_oplog(path)
    with pytest.raises(AuditError, match="cannot be read"):
        read_oplog(tmp_path)


def test_an_unsafe_view_is_a_view_though_fake_tensors_give_it_a_storage(tmp_path: Path) -> None:
    """--shapes-only: what reads the view reads what the op before it wrote."""
    fresh = {**Y.to_json(), "storage": "s9"}
    view = {**ADD, "name": "aten._unsafe_view.default", "inputs": [X.to_json()], "outputs": [fresh], "mutated": []}
    again = {**view, "inputs": [fresh], "outputs": [{**fresh, "storage": "s10"}]}
    last = {**ADD, "inputs": [{**fresh, "storage": "s10"}, Y.to_json()], "outputs": [fresh]}
    _, _, op = read_oplog(write(tmp_path / "ops.jsonl", view, again, last)).records
    assert isinstance(op, Op)
    assert [t.storage for t in (*op.inputs, *op.outputs)] == ["s1", "s2", "s1"]
