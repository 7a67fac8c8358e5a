"""Trim Nsight Systems exports for the tests: ``python trim.py FOLDER [NAME...]`` writes them beside this file.

Whole stay: kernels, copies, fills, NVTX ranges, graph nodes, strings in use, GPU and export metadata, diagnostics.
Of the CUDA API calls stay those that belong to an activity, wait, launch or build a graph, and every launch. All other
tables (ENUM tables, streams, CUDA events) go. Logs are copied as they are.
"""

from __future__ import annotations

import shutil
import sqlite3
import sys
from pathlib import Path

KEPT = (
    "ANALYSIS_DETAILS",
    "CUDA_GRAPH_EVENTS",
    "CUDA_GRAPH_NODE_EVENTS",
    "CUPTI_ACTIVITY_KIND_KERNEL",
    "CUPTI_ACTIVITY_KIND_MEMCPY",
    "CUPTI_ACTIVITY_KIND_MEMSET",
    "CUPTI_ACTIVITY_KIND_RUNTIME",
    "DIAGNOSTIC_EVENT",
    "ENUM_CUDA_MEMCPY_OPER",
    "ENUM_CUDA_MEM_KIND",
    "META_DATA_EXPORT",
    "NVTX_EVENTS",
    "StringIds",
    "TARGET_INFO_CUDA_DEVICE",
    "TARGET_INFO_GPU",
)
CALLS = ("%Synchronize%", "%aunch%", "%Graph%", "%Capture%")


def trim(source: Path, target: Path) -> None:
    """Write a trimmed copy of one export."""
    shutil.copy(source, target)
    target.chmod(0o644)
    database = sqlite3.connect(target)
    tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    for name in tables - set(KEPT):
        database.execute(f'DROP TABLE "{name}"')
    tables &= set(KEPT)
    activities = sorted(t for t in tables if t.endswith(("_KERNEL", "_MEMCPY", "_MEMSET")))
    used = " UNION ".join(f"SELECT correlationId FROM {t}" for t in activities)
    names = " OR ".join(f"value LIKE '{pattern}'" for pattern in CALLS)
    database.execute(
        f"DELETE FROM CUPTI_ACTIVITY_KIND_RUNTIME WHERE correlationId NOT IN ({used}) "
        f"AND nameId NOT IN (SELECT id FROM StringIds WHERE {names})"
    )
    ids = [
        f"SELECT {column} FROM {table}"
        for table in tables - {"StringIds"}
        for _, column, *_ in database.execute(f'PRAGMA table_info("{table}")').fetchall()
        if column.endswith(("Name", "nameId", "textId", "jsonTextId"))
    ]
    # A NULL among the ids would make NOT IN keep every string, hence the filter.
    database.execute(
        f"DELETE FROM StringIds WHERE id NOT IN (WITH used(id) AS ({' UNION '.join(ids)}) "
        "SELECT id FROM used WHERE id IS NOT NULL)"
    )
    database.commit()
    database.execute("PRAGMA page_size = 1024")
    database.execute("VACUUM")
    database.close()


def main() -> None:
    """Trim every export of a folder (or the named ones) and copy the logs."""
    here, folder, wanted = Path(__file__).parent, Path(sys.argv[1]), sys.argv[2:]
    for source in sorted(folder.iterdir()):
        if wanted and source.name not in wanted:
            continue
        if source.suffix == ".sqlite":
            trim(source, here / source.name)
        elif source.name.endswith(".torch_logs.txt"):
            (here / source.name).write_bytes(source.read_bytes())


if __name__ == "__main__":
    main()
