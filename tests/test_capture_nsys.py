"""Finding nsys, its failures in one line each, the CUPTI that it loads, and what an export keeps."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from fusionaudit.capture import engines, nsys, session
from fusionaudit.capture.engines import Choice, choose_engine, device_for
from fusionaudit.capture.environment import Facts, device_of, doctor
from fusionaudit.capture.manifest import read_manifest
from fusionaudit.capture.nsys import Nsys, cupti_environment, cupti_mismatch, export_report, find_nsys, message, scrub
from fusionaudit.capture.session import RunOptions, run_capture
from fusionaudit.errors import AuditError

H200: dict[str, Any] = {
    "name": "NVIDIA H200", "major": 9, "minor": 0, "multi_processor_count": 132, "memory_clock_rate": 3201000,
    "memory_bus_width": 6016,
}  # fmt: skip


def program(path: Path, body: str) -> Path:
    path.write_text("#!/bin/sh\n" + body)
    path.chmod(0o755)
    return path


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An nsys that says its version and fails to profile; the only one to be found."""
    monkeypatch.delenv("FUSIONAUDIT_NSYS", raising=False)
    monkeypatch.setattr(nsys, "_FOLDERS", ())
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return program(
        tmp_path / "nsys",
        'case "$1" in --version) echo "NVIDIA Nsight Systems version 2024.1.1.59-x";;\n'
        '*) echo "Collecting data..."; echo "Error: out of luck"; exit 1;; esac\n',
    )


def test_the_newest_that_runs_is_found_on_the_path(fake: Path) -> None:
    assert find_nsys() == Nsys(path=str(fake), version=(2024, 1, 1))


def test_an_old_one_is_as_good_as_none(fake: Path) -> None:
    program(fake, "echo 'NVIDIA Nsight Systems version 2020.3.1.1'\n")
    assert find_nsys() is None
    with pytest.raises(AuditError, match=r"is version 2020.3.1; 2021.5 or newer"):
        find_nsys(str(fake))


@pytest.mark.parametrize("body", ["exit 3\n", "echo nonsense\n"])
def test_one_that_does_not_run(fake: Path, body: str) -> None:
    program(fake, body)
    assert find_nsys() is None
    with pytest.raises(AuditError, match="is not an nsys that runs"):
        find_nsys(str(fake))


def test_a_path_without_a_program() -> None:
    with pytest.raises(AuditError, match="no such program") as caught:
        find_nsys("/nowhere/nsys")
    assert "install" in caught.value.remedy


def test_engines_are_chosen_and_refused(fake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    facts = Facts(reason="no driver")
    monkeypatch.setattr(engines, "probe", lambda _: facts)

    def choose(wanted: str) -> tuple[str, str]:
        choice = choose_engine(wanted, nsys_option=None, python="python")
        return choice.engine, choice.why

    assert choose("auto") == ("deviceless", "no GPU (no driver); nothing is measured, launches are predicted")
    with pytest.raises(AuditError, match="kineto engine needs a GPU: no driver"):
        choose("kineto")
    facts = Facts(gpu=H200)
    assert choose("auto") == ("nsys", "nsys 2024.1.1, NVIDIA H200")
    assert choose("deviceless")[0] == "deviceless"
    fake.unlink()
    assert choose("auto") == ("kineto", "NVIDIA H200; nsys not found")
    with pytest.raises(AuditError, match="nsys is not installed"):
        choose("nsys")


def test_a_target_belongs_to_the_deviceless_engine() -> None:
    measured = Choice(engine="nsys", nsys=None, facts=Facts(gpu=H200), why="")
    with pytest.raises(AuditError, match="--target"):
        device_for(measured, "h100")
    device = device_for(measured, None)
    assert device is not None
    assert device["sm_count"] == 132
    # 2 x 3.201 GHz x 6016 bit: what an H200's export says too.
    assert device["peak_bandwidth_bytes_per_s"] == 4_814_304_000_000


def test_a_variant_of_a_known_gpu_takes_no_rates_from_it() -> None:
    assert device_of({**H200, "name": "NVIDIA H100 PCIe", "multi_processor_count": 114}).peak_flops_per_s is None


def test_nsys_that_fails_is_named_and_the_capture_kept(
    fake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    choice = Choice(engine="nsys", nsys=Nsys(path=str(fake), version=(2024, 1, 1)), facts=Facts(gpu=H200), why="")
    monkeypatch.setattr(session, "choose_engine", lambda *_, **__: choice)
    Path("s.py").write_text("print(1)\n")
    with pytest.raises(AuditError, match="nothing was captured"):
        run_capture(RunOptions(script="s.py", out=Path("out")))
    (only,) = read_manifest(Path("out")).passes
    assert only.error == "nsys made no report: Error: out of luck"
    assert Path("out/eager/nsys.txt").read_text().endswith("out of luck\n")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Generating '/tmp/a.qdstrm'\n[1/1] [==50%  ] x\rError: no space left\n", "Error: no space left"),
        ('SubError {\n Type: ErrorText\n Value: "Multiple definitions"\n}', "Multiple definitions"),
        ("", "it said nothing"),
    ],
)
def test_what_nsys_said(text: str, said: str) -> None:
    assert message(text) == said


