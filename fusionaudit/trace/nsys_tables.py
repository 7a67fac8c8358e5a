"""Opens an Nsight Systems SQLite export read-only and gives its tables one shape over all schema versions."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from fusionaudit.errors import AuditError

_ACTIVITY = ("start", "end", "deviceId", "streamId", "correlationId", "globalPid", "graphNodeId")
VIEWS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "kernel": (("CUPTI_ACTIVITY_KIND_KERNEL",), (
        *_ACTIVITY, "demangledName", "shortName", "mangledName",
        "gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ",
        "registersPerThread", "staticSharedMemory", "dynamicSharedMemory", "localMemoryPerThread",
    )),
    "memcpy": (("CUPTI_ACTIVITY_KIND_MEMCPY",), (*_ACTIVITY, "bytes", "copyKind")),
    "memset": (("CUPTI_ACTIVITY_KIND_MEMSET",), (*_ACTIVITY, "bytes")),
    "runtime": (("CUPTI_ACTIVITY_KIND_RUNTIME",), ("start", "end", "globalTid", "correlationId", "nameId")),
    "nvtx": (("NVTX_EVENTS",), ("start", "end", "eventType", "text", "textId", "globalTid")),
    "string": (("StringIds",), ("id", "value")),
    "graph_node": (("CUDA_GRAPH_NODE_EVENTS", "CUDA_GRAPH_EVENTS"), (
        "start", "globalTid", "graphNodeId", "originalGraphNodeId",
    )),
    "gpu": (("TARGET_INFO_GPU",), (
        "id", "name", "memoryBandwidth", "smCount", "l2CacheSize", "totalMemory", "maxRegistersPerSm", "maxShmemPerSm",
        "maxShmemPerBlock", "maxShmemPerBlockOptin", "maxWarpsPerSm", "threadsPerWarp", "maxBlocksPerSm",
        "computeMajor", "computeMinor", "cuDevice",
    )),
    "cuda_device": (("TARGET_INFO_CUDA_DEVICE",), ("gpuId", "cudaId", "pid")),
    "diagnostic": (("DIAGNOSTIC_EVENT",), ("severity", "text", "globalPid")),
}  # fmt: skip
"""View name: the tables it may come from (the one with most of the columns wins) and its columns."""

_SQL = Path(__file__).parent / "sql"
_ESSENTIAL = {"kernel": ("start", "end"), "memcpy": ("start", "end"), "memset": ("start", "end")}
_SIGNS = ("META_DATA_EXPORT", "StringIds", "TARGET_INFO_GPU", "NVTX_EVENTS", "ANALYSIS_DETAILS")


class Export:
    """An open export. ``version`` is its schema as written (``3.7.2``; ``?`` where it does not say).

    ``missing`` names, for each view whose table is there, the columns that the export lacks.
    """

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path = path
        self._connection = connection
        rows = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        self.tables = {str(name) for (name,) in rows}
        if not self.tables & {*_SIGNS, "CUPTI_ACTIVITY_KIND_KERNEL"}:
            some = ", ".join(sorted(self.tables)[:3]) or "none"
            raise AuditError(
                f"{path}: a SQLite database, but not an Nsight Systems export (tables: {some})",
                remedy="make one with `nsys export --type sqlite REPORT.nsys-rep`",
            )
        self.missing: dict[str, tuple[str, ...]] = {}
        for view, (candidates, columns) in VIEWS.items():
            self._make_view(view, candidates, columns)
        self.version = self._schema_version()

    def _columns(self, table: str) -> set[str]:
        return {row[1] for row in self._connection.execute(f'PRAGMA table_info("{table}")')}

    def _make_view(self, view: str, candidates: tuple[str, ...], columns: tuple[str, ...]) -> None:
        table, have = None, set[str]()
        for name in candidates:
            if name in self.tables:
                found = self._columns(name)
                if table is None or len(found & set(columns)) > len(have & set(columns)):
                    table, have = name, found
        lost = tuple(c for c in _ESSENTIAL.get(view, ()) if table is not None and c not in have)
        if lost:
            raise AuditError(
                f"{self.path}: the table {table} lacks {', '.join(lost)}: not an export that this version reads",
                remedy="export the report again with a current nsys",
            )
        parts = [f'"{c}" AS "{c}"' if c in have else f'NULL AS "{c}"' for c in columns]
        source = f'FROM main."{table}"' if table is not None else "WHERE 0"
        self._connection.execute(f"CREATE TEMP VIEW {view} AS SELECT {', '.join(parts)} {source}")
        if table is not None:
            self.missing[view] = tuple(c for c in columns if c not in have)

    def _schema_version(self) -> str:
        for table in (
            "META_DATA_EXPORT",
            "EXPORT_META_DATA",
        ):  # the second up to schema 3.1
            if table in self.tables and {"name", "value"} <= self._columns(table):
                query = f"SELECT value FROM {table} WHERE name = 'EXPORT_SCHEMA_VERSION'"
                row = self._connection.execute(query).fetchone()
                return "?" if row is None else str(row[0])
        return "?"

    def has(self, view: str) -> bool:
        """True where the export has a table behind that view."""
        return view in self.missing

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """The rows of ``sql/QUERY.sql``."""
        text = (_SQL / f"{query}.sql").read_text(encoding="utf-8")
        return self._connection.execute(text).fetchall()


def _decode(value: bytes) -> str:
    return value.decode("utf-8", "replace")


@contextmanager
def open_export(path: Path) -> Iterator[Export]:
    """Open an export; every way in which the file can be broken, now or while it is read, is one AuditError."""
    again = "export the report again with `nsys export --type sqlite`"
    # immutable: read-only folders and files work, and no journal is made beside the user's file.
    connection = sqlite3.connect(f"file:{quote(str(path.resolve()))}?mode=ro&immutable=1", uri=True)
    try:
        connection.text_factory = _decode
        connection.execute("PRAGMA trusted_schema = OFF")
        yield Export(path, connection)
    except sqlite3.DatabaseError as error:
        text = " ".join(str(error).split())
        if "not a database" in text:
            raise AuditError(f"{path}: not a SQLite database", remedy=again) from None
        if "malformed" in text or "disk I/O" in text:
            raise AuditError(f"{path}: the database is cut off or damaged ({text})", remedy=again) from None
        raise AuditError(f"{path}: cannot be read as an Nsight Systems export ({text})", remedy=again) from None
    except (TypeError, ValueError, OverflowError) as error:
        raise AuditError(f"{path}: a table holds values of another type ({error})", remedy=again) from None
    finally:
        connection.close()
