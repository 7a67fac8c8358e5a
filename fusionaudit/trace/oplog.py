"""Reads ``ops.jsonl``, the recorder's file: one JSON object a line, in order of execution."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from fusionaudit.errors import AuditError
from fusionaudit.findings import Location, Note
from fusionaudit.tensors import Tensor
from fusionaudit.trace.schema import GraphCall, Op, OpLog, Record, StepMark, StopMark, SyncMark

_PHASES = ("forward", "backward", "optimizer")


def _location(data: Any) -> Location | None:
    return (
        None
        if data is None
        else Location(
            file=str(data["file"]),
            line=int(data["line"]),
            function=_optional_word(data.get("function")),
            library=_optional_word(data.get("library")),
        )
    )


def _tensors(data: Any) -> tuple[Tensor, ...]:
    return tuple(Tensor.from_json(t) for t in data or ())


def _optional_int(value: Any) -> int | None:
    return None if value is None else int(value)


def _optional_word(value: Any) -> str | None:
    if value is not None and not isinstance(value, str):
        raise TypeError(f"not a word: {str(value)[:40]}")
    return value


def op_from_json(data: dict[str, Any]) -> Op:
    """An op of a log line or of a document's pass; KeyError, TypeError or ValueError where it is broken."""
    phase = data.get("phase", "forward")
    if phase not in _PHASES:
        raise ValueError(f"phase {phase!r}")
    return Op(
        id=int(data["id"]),
        name=str(data["name"]),
        inputs=_tensors(data.get("inputs")),
        outputs=_tensors(data.get("outputs")),
        mutated=tuple(int(i) for i in data.get("mutated") or ()),
        arguments=tuple(data.get("arguments") or ()),
        location=_location(data.get("location")),
        phase=phase,
        thread=_optional_int(data.get("thread")),
        stream=_optional_int(data.get("stream")),
        region=_optional_word(data.get("region")),
    )


def _on_host(record: Record) -> Record:
    """An op from before the script first named a GPU: it was recorded as if it might run there."""
    if not isinstance(record, Op):
        return record
    inputs, outputs = (tuple(replace(t, device="cpu") for t in side) for side in (record.inputs, record.outputs))
    return replace(record, inputs=inputs, outputs=outputs)


class _Aliases:
    """Storages that are one: under ``--shapes-only`` the result of ``_unsafe_view`` claims a storage of its own."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}

    def _one(self, tensor: Tensor) -> Tensor:
        name = self._names.get(tensor.storage or "")
        return tensor if name is None else replace(tensor, storage=name)

    def applied(self, record: Record) -> Record:
        """The record with the first name of each storage."""
        if isinstance(record, Op) and record.name.startswith("aten._unsafe_view") and record.inputs and record.outputs:
            source, made = self._one(record.inputs[0]).storage, record.outputs[0].storage
            if source is not None and made is not None and made != source:
                self._names[made] = source
        if not self._names or not isinstance(record, (Op, GraphCall)):
            return record
        if not any(t.storage in self._names for t in (*record.inputs, *record.outputs)):
            return record
        inputs, outputs = (tuple(self._one(t) for t in side) for side in (record.inputs, record.outputs))
        return replace(record, inputs=inputs, outputs=outputs)


def _record(data: dict[str, Any]) -> Record | StopMark | None:
    """One record; ``None`` for a kind that this version does not know."""
    kind = data["kind"]
    if kind == "op":
        return op_from_json(data)
    if kind == "graph":
        return GraphCall(
            graph=str(data["graph"]),
            symbols={str(name): int(value) for name, value in (data.get("symbols") or {}).items()},
            inputs=_tensors(data.get("inputs")),
            outputs=_tensors(data.get("outputs")),
            region=_optional_word(data.get("region")),
            location=_location(data.get("location")),
        )
    if kind == "step":
        return StepMark(index=int(data["index"]))
    if kind == "sync":
        return SyncMark(
            name=str(data["name"]), location=_location(data.get("location")), bytes=_optional_int(data.get("bytes"))
        )
    if kind == "stop":
        return StopMark(asked=str(data["asked"]), location=_location(data.get("location")))
    return None


def read_oplog(path: Path) -> OpLog:
    """The records of an op log.

    A last line that was cut off (the script was killed) and broken lines before it are left out and noted; a file that
    has no good line at all though it is not empty is an AuditError.
    """
    try:
        text = path.read_bytes().decode("utf-8", "replace")
    except OSError as error:
        raise AuditError(f"{path}: cannot be read: {error.strerror or error}", remedy="run the audit again") from None
    lines = text.split("\n")
    ended = lines[-1] == ""
    lines = lines[:-1] if ended else lines
    records: list[Record] = []
    aliases = _Aliases()
    broken = unknown = 0
    cut_off = False
    stopped: StopMark | None = None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            data = json.loads(line)
            if data["kind"] == "gpu":
                records = [_on_host(r) for r in records if not isinstance(r, SyncMark)]
                continue
            record = _record(data)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            if number == len(lines) and not ended:
                cut_off = True
            else:
                broken += 1
            continue
        if record is None:
            unknown += 1
        elif isinstance(record, StopMark):
            stopped = record
        else:
            records.append(aliases.applied(record))
    if broken and not records:
        raise AuditError(f"{path}: not an op log: no line of it can be read", remedy="run the audit again")
    notes = []
    if cut_off:
        text = f"{path.name}: the last record is cut off; {len(records)} records before it are used"
        notes.append(Note(kind="cut-off", text=text, remedy="let the script end by itself", blocks=True))
    if broken:
        text = f"{path.name}: {broken} broken lines were left out; chains that pass through them are not seen"
        notes.append(Note(kind="broken-lines", text=text, remedy="run the audit again", blocks=True))
    if unknown:
        text = f"{path.name}: {unknown} records of a kind that this version does not know were left out"
        notes.append(Note(kind="newer-log", text=text, remedy="upgrade fusionaudit", blocks=True))
    return OpLog(records=tuple(records), notes=tuple(notes), stopped=stopped)
