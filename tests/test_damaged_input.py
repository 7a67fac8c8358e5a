"""Damaged captures, the same ones each time: a verdict or one clear line, never a traceback."""

from __future__ import annotations

import copy
import gzip
import json
import random
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from nsys_exports import ExportFile

from fusionaudit import pipeline
from fusionaudit.capture.manifest import CapturedPass, Manifest, write_manifest
from fusionaudit.device import TARGETS
from fusionaudit.errors import AuditError
from fusionaudit.trace.gpu import describe
from fusionaudit.trace.load import load_trace

CAPTURES = Path(__file__).parent / "data" / "captures"
ODD: tuple[Any, ...] = (None, -5, "text", 1e300, 2**62, -(2**62), b"\x00\xff", "", 0, 3.5, "9" * 400)
ODD_JSON: tuple[Any, ...] = (None, -5, "text", 1e300, 2**70, [], {}, True, [[[]]], {"a": 1}, float("nan"))
SEEDS = range(12)
"""Of some 800 that were tried without a find; these few keep it so."""


def survives(*paths: Path, **options: Any) -> None:
    """A verdict or an AuditError of one line; whatever else is raised fails the test."""
    said = ""
    try:
        result = pipeline.analyze(paths, **options)
        assert result.exit_code in (0, 2)
        json.dumps(result.document)
    except AuditError as error:
        said = error.message
    assert "\n" not in said


def odd_tables(rng: random.Random, source: Path, out: Path) -> None:
    shutil.copy(source, out)
    with sqlite3.connect(out) as db:
        tables = [name for (name,) in db.execute("select name from sqlite_master where type = 'table' order by name")]
        for _ in range(rng.randint(1, 4)):
            table = rng.choice(tables)
            column = rng.choice([row[1] for row in db.execute(f'pragma table_info("{table}")')])
            try:
                match rng.randrange(5):
                    case 0:
                        db.execute(f'drop table "{table}"')
                        tables.remove(table)
                    case 1:
                        db.execute(f'alter table "{table}" drop column "{column}"')
                    case 2:
                        db.execute(f'update "{table}" set "{column}" = ?', (rng.choice(ODD),))
                    case 3:
                        db.execute(f'update "{table}" set "{column}" = ? where rowid % 3 = 0', (rng.choice(ODD),))
                    case 4:
                        db.execute(f'delete from "{table}" where rowid > ?', (rng.randint(0, 5),))
            except (sqlite3.OperationalError, sqlite3.IntegrityError):
                continue
    db.close()


def odd_bytes(rng: random.Random, source: Path, out: Path) -> None:
    data = bytearray(source.read_bytes())
    if rng.random() < 0.3:
        data = data[: rng.randrange(len(data))]
    for _ in range(rng.choice((0, 1, 20, 500)) if data else 0):
        data[rng.randrange(len(data))] = rng.randrange(256)
    out.write_bytes(data)


def odd_value(rng: random.Random, data: Any) -> None:
    """One value somewhere in the data becomes another, or goes."""
    parent, key, node = None, None, data
    for _ in range(rng.randint(1, 8)):
        if isinstance(node, dict) and node:
            parent, key = node, rng.choice(sorted(node))
        elif isinstance(node, list) and node:
            parent, key = node, rng.randrange(len(node))
        else:
            break
        node = parent[key]
    if isinstance(parent, dict) and rng.random() < 0.2:
        del parent[key]
    elif parent is not None:
        parent[key] = copy.deepcopy(rng.choice(ODD_JSON))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("damage", [odd_tables, odd_bytes])
