"""Files around the gate: locks that are missing or replaced, audits instead of scripts, either side of a diff."""

from __future__ import annotations

from pathlib import Path

import pytest
from guard_documents import document
from report_documents import SOURCES
from test_diff import SPLIT

from fusionaudit import gate
from fusionaudit.baseline import lock_of, write_lock
from fusionaudit.check import check, document_with
from fusionaudit.errors import AuditError
from fusionaudit.limits import Limits
from fusionaudit.program.model import Pass, Program
from fusionaudit.report.document import build_document
from fusionaudit.store import save


def test_a_missing_lock_names_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(AuditError, match="no such lock") as error:
        gate.load_lock(tmp_path / "fusion.lock")
    assert error.value.exit_code == 2


def test_a_binary_lock_is_refused(tmp_path: Path) -> None:
    (tmp_path / "fusion.lock").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(AuditError, match="not a text file"):
        gate.load_lock(tmp_path / "fusion.lock")


WHOLE = write_lock(document()).encode()


@pytest.mark.parametrize(
    "content",
    [WHOLE.replace(b"\n", b"\r\n"), WHOLE.replace(b"\n", b"\r"), b"\xef\xbb\xbf" + WHOLE],
    ids=["CRLF", "CR", "BOM"],
)
def test_what_editors_do_to_a_lock_is_read(content: bytes, tmp_path: Path) -> None:
    for name in ("a.lock", "lock-without-suffix"):
        (tmp_path / name).write_bytes(content)
        assert gate.lock_from(tmp_path / name).groups == lock_of(document()).groups


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (WHOLE.replace(b"aten.mul", b"aten.\0mul"), "NUL bytes"),
        (b"\0" * 1000, "NUL bytes"),
        (WHOLE.decode().encode("utf-16"), "not a text file"),
        (WHOLE.replace(b"aten.mul", b"aten.\xed\xa0\x80"), "not a text file"),
        (WHOLE[: -len("end 6 groups\n")] + b"x" * 50_000_000, "larger than any lock"),
    ],
    ids=["NUL", "NULs", "UTF-16", "surrogate", "50 MB"],
)
def test_what_is_no_lock_is_refused_at_once(content: bytes, says: str, tmp_path: Path) -> None:
    (tmp_path / "a.lock").write_bytes(content)
    with pytest.raises(AuditError, match=says) as error:
        gate.load_lock(tmp_path / "a.lock")
    assert error.value.exit_code == 2


def test_a_folder_or_a_file_below_a_file_is_no_lock(tmp_path: Path) -> None:
    (tmp_path / "a.lock").mkdir()
    (tmp_path / "file").write_text("x")
    for path in (tmp_path / "a.lock", tmp_path / "file" / "b.lock"):
        with pytest.raises(AuditError, match="cannot be read"):
            gate.load_lock(path)


def test_save_check_update(tmp_path: Path) -> None:
    path = tmp_path / "fusion.lock"
    assert gate.save_lock(document(), path).endswith("6 groups (4 eager, 2 compiled), target h100, torch 2.13.0")
    assert gate.check_document(document(), path, Limits()).exit_code == 0
    changed = document(compiled_kernels=SPLIT)
    assert gate.check_document(changed, path, Limits()).exit_code == 1
    updated = gate.check_document(changed, path, Limits(), update=True)
    assert (updated.verdict, updated.exit_code) == ("regression", 0)
    assert gate.check_document(changed, path, Limits()).exit_code == 0
    assert [p.name for p in tmp_path.iterdir()] == ["fusion.lock"]


def test_update_replaces_a_broken_lock(tmp_path: Path) -> None:
    path = tmp_path / "fusion.lock"
    path.write_text("<<<<<<< HEAD\n")
    assert gate.check_document(document(), path, Limits(), update=True).exit_code == 0
    assert gate.check_document(document(), path, Limits()).exit_code == 0


def test_a_lock_and_an_audit_are_sides_of_a_diff(tmp_path: Path) -> None:
    path = tmp_path / "fusion.lock"
    gate.save_lock(document(), path)
    assert len(gate.lock_from(path).groups) == 6
    program = Program(engine="deviceless", device=None, passes=(Pass(name="eager", engine="deviceless"),))
    folder = tmp_path / "audit"
    folder.mkdir()
    save(build_document(program, [], exit_code=0, sources=SOURCES, version="0.1.0"), folder / "audit.db")
    assert gate.lock_from(folder).groups == ()
    with pytest.raises(AuditError, match="no such file"):
        gate.lock_from(tmp_path / "nothing")


def test_an_audit_that_was_checked_before_holds_only_what_this_check_finds() -> None:
    changed = document(compiled_kernels=SPLIT)
    first = document_with(changed, check(changed, lock_of(document())))
    assert [f["rule"] for f in first["findings"]] == ["FA115"]
    again = document_with(first, check(first, lock_of(document())))
    assert [f["rule"] for f in again["findings"]] == ["FA115"]
    assert document_with(first, check(first, lock_of(changed)))["findings"] == []


def test_the_document_of_a_check_holds_its_findings_first() -> None:
    before = document()
    lock = gate.lock_of(before)
    after = document(compiled_kernels=SPLIT)
    told = document_with(after, check(after, lock))
    assert told["findings"][0]["rule"] == "FA115"
    assert told["exit_code"] == 1
    other = document(torch="2.14.1")
    told = document_with(other, check(other, lock))
    assert told["exit_code"] == 2
    assert told["notes"][-1]["text"] == "cannot judge against the lock: other key: torch 2.13.0 -> 2.14.1"
    assert told["notes"][-1]["blocks"] is True
