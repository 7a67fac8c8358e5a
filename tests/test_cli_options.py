"""What a user can get wrong on the command line: one clear line, and nothing has run."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from fusionaudit import store
from fusionaudit.capture import session
from fusionaudit.cli import main
from fusionaudit.errors import AuditError
from fusionaudit.files import write_whole

SUM_ABS = str(Path(__file__).parent / "data" / "captures" / "nsys2023.4_sum_abs_eager.sqlite")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--timeout", "nan"], "nan is no number of seconds"),
        (["--timeout", "inf"], "inf is no number of seconds"),
        (["--timeout", "1e300"], "1e300 is no number of seconds"),
        (["--timeout", "-1"], "-1.0 is not in the range"),
        (["--out", ""], "Invalid value for '--out': an empty path"),
        (["--passes", ","], "--passes names no pass"),
        (["--passes", ""], "--passes names no pass"),
        (["--passes", "eager,fast"], "unknown pass 'fast'"),
        (["--steps", "0"], "0 is not in the range"),
        (["--warmup", "-1"], "-1 is not in the range"),
        (["--target", "h1000"], "unknown target 'h1000'"),
        (["-o", "x"], "no such option: -o"),
        (["--formt", "json"], "no such option: --formt"),
    ],
)
def test_wrong_options_are_one_line(
    options: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def probe(*_: Any, **__: Any) -> Any:
        raise AssertionError("asked the machine")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(session, "choose_engine", probe)
    Path("s.py").write_text("print(1)")
    result = CliRunner().invoke(main, ["run", *options, "s.py"])
    assert result.exit_code == 2
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert [p.name for p in tmp_path.iterdir()] == ["s.py"]


def half(path: Path, text: str, **_: Any) -> None:
    path.touch()
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("fmt", ["json", "console", "html"])
def test_a_full_disk_names_the_file_and_leaves_no_half(
    fmt: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "write_text", half)
    report = tmp_path / "report"
    result = CliRunner().invoke(main, ["analyze", SUM_ABS, "--format", fmt, "-o", str(report)])
    assert result.exit_code == 2
    assert f"{report}: cannot be written: No space left on device" in result.stderr
    assert not list(tmp_path.iterdir())


def test_an_audit_that_cannot_be_kept_leaves_no_half(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(store, "_insert", full)
    result = CliRunner().invoke(main, ["analyze", SUM_ABS, "--out", str(tmp_path)])
    assert result.exit_code == 2
    assert f"{tmp_path / 'audit.db'}: cannot write the audit" in result.stderr
    assert not list(tmp_path.iterdir())


def test_files_are_written_whole_through_links_and_devices(tmp_path: Path) -> None:
    real, link = tmp_path / "real", tmp_path / "link"
    real.write_text("before")
    link.symlink_to(real)
    write_whole(link, "after")
    assert link.is_symlink()
    assert real.read_text() == "after"
    write_whole(Path("/dev/null"), "nothing")
    with pytest.raises(AuditError, match="cannot be written"):
        write_whole(tmp_path / "no" / "folder", "x")
