"""Nsight Systems: where it is, its command lines, its export, and the CUPTI that it should load."""

from __future__ import annotations

import contextlib
import glob
import os
import re
import shutil
import sqlite3
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from fusionaudit.errors import AuditError

OLDEST = (2021, 5)
"""First release with SQLite tables as read here and with --cuda-graph-trace."""

INSTALL = (
    "install Nsight Systems (https://developer.nvidia.com/nsight-systems), or point --nsys or $FUSIONAUDIT_NSYS at it"
)

_FOLDERS = (
    "/opt/nvidia/nsight-systems/*/target-linux-x64/nsys",
    "/opt/nvidia/nsight-systems/*/bin/nsys",
    "/opt/nvidia/nsight-systems-cli/*/target-linux-x64/nsys",
    "/usr/local/cuda/bin/nsys",
    "/usr/local/cuda-*/bin/nsys",
    "/usr/lib/nsight-systems/*/nsys",
    "/usr/lib/x86_64-linux-gnu/nsight-systems/*/nsys",
)

_PRIVATE_TABLES = ("TARGET_INFO_SYSTEM_ENV", "PROCESSES", "TARGET_INFO_SESSION_START_TIME", "META_DATA_CAPTURE")
"""Tables of an export that describe the host and its users and that no reader here needs."""


@dataclass(frozen=True, kw_only=True)
class Nsys:
    """An nsys that runs: its path and version (``(2023, 4, 4)``)."""

    path: str
    version: tuple[int, ...]

    @property
    def usable(self) -> bool:
        """New enough."""
        return self.version[:2] >= OLDEST

    @property
    def text(self) -> str:
        """``2023.4.4``."""
        return ".".join(map(str, self.version))


def candidates(option: str | None) -> list[str]:
    """Paths to try, best first; an explicit option or $FUSIONAUDIT_NSYS is the only one."""
    chosen = option or os.environ.get("FUSIONAUDIT_NSYS")
    if chosen:
        return [os.path.join(chosen, "nsys") if os.path.isdir(chosen) else chosen]
    on_path = shutil.which("nsys")
    found = sorted((p for pattern in _FOLDERS for p in glob.glob(pattern)), reverse=True)
    return ([on_path] if on_path else []) + found


def examine(path: str) -> Nsys:
    """Run ``nsys --version``; AuditError where it does not run or says something else."""
    try:
        done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=60, errors="replace")
    except FileNotFoundError:
        raise AuditError(f"{path}: no such program", remedy=INSTALL) from None
    except OSError as error:
        raise AuditError(f"{path}: {error.strerror}", remedy=INSTALL) from None
    except subprocess.TimeoutExpired:
        raise AuditError(f"{path} --version does not answer", remedy=INSTALL) from None
    match = re.search(r"version (\d+)\.(\d+)(?:\.(\d+))?", done.stdout)
    if done.returncode or match is None:
        last = (done.stderr or done.stdout).strip().splitlines()
        raise AuditError(f"{path} is not an nsys that runs: {last[-1] if last else 'no output'}", remedy=INSTALL)
    return Nsys(path=path, version=tuple(int(n) for n in match.groups() if n is not None))


def find_nsys(option: str | None = None) -> Nsys | None:
    """The first usable nsys; ``None`` where there is none. An explicit one that does not work is an AuditError."""
    explicit = bool(option or os.environ.get("FUSIONAUDIT_NSYS"))
    for path in candidates(option):
        try:
            found = examine(path)
        except AuditError:
            if explicit:
                raise
            continue
        if found.usable:
            return found
        if explicit:
            raise AuditError(
                f"{path} is version {found.text}; {'.'.join(map(str, OLDEST))} or newer is needed", remedy=INSTALL
            )
    return None


def profile_command(nsys: Nsys, output: Path, command: list[str]) -> list[str]:
    """``nsys profile`` around a command; the report becomes ``output`` + ``.nsys-rep``."""
    return [
        nsys.path, "profile", "--trace=cuda,nvtx", "--sample=none", "--cpuctxsw=none", "--cuda-graph-trace=node",
        "--force-overwrite=true", f"--output={output}", *command,
    ]  # fmt: skip


