from __future__ import annotations

import contextlib
import json
import sqlite3
from pathlib import Path

import pytest

from fusionaudit.device import Device
from fusionaudit.errors import AuditError
from fusionaudit.findings import Finding, Location, Note, Verification
from fusionaudit.program.model import Kernel, Pass, Program
from fusionaudit.report.document import Document, build_document
from fusionaudit.store import load, save
from fusionaudit.tensors import Tensor
from fusionaudit.trace.schema import Op

X = Tensor.contiguous((1024,), "float32", "s0")
Y = Tensor.contiguous((1024,), "float32", "s1")
Z = Tensor.contiguous((), "float32", "s2")
WHERE = Location(file="/tmp/a.py", line=3, function="f")


def document() -> Document:
    ops = (
        Op(id=1, name="aten.abs.default", inputs=(X,), outputs=(Y,), location=WHERE, arguments=({"tensor": 0},)),
        Op(id=2, name="aten.sum.default", inputs=(Y,), outputs=(Z,), location=WHERE),
    )
    kernels = (
        Kernel(id=0, name="abs<float>", category="pointwise", ops=(1,), op_names=("aten.abs.default",), reads=(X,),
               writes=(Y,), read_bytes=4096, write_bytes=4096, duration_ns=2000, time_basis="measured"),
        Kernel(id=1, name="sum", category="reduction", ops=(2,), reads=(Y,), writes=(Z,), read_bytes=4096,
               write_bytes=4, duration_ns=1500, time_basis="measured"),
        Kernel(id=2, name="mystery", category="opaque"),
    )  # fmt: skip
    finding = Finding(
        rule="FA102", pass_name="eager", severity="warning", message="abs is not fused into sum",
        ops=("aten.abs", "aten.sum"), op_ids=(1, 2), kernel_ids=(0, 1), location=WHERE, avoidable_bytes=8192,
        verification=Verification(verdict="confirmed", reason="faster", saving_ns=900),
    )  # fmt: skip
    program = Program(
        engine="nsys",
        device=Device(name="GPU", sm_count=10, peak_bandwidth_bytes_per_s=10**12),
        passes=(Pass(name="eager", engine="nsys", kernels=kernels, ops=ops, steps=3, step_ns=5000, idle_ns=1500),),
        environment={"torch": "2.11", "options": [1, 2]},
        notes=(Note(kind="lost-events", text="two", remedy="again", blocks=True),),
    )
    return build_document(program, [finding], exit_code=2, sources={"/tmp/a.py": {"3": "y = x.abs().sum()"}})


def test_audit_db_gives_back_the_same_document(tmp_path: Path) -> None:
    made = json.loads(json.dumps(document()))
    save(made, tmp_path / "audit.db")
    assert load(tmp_path) == made


def test_tables_can_be_queried(tmp_path: Path) -> None:
    save(document(), tmp_path / "audit.db")
    with contextlib.closing(sqlite3.connect(tmp_path / "audit.db")) as db:
        assert db.execute("select name, global_bytes from kernels order by id").fetchall() == [
            ("abs<float>", 8192),
            ("sum", 4100),
            ("mystery", None),
        ]
        assert db.execute('select "from", "to", bytes from edges').fetchall() == [(0, 1, 4096)]
        assert db.execute("select verdict from verifications").fetchall() == [("confirmed",)]


def test_per_step_figures() -> None:
    step = document()["passes"][0]["per_step"]
    assert (step["launches"], step["distinct_kernels"], step["global_bytes"]) == (3, 3, 12292)
    assert step["gpu_time_ns"] is None, "one kernel has no time: the sum is not known"
    assert step["intermediate_bytes"] == 4096
    assert step["kernels_without_bytes"] == 1
    assert step["bandwidth_bytes_per_s"] == round(12292 / 3500 * 1e9)


@pytest.mark.parametrize(
    "content",
    [b"", b"not a database at all, just text", b"SQLite format 3\x00" + bytes(200)],
    ids=["empty", "text", "cut"],
)
def test_broken_audit_is_one_clear_error(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "audit.db").write_bytes(content)
    with pytest.raises(AuditError, match=r"audit\.db"):
        load(tmp_path)


def test_missing_and_foreign_databases(tmp_path: Path) -> None:
    with pytest.raises(AuditError, match="no audit there"):
        load(tmp_path)
    with contextlib.closing(sqlite3.connect(tmp_path / "audit.db")) as db:
        db.execute("create table t (x)")
    with pytest.raises(AuditError, match=r"not an audit\.db"):
        load(tmp_path)


def test_unwritable_folder_is_an_audit_error(tmp_path: Path) -> None:
    with pytest.raises(AuditError, match="cannot write"):
        save(document(), tmp_path / "no" / "such" / "folder" / "audit.db")
