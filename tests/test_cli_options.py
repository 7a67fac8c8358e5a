"""What a user can get wrong on the command line: one clear line, and nothing has run."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from guard_documents import document as guard_document

from fusionaudit import store
from fusionaudit.baseline import write_lock
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


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["check", "s.py", "--update"], "--update went to the script"),
        (["check", "s.py", "1", "--lock=x"], "--lock went to the script"),
        (["run", "s.py", "--format", "json"], "fusionaudit run --format ... s.py"),
        (["baseline", "s.py", "-o", "x"], "-o went to the script"),
        (["sweep", "--dtype", "fp32,bf16", "s.py", "--dtype"], "--dtype went to the script"),
        (["run", "s.py", "--lr", "1", "update"], ""),
        (["run", "s.py", "--", "--format"], ""),
    ],
)
def test_an_option_behind_the_script_gets_a_hint_and_stays_the_scripts(
    words: list[str], hint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[session.RunOptions] = []

    def capture(options: session.RunOptions) -> Path:
        seen.append(options)
        raise AuditError("stop here")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(session, "run_capture", capture)
    Path("fusion.lock").write_text(write_lock(guard_document()))
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 2
    told = [line for line in result.stderr.splitlines() if "went to the script" in line]
    assert len(told) == bool(hint)
    assert hint in result.stderr
    assert seen[0].arguments == tuple(words[words.index("s.py") + 1 :])


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["run", "missing.py"], "missing.py"),
        (["run", "--engine", "deviceless", "--target", "h1000", "s.py"], "unknown target"),
        (["run", "--passes", "fast", "s.py"], "unknown pass"),
        (["run", "--engine", "deviceless", "broken.py"], "nothing was captured"),
        (["analyze", "missing.sqlite"], "no such file"),
        (["check", "s.py"], "no such lock"),
        (["run"], "no script given"),
    ],
)
def test_json_on_stdout_is_an_object_after_an_error_too(
    words: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("s.py").write_text("print(1)")
    Path("broken.py").write_text("def f(:\n")
    result = CliRunner().invoke(main, [words[0], "--format", "json", *words[1:]])
    assert result.exit_code == 2
    document = json.loads(result.stdout)
    assert {"schema_version", "tool", "engine", "target", "passes", "findings", "notes", "exit_code"} <= set(document)
    assert (document["passes"], document["findings"], document["exit_code"]) == ([], [], 2)
    (note,) = document["notes"]
    assert (note["kind"], note["blocks"]) == ("error", True)
    assert says in note["text"]
    assert f"fusionaudit: {note['text']}" in result.stderr
    assert "schema_version" not in CliRunner().invoke(main, words).stdout


@pytest.mark.parametrize(
    ("words", "says", "help_of"),
    [
        (["run", "--steps", "0", "--format", "json", "s.py"], "0 is not in the range", "run"),
        (["check", "--format=json", "--timeout", "nan", "s.py"], "no number of seconds", "check"),
        (["analyze", "--format", "json"], "Missing argument 'PATHS", "analyze"),
        (["report", ".", "--format", "json", "--bogus"], "--bogus", "report"),
        (["diff", "--format", "json", "a.lock"], "Missing argument 'NEW'", "diff"),
        (["diff", "--format", "json", "a.lock", "b.lock"], "no such", None),
        (["sweep", "--format", "json", "s.py"], "nothing to vary", None),
        (["bench", "--json", "--n", "0"], "0 is not in the range", "bench"),
        (["chek", "--format", "json", "s.py"], "No such command 'chek'", ""),
        (["--bogus", "run", "--format", "json", "s.py"], "--bogus", ""),
    ],
)
def test_words_that_cannot_be_parsed_are_answered_with_json_too(
    words: list[str], says: str, help_of: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 2
    document = json.loads(result.stdout)
    assert (document["schema_version"], document["exit_code"]) == (1, 2)
    assert says in document["notes"][0]["text"]
    assert says in result.stderr
    if help_of is not None:
        assert document["notes"][0]["remedy"] == f"see `{f'main {help_of}'.strip()} --help`"


@pytest.mark.parametrize(
    "words",
    [
        ["run", "--steps", "0", "s.py", "--format", "json"],
        ["run", "--steps", "0", "--format", "perfetto", "s.py"],
        ["run", "--format", "jsn", "s.py"],
        ["report", "--bogus", "--format", "json", "-o", "x.json", "."],
        ["doctor", "--bogus"],
    ],
)
def test_no_json_where_none_was_asked_for_on_stdout(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(main, words)
    assert (result.exit_code, result.stdout) == (2, "")


@pytest.mark.parametrize("fmt", ["github", "sarif", "junit", "json", "markdown"])
def test_no_format_ends_in_a_blank_line(fmt: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    out = CliRunner().invoke(main, ["analyze", SUM_ABS, "--format", fmt]).stdout
    assert not out.endswith("\n\n")
    assert out == "" or out.endswith("\n")