def message(text: str) -> str:
    """What nsys complained about in its output: the last line that is not progress."""
    told = re.search(r'Type: ErrorText\s+Value: "([^"]*)"', text)
    if told:
        return told[1]
    lines = [line.strip() for line in text.replace("\r", "\n").splitlines()]
    kept = [
        line
        for line in lines
        if line and not line.startswith(("[", "Generat", "Collecting", "/")) and "Importing" not in line
    ]
    errors = [line for line in kept if re.search(r"error|fail|cannot|unable|denied", line, re.IGNORECASE)]
    return (errors or kept or ["it said nothing"])[-1]


def export_report(path: Path, folder: Path, *, nsys: str | None = None) -> Path:
    """Export a ``.nsys-rep`` to ``FOLDER/NAME.sqlite`` with the local nsys and give that path.

    Host name, environment and process list are removed from the export. AuditError where nsys is missing or fails.
    """
    found = find_nsys(nsys)
    if found is None:
        raise AuditError(f"{path}: exporting it needs nsys, and none was found", remedy=INSTALL)
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / (path.stem + ".sqlite")
    command = [
        found.path, "export", "--type=sqlite", "--force-overwrite=true", f"--output={target}", str(path),
    ]  # fmt: skip
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    except OSError as error:
        raise AuditError(f"{found.path}: {error.strerror}", remedy=INSTALL) from None
    if done.returncode or not target.exists():
        raise AuditError(
            f"nsys export of {path.name} failed: {message(done.stdout)}",
            remedy="export it with the nsys that made it, and analyze the .sqlite",
        )
    scrub(target)
    return target


def scrub(path: Path) -> None:
    """Remove what describes the host (environment, host name, process list) from an export."""
    with contextlib.suppress(sqlite3.Error), contextlib.closing(sqlite3.connect(path)) as database:
        known = {row[0] for row in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        for table in _PRIVATE_TABLES:
            if table in known:
                database.execute(f'DELETE FROM "{table}"')
        database.commit()
        database.execute("VACUUM")


def bundled_cupti(nsys: Nsys) -> tuple[int, int] | None:
    """Version of the newest CUPTI that lies beside this nsys; ``None`` where none does."""
    versions = []
    for name in glob.glob(os.path.join(os.path.dirname(os.path.realpath(nsys.path)), "libcupti.so.*")):
        match = re.search(r"libcupti\.so\.(\d+)\.(\d+)$", name)
        if match:
            versions.append((int(match[1]), int(match[2])))
    return max(versions, default=None)


def installed_cupti(major: int) -> str | None:
    """The CUPTI of that CUDA major version in this Python's packages or in the toolkit."""
    patterns = [
        *(os.path.join(p, "nvidia", "*", "lib", f"libcupti.so.{major}*") for p in sys.path if p),
        f"/usr/local/cuda*/extras/CUPTI/lib64/libcupti.so.{major}*",
        f"/usr/local/cuda*/targets/*/lib/libcupti.so.{major}*",
    ]
    for pattern in patterns:
        found = sorted(glob.glob(pattern))
        if found:
            return os.path.realpath(found[0])
    return None


def cupti_mismatch(nsys: Nsys, cuda: str | None) -> tuple[tuple[int, int], int] | None:
    """(bundled CUPTI, CUDA major) where the bundled CUPTI is older than the CUDA that torch uses.

    Seen with Nsight Systems 2023.4 (CUPTI 12.4) under CUDA 13: recording stops without a word at the first
    cuBLAS call.
    """
    bundled = bundled_cupti(nsys)
    if bundled is None or not cuda:
        return None
    major = int(cuda.split(".")[0])
    return (bundled, major) if bundled[0] < major else None


def cupti_environment(nsys: Nsys, cuda: str | None, folder: Path) -> dict[str, str]:
    """Environment that makes an old nsys load the installed CUPTI; empty where it needs none or there is none.

    nsys picks a library by file name from a folder; ``folder`` gets links of those names, the newest one to the
    installed CUPTI.
    """
    mismatch = cupti_mismatch(nsys, cuda)
    library = installed_cupti(mismatch[1]) if mismatch else None
    if mismatch is None or library is None:
        return {}
    folder.mkdir(parents=True, exist_ok=True)
    newest = "{}.{}".format(*mismatch[0])
    for path in glob.glob(os.path.join(os.path.dirname(os.path.realpath(nsys.path)), "libcupti.so.*")):
        version = path.rsplit("libcupti.so.", 1)[1]
        link = folder / os.path.basename(path)
        if not link.exists():
            link.symlink_to(library if version == newest else path)
    return {"NSYS_CUPTI_LIBRARY_PATH": str(folder)}