def test_damaged_exports(damage: Callable[[random.Random, Path, Path], None], seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    damage(rng, rng.choice(sorted(CAPTURES.glob("*sum_abs*.sqlite"))), tmp_path / "a.sqlite")
    survives(tmp_path / "a.sqlite")


@pytest.mark.parametrize("seed", SEEDS)
def test_damaged_profiler_traces(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    data = json.loads(gzip.decompress((CAPTURES / "kineto" / "kineto_sum_abs_eager.json.gz").read_bytes()))
    for _ in range(rng.choice((1, 5, 200))):
        odd_value(rng, data)
    (tmp_path / "a.json").write_text(json.dumps(data))
    survives(tmp_path / "a.json")


@pytest.mark.parametrize("seed", SEEDS)
def test_damaged_logs(seed: int, tmp_path: Path) -> None:
    odd_bytes(random.Random(seed), CAPTURES / "sum_abs_compiled.torch_logs.txt", tmp_path / "a.log")
    survives(CAPTURES / "nsys2023.4_sum_abs_compiled.sqlite", inductor_log=tmp_path / "a.log")


def recorded() -> list[dict[str, Any]]:
    def tensor(storage: str) -> dict[str, Any]:
        return {
            "shape": [1024, 64], "strides": [64, 1], "dtype": "float32", "storage": storage, "offset": 0,
            "device": "cuda:0", "is_parameter": False,
        }  # fmt: skip

    out: list[dict[str, Any]] = []
    for step in range(3):
        out.append({"kind": "step", "index": step})
        for i, name in enumerate(("abs", "neg", "sum")):
            out.append(
                {
                    "kind": "op", "id": 3 * step + i, "name": f"aten.{name}.default",
                    "inputs": [tensor(f"{step}.{i}")], "outputs": [tensor(f"{step}.{i + 1}")], "mutated": [],
                    "arguments": [{"tensor": 0}], "location": {"file": "/s.py", "line": i, "function": "f"},
                    "phase": "forward", "thread": 1, "stream": 0, "region": None,
                }
            )  # fmt: skip
        out.append({"kind": "sync", "name": "aten._local_scalar_dense", "location": None, "bytes": 4})
    return out


def captured(folder: Path, records: list[Any], resources: Any = None) -> Path:
    (folder / "eager").mkdir(parents=True)
    (folder / "eager" / "ops.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    (folder / "eager" / "resources.json").write_text(json.dumps({"graphs": {}} if resources is None else resources))
    run = CapturedPass(
        name="eager", trace=None, ops="eager/ops.jsonl", log=None, structured=None, resources="eager/resources.json",
        returncode=0, error=None, wall_s=1.0,
    )  # fmt: skip
    write_manifest(
        folder,
        Manifest(engine="deviceless", command=("s.py",), passes=(run,), device=TARGETS["h200"].to_json()),
    )
    return folder


def test_the_capture_that_is_damaged_below_is_whole(tmp_path: Path) -> None:
    result = pipeline.analyze([captured(tmp_path / "c", recorded())])
    assert {f.rule for f in result.findings} >= {"FA102"}


@pytest.mark.parametrize("seed", range(60))
def test_damaged_capture_folders(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    records = recorded()
    for _ in range(rng.choice((0, 1, 5))):
        odd_value(rng, records)
    resources: Any = {
        "graphs": {"0/0/forward": {"k": {"registers": 31, "spill_bytes": 0, "occupancy": 0.5}}},
        "notes": [],
    }
    for _ in range(rng.choice((0, 1, 5))):
        odd_value(rng, resources)
    folder = captured(tmp_path / "c", records, resources)
    manifest = json.loads((folder / "manifest.json").read_text())
    for _ in range(rng.choice((0, 1, 5))):
        odd_value(rng, manifest)
    (folder / "manifest.json").write_text(json.dumps(manifest))
    survives(folder)


@pytest.mark.parametrize("odd", [float("inf"), "late", b"\xff"])
def test_an_odd_time_of_a_call_is_one_line(odd: Any, tmp_path: Path) -> None:
    export = ExportFile(tmp_path / "a.sqlite")
    export.call(1, 10, odd)
    export.kernel("k", 100, 200, call=1)
    with pytest.raises(AuditError, match="a table holds values of another type"):
        load_trace(export.close())


@pytest.mark.parametrize("odd", ["-5", "many", None, -5, 1e300, b"\xff"])
def test_odd_figures_of_a_gpu_are_left_out_and_noted(odd: Any, tmp_path: Path) -> None:
    export = ExportFile(tmp_path / "a.sqlite")
    export.kernel("k", 100, 200, call=None)
    export.gpu()
    export._db.execute("UPDATE TARGET_INFO_GPU SET smCount = ?, name = 'Some GPU'", (odd,))
    trace = load_trace(export.close())
    assert trace.device is not None
    assert trace.device.sm_count is None
    assert trace.device.peak_bandwidth_bytes_per_s == 4814304000000
    assert [n.kind for n in trace.notes if n.kind == "odd-device"] == ([] if odd is None else ["odd-device"])


def test_a_known_gpu_takes_the_datasheets_figure() -> None:
    device, (note,) = describe("NVIDIA H200", "export", sm_count="-5", compute_capability=(9, 0))
    assert device.sm_count == TARGETS["h200"].sm_count
    assert "sm_count '-5' cannot be; taken from the datasheet" in note.text
