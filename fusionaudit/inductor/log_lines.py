"""Cuts the text of TORCH_LOGS into lines with their source, compile id and artifact."""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from fusionaudit.errors import AuditError

_ATTEMPT = re.compile(r"_\d+$")
"""``0/0_1``: the second attempt at tracing frame 0/0 (after a graph break); the graph itself is 0/0's."""
# V1129 11:32:24.063000 550 torch/_inductor/scheduler.py:3706] [0/0] [__fusion] text
_PREFIX = re.compile(
    r"^(?:\[(?P<rank>rank\d+)\]:\s?)?[VDIWEC]\d{4} (?P<time>\d\d:\d\d:\d\d\.\d+) (?P<thread>\d+) "
    r"(?P<source>[^\]]+?):(?P<line>\d+)\](?: \[(?P<compile>!?-?\d*/[-\d_/]+)\])?(?: \[__(?P<artifact>\w+)\])?"
    r"(?: (?P<text>.*))?$"
)


@dataclass(frozen=True, kw_only=True)
class LogLine:
    """One line with its prefix taken off. ``key`` is the same for all lines of one record (and of equal neighbours)."""

    text: str
    source: str
    artifact: str | None
    compile_id: str | None
    key: tuple[str | None, ...]


def read_text(path: Path) -> tuple[str, bool]:
    """The file's text (``.gz`` by content) and whether it was cut off; bytes that are not UTF-8 are replaced.

    A gzip file that ends early gives what can be unpacked, with the flag set. Raises AuditError where there is no
    such file or it is no text.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise AuditError(
            f"cannot read the log {path}: {error.strerror or error}", remedy="give a readable file"
        ) from error
    cut = False
    if data[:2] == b"\x1f\x8b":
        unpack = zlib.decompressobj(wbits=31)
        parts = []
        while data:
            try:
                parts.append(unpack.decompress(data))
            except (zlib.error, gzip.BadGzipFile):
                cut = True
                break
            if not unpack.eof:
                cut = True
                break
            data = unpack.unused_data
            unpack = zlib.decompressobj(wbits=31)
        data = b"".join(parts)
    if b"\x00" in data[:4096]:
        raise AuditError(f"{path} is not a log but a binary file", remedy="give the text that TORCH_LOGS wrote")
    return data.decode("utf-8", errors="replace"), cut


def parse_lines(text: str) -> Iterator[LogLine]:
    """The lines that carry a torch log prefix, in order; everything else (prints, warnings) is skipped."""
    for raw in text.split("\n"):
        found = _PREFIX.match(raw.rstrip("\r"))
        if found is None:
            continue
        rank, time, thread, source, line, compile_id, artifact, body = found.groups()
        yield LogLine(
            text=body or "",
            source=source,
            artifact=artifact,
            compile_id=compile_id and _ATTEMPT.sub("", compile_id),
            key=(rank, time, thread, source, line, compile_id, artifact),
        )


def plain_warnings(text: str) -> Iterator[str]:
    """Lines without a prefix that the readers of events look at (Python warnings on stderr)."""
    for raw in text.split("\n"):
        if "CUDAGraph" in raw and _PREFIX.match(raw) is None:
            yield raw.strip()


def records(lines: Iterable[LogLine], artifact: str) -> Iterator[list[LogLine]]:
    """Neighbouring lines of one artifact that one log call wrote: the same prefix but for the text.

    Lines of other artifacts, processes and threads in between do not end a record. Two log calls of one source line
    within a microsecond come as one record; the readers cut at their own headers.
    """
    open_records: dict[tuple[str | None, ...], list[LogLine]] = {}
    order: list[list[LogLine]] = []
    last: dict[tuple[str | None, ...], tuple[str | None, ...]] = {}
    for line in lines:
        if line.artifact != artifact:
            continue
        owner = (line.key[0], line.key[2])
        if last.get(owner) != line.key:
            last[owner] = line.key
            open_records[owner] = []
            order.append(open_records[owner])
        open_records[owner].append(line)
    yield from order
