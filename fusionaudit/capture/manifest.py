"""The capture folder: a manifest and the files of each pass. The only link between running and analysing."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fusionaudit.errors import AuditError
from fusionaudit.files import write_whole

FORMAT = 1
MANIFEST = "manifest.json"


@dataclass(frozen=True, kw_only=True)
class CapturedPass:
    """Files of one pass, relative to the capture folder; ``None`` where the engine makes none.

    ``trace``: ``.sqlite`` (nsys) or ``.json.gz`` (kineto). ``ops``: the recorder's JSON lines. ``log``: text with
    TORCH_LOGS artifacts. ``structured``: a TORCH_TRACE folder. ``resources``: what kernels take, from ptxas
    (deviceless) or as loaded (JSON).
    ``returncode`` is the child's; ``error`` is its last line where it failed.
    """

    name: str
    trace: str | None = None
    ops: str | None = None
    log: str | None = None
    structured: str | None = None
    resources: str | None = None
    returncode: int = 0
    error: str | None = None
    wall_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What was run, where and how. ``device`` is ``Device.to_json()``; ``environment`` has no secret in it."""

    engine: str
    command: tuple[str, ...]
    passes: tuple[CapturedPass, ...]
    device: dict[str, Any] | None = None
    environment: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    created: str = ""
    format: int = FORMAT


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write ``manifest.json`` into the folder, whole or not at all."""
    write_whole(folder / MANIFEST, json.dumps(asdict(manifest), indent=1) + "\n")


def read_manifest(folder: Path) -> Manifest:
    """Read it back; AuditError where it is missing, broken, or of a later format."""
    path = folder / MANIFEST
    try:
        data = json.loads(path.read_text())
    except OSError as error:
        raise AuditError(f"{folder}: not a capture folder ({error.strerror}: {MANIFEST})") from None
    except (ValueError, RecursionError):
        raise AuditError(f"{path}: not JSON", remedy="the capture was cut off; run it again") from None
    if not isinstance(data, dict) or not isinstance(data.get("format"), int):
        raise AuditError(f"{path}: not a fusionaudit manifest")
    if data["format"] > FORMAT:
        raise AuditError(f"{path}: format {data['format']} is newer than this fusionaudit", remedy="upgrade it")
    try:
        passes = tuple(CapturedPass(**p) for p in data.pop("passes"))
        manifest = Manifest(passes=passes, command=tuple(data.pop("command")), **data)
        _check_types(manifest)
        return manifest
    except (TypeError, KeyError, AttributeError) as error:
        raise AuditError(f"{path}: broken manifest: {error}") from None


def _check_types(manifest: Manifest) -> None:
    """TypeError where a value is not of its kind: what comes after trusts them."""
    for p in manifest.passes:
        paths = (p.trace, p.ops, p.log, p.structured, p.resources)
        if not isinstance(p.name, str) or any(x is not None and (not isinstance(x, str) or "\0" in x) for x in paths):
            raise TypeError(f"pass {p.name!r}")
        if not isinstance(p.returncode, int):
            raise TypeError(f"returncode {p.returncode!r}")
    for key in ("steps", "warmup"):
        value = manifest.options.get(key)
        if value is not None and (not isinstance(value, int) or value < 0):
            raise TypeError(f"{key} {value!r}")
    if not isinstance(manifest.environment, dict) or not isinstance(manifest.engine, str):
        raise TypeError("environment")