def test_a_report_that_nsys_cannot_export(fake: Path, tmp_path: Path) -> None:
    report = tmp_path / "x.nsys-rep"
    report.touch()
    with pytest.raises(AuditError, match=r"export of x.nsys-rep failed: Error: out of luck"):
        export_report(report, tmp_path / "here")
    fake.unlink()
    with pytest.raises(AuditError, match="none was found"):
        export_report(report, tmp_path / "here")


def test_an_export_forgets_the_host(tmp_path: Path) -> None:
    path = tmp_path / "x.sqlite"
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE PROCESSES (name TEXT)")
        database.execute("CREATE TABLE TARGET_INFO_GPU (name TEXT)")
        database.execute("INSERT INTO PROCESSES VALUES ('secret-daemon')")
        database.execute("INSERT INTO TARGET_INFO_GPU VALUES ('H200')")
    database.close()
    scrub(path)
    assert b"secret-daemon" not in path.read_bytes()
    assert b"H200" in path.read_bytes()


def test_an_old_cupti_is_replaced_by_the_installed_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "nsys"
    home.mkdir()
    for version in ("11.8", "12.4"):
        (home / f"libcupti.so.{version}").touch()
    old = Nsys(path=str(home / "nsys"), version=(2023, 4, 4))
    assert cupti_mismatch(old, "12.6") is None
    assert cupti_mismatch(old, "13.0") == ((12, 4), 13)
    library = tmp_path / "libcupti.so.13"
    library.touch()
    monkeypatch.setattr(nsys, "installed_cupti", lambda major: str(library) if major == 13 else None)
    found = cupti_environment(old, "13.0", tmp_path / "links")
    assert found == {"NSYS_CUPTI_LIBRARY_PATH": str(tmp_path / "links")}
    assert (tmp_path / "links" / "libcupti.so.12.4").resolve() == library
    assert (tmp_path / "links" / "libcupti.so.11.8").resolve() == home / "libcupti.so.11.8"
    assert cupti_environment(old, "12.6", tmp_path / "none") == {}


def test_the_doctor_names_a_remedy_for_all_that_is_missing(fake: Path) -> None:
    fake.unlink()
    checks = doctor()
    assert {"torch", "triton", "GPU", "nsys", "engine", "folder"} <= {c.name for c in checks}
    assert all(c.remedy for c in checks if c.status == "missing")
    assert not any("fusionaudit[" in c.remedy for c in checks), "the package is on no index"


@pytest.mark.skipif(find_nsys() is None, reason="needs nsys (--nsys, $FUSIONAUDIT_NSYS or the PATH)")
def test_a_real_nsys_keeps_the_scripts_output_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    choice = Choice(engine="nsys", nsys=find_nsys(), facts=Facts(reason="test"), why="")
    monkeypatch.setattr(session, "choose_engine", lambda *_, **__: choice)
    Path("s.py").write_text(
        "import os, torch\nprint('mine', torch.ones(2).sum().item())\nopen('made', 'w')\nos._exit(5)\n"
    )
    run_capture(RunOptions(script="s.py", out=Path("out"), passes=("eager",)))
    assert capfd.readouterr().out == "mine 2.0\n"
    manifest = read_manifest(Path("out"))
    assert manifest.passes[0].returncode == 5
    assert manifest.passes[0].trace == "eager/trace.sqlite"
    assert not list(Path("out").rglob("*.nsys-rep"))
    assert [n["kind"] for n in manifest.options["notes"]] == ["no-gpu"]
    assert Path("made").stat().st_mode & 0o777 == Path("s.py").stat().st_mode & 0o777
