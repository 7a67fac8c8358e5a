"""Small Nsight Systems exports as literals: the tables that the reader reads, in any schema's shape."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

PID = 7 << 24
"""Serialized GlobalId of process 7; a thread of it is PID + thread."""


class ExportFile:
    """Writes an export row by row; times are ns. ``lacking`` columns are left out of the tables (older schemas)."""

    def __init__(self, path: Path, *, version: str = "3.7.2", lacking: Sequence[str] = ()) -> None:
        self.path = path
        self._lacking = set(lacking)
        self._db = sqlite3.connect(path)
        self._strings: dict[str, int] = {}
        meta = "META_DATA_EXPORT" if tuple(map(int, version.split("."))) >= (3, 4) else "EXPORT_META_DATA"
        self._make(meta, "name value")
        self._make("StringIds", "id value")
        self._db.execute(f"INSERT INTO {meta} VALUES ('EXPORT_SCHEMA_VERSION', ?)", (version,))

    def _make(self, table: str, columns: str) -> list[str]:
        kept = [c for c in columns.split() if c not in self._lacking]
        quoted = ", ".join(f'"{c}"' for c in kept)
        self._db.execute(f"CREATE TABLE IF NOT EXISTS {table} ({quoted})")
        return kept

    def add(self, table: str, columns: str, **values: Any) -> None:
        """Add one row; columns that are not given are NULL."""
        kept = self._make(table, columns)
        marks = ", ".join("?" for _ in kept)
        self._db.execute(f"INSERT INTO {table} VALUES ({marks})", [values.get(c) for c in kept])

    def string(self, text: str) -> int:
        """The id of a text."""
        if text not in self._strings:
            self._strings[text] = len(self._strings) + 1
            self._db.execute("INSERT INTO StringIds VALUES (?, ?)", (self._strings[text], text))
        return self._strings[text]

    def kernel(
        self, name: str, start: int, end: int, *, call: int | None, pid: int = PID, node: int | None = None, **more: Any
    ) -> None:
        """A kernel launched by the API call of that correlation."""
        self.add(
            "CUPTI_ACTIVITY_KIND_KERNEL",
            "start end deviceId streamId correlationId globalPid demangledName shortName gridX gridY gridZ blockX "
            "blockY blockZ registersPerThread staticSharedMemory dynamicSharedMemory localMemoryPerThread graphNodeId",
            **(
                {
                    "start": start, "end": end, "deviceId": 0, "streamId": 7, "correlationId": call, "globalPid": pid,
                    "demangledName": self.string(name), "shortName": self.string(name.split("<")[0]), "gridX": 8,
                    "gridY": 1, "gridZ": 1, "blockX": 128, "blockY": 1, "blockZ": 1, "registersPerThread": 32,
                    "staticSharedMemory": 0, "dynamicSharedMemory": 16, "localMemoryPerThread": 0, "graphNodeId": node,
                }
                | more
            ),
        )  # fmt: skip

    def copy(self, start: int, end: int, *, call: int, kind: int, size: int) -> None:
        """A memcpy."""
        self.add(
            "CUPTI_ACTIVITY_KIND_MEMCPY", "start end deviceId streamId correlationId globalPid bytes copyKind",
            start=start, end=end, deviceId=0, streamId=7, correlationId=call, globalPid=PID, bytes=size, copyKind=kind,
        )  # fmt: skip

    def call(
        self, number: int, start: int, end: int, *, name: str = "cudaLaunchKernel_v7000", tid: int = PID + 1
    ) -> None:
        """A CUDA API call."""
        self.add(
            "CUPTI_ACTIVITY_KIND_RUNTIME", "start end globalTid correlationId nameId",
            start=start, end=end, globalTid=tid, correlationId=number, nameId=self.string(name),
        )  # fmt: skip

    def range(
        self, text: str, start: int, end: int | None, *, tid: int = PID + 1, kind: int = 59, registered: bool = False
    ) -> None:
        """An NVTX range; ``registered``: its text is a registered string."""
        self.add(
            "NVTX_EVENTS", "start end eventType text textId globalTid", start=start, end=end, eventType=kind,
            text=None if registered else text, textId=self.string(text) if registered else None, globalTid=tid,
        )  # fmt: skip

    def launch(self, name: str, at: int, *, number: int, tid: int = PID + 1, pid: int = PID) -> None:
        """A call at ``at`` (2 ns long) and its kernel 10 ns later (5 ns long)."""
        self.call(number, at, at + 2, tid=tid)
        self.kernel(name, at + 10, at + 15, call=number, pid=pid)

    def gpu(self) -> None:
        """An H200 as TARGET_INFO_GPU has it."""
        self.add(
            "TARGET_INFO_GPU",
            "id name memoryBandwidth smCount l2CacheSize totalMemory maxRegistersPerSm maxShmemPerSm maxShmemPerBlock "
            "maxShmemPerBlockOptin maxWarpsPerSm threadsPerWarp maxBlocksPerSm computeMajor computeMinor cuDevice",
            id=0, name="NVIDIA H200", memoryBandwidth=4814304000000, smCount=132, l2CacheSize=62914560,
            totalMemory=150109880320, maxRegistersPerSm=65536, maxShmemPerSm=233472, maxShmemPerBlock=49152,
            maxShmemPerBlockOptin=232448, maxWarpsPerSm=64, threadsPerWarp=32, maxBlocksPerSm=32, computeMajor=9,
            computeMinor=0, cuDevice=0,
        )  # fmt: skip

    def close(self) -> Path:
        """Write the file."""
        self._db.commit()
        self._db.close()
        return self.path
