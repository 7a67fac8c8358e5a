"""What the parts that the program names (``fusionaudit.region``) launch, move and take, pass by pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fusionaudit.capture.marks import NESTED
from fusionaudit.program.expectation import around
from fusionaudit.report.rows import shown_passes, total
from fusionaudit.report.wording import Document, basis_note, format_bytes, format_count, format_ns

Kernel = dict[str, Any]
NOTE = (
    "a region has what is nested in it; a kernel of compiled code counts at the line that it is shown at, backward "
    "kernels where backward runs"
)
OUTSIDE = "(no region)"


@dataclass(frozen=True, kw_only=True)
class Row:
    """A region in one pass. ``depth``: how many regions are around it. Copies and fills are no launches."""

    name: str
    depth: int
    pass_name: str
    launches: str
    bytes: str
    time: str


def regions(document: Document) -> list[Row]:
    """A row for each region and pass, in order of execution, the rest of the step last; empty where none is named."""
    passes = shown_passes(document)
    lines = _lines(passes)
    homes = {p["name"]: [(_home(k, lines), k) for k in p["kernels"]] for p in passes}
    paths = dict.fromkeys(path for found in homes.values() for home, _ in found for path in around(home))
    if not paths:
        return []
    out = []
    for path in _nested(list(paths)):
        for p in passes:
            inside = [k for home, k in homes[p["name"]] if path in around(home)]
            out.append(_row(path.rpartition(NESTED)[2], path.count(NESTED), p["name"], inside))
    for p in passes:
        outside = [k for home, k in homes[p["name"]] if home is None]
        if outside:
            out.append(_row(OUTSIDE, 0, p["name"], outside))
    return out


def time_label(document: Document) -> str:
    """The head of the time column with its basis."""
    bases = {p["per_step"].get("time_basis") for p in shown_passes(document)} - {None}
    return "time" + (basis_note(bases.pop()) if len(bases) == 1 else "")


def _lines(passes: Sequence[dict[str, Any]]) -> dict[tuple[str, int], str | None]:
    """The region of each line of eager code; ``None`` where a line runs in several."""
    out: dict[tuple[str, int], str | None] = {}
    for op in next((p["ops"] for p in passes if p["name"] == "eager"), []):
        place = op["location"]
        if place and op["region"] and op["phase"] == "forward":
            line = place["file"], place["line"]
            out[line] = op["region"] if out.get(line, op["region"]) == op["region"] else None
    return out


def _home(kernel: Kernel, lines: dict[tuple[str, int], str | None]) -> str | None:
    """The innermost region of a kernel. Code that torch.compile traced has no regions of its own: its lines tell."""
    own: str | None = kernel["region"]
    place = kernel["location"]
    if kernel["graph"] and kernel["phase"] == "forward" and place:
        inner = lines.get((place["file"], place["line"]))
        if inner and (own is None or inner.startswith(own + NESTED)):
            return inner
    return own


def _nested(paths: Sequence[str]) -> list[str]:
    """Each region followed by what is nested in it, otherwise in the given order."""
    first = {path: i for i, path in enumerate(paths)}
    return sorted(paths, key=lambda path: [first[p] for p in around(path)])


def _row(name: str, depth: int, pass_name: str, kernels: Sequence[Kernel]) -> Row:
    launches = [k for k in kernels if k["category"] not in ("memcpy", "memset")]
    return Row(
        name=name,
        depth=depth,
        pass_name=pass_name,
        launches=format_count(len(launches)),
        bytes=_bytes(kernels),
        time=format_ns(total(kernels, "duration_ns")) if kernels else "-",
    )


def _bytes(kernels: Sequence[Kernel]) -> str:
    """The known bytes; ``>=`` where those of some kernel are known neither for itself nor for its op's first launch."""

    def work(k: Kernel) -> set[object]:
        ids: set[object] = set(k["op_ids"])
        return ids or ({(k["graph"], k["call"])} if k["graph"] is not None else set())

    known = {w for k in kernels if k["global_bytes"] for w in work(k)}
    missing = any(k["global_bytes"] is None and known.isdisjoint(work(k)) for k in kernels)
    size = sum(k["global_bytes"] or 0 for k in kernels)
    return "-" if (missing and not size) or not kernels else ">=" * missing + format_bytes(size)
