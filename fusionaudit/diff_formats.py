"""``fusionaudit diff`` for machines and for a pull request: the comparison as JSON and as Markdown."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from fusionaudit.diff import Change, Changes, Totals, compare, graph_counts
from fusionaudit.explain import UNRELATED, counted, describe, megabytes, opening
from fusionaudit.figures import launched
from fusionaudit.groups import Group, Lock, Ref
from fusionaudit.report.markdown import code, table, text

SCHEMA_VERSION = 1
_MOST_CHANGES = 100
"""Rows of the Markdown table: a comment holds some 65,000 characters."""
_LONGEST_CHANGE = 450


def diff_json(old: Lock, new: Lock, sides: tuple[str, str]) -> dict[str, Any]:
    """The comparison as one object. ``passes`` holds what both sides ran, ``missing`` what one never ran (not
    compared); bytes are null where a kernel's are not known. A change has its text, its groups and the lost edges."""
    changes = compare(old, new)
    return {
        "schema_version": SCHEMA_VERSION,
        "old": {"path": sides[0], "key": asdict(old.key)},
        "new": {"path": sides[1], "key": asdict(new.key)},
        "other_key": list(changes.other_key),
        "unrelated": changes.unrelated,
        "passes": {
            name: {"old": _totals(pair[0], graphs[0]), "new": _totals(pair[1], graphs[1])}
            for name, pair in changes.totals.items()
            for graphs in [graph_counts(old, new, name)]
        },
        "missing": {
            "old": {name: _totals(t) for name, t in changes.only_new.items()},
            "new": {name: _totals(t) for name, t in changes.only_old.items()},
        },
        "groups_the_same": changes.same,
        "changes": [_change(c) for c in changes.changes],
    }


def _totals(totals: Totals, graphs: int | None = None) -> dict[str, Any]:
    row: dict[str, Any] = {
        "launches": totals.launches,
        "copies_and_fills": totals.copies,
        "known_bytes": totals.bytes,
        "groups_without_bytes": totals.unknown,
    }
    return row if graphs is None else {**row, "graphs": graphs}


def _change(change: Change) -> dict[str, Any]:
    return {
        "kind": change.kind,
        "pass": change.pass_name,
        "message": describe(change),
        "launches": list(change.launches),
        "bytes": list(change.bytes),
        "old": [_group(g) for g in change.old],
        "new": [_group(g) for g in change.new],
        "lost_edges": [
            {
                "producer": e.producer, "producer_location": e.producer_ref and _ref(e.producer_ref),
                "consumer": e.consumer, "consumer_location": e.consumer_ref and _ref(e.consumer_ref),
                "through": list(e.through), "tensor": e.tensor, "bytes": e.bytes,
            }
            for e in change.lost_edges
        ],
    }  # fmt: skip


def _group(group: Group) -> dict[str, Any]:
    return {
        "what": "copy" if group.copy else group.what,
        "ops": list(group.ops),
        "reads": list(group.reads),
        "writes": list(group.writes),
        "launches": group.launches,
        "bytes": group.bytes,
        "graph": group.section.graph,
        "phase": group.section.kind,
        "locations": [_ref(r) for r in group.refs],
    }


def _ref(ref: Ref) -> dict[str, Any]:
    return {"file": ref.path or ref.file, "function": ref.function, "code": ref.code, "line": ref.line}


def diff_markdown(old: Lock, new: Lock, sides: tuple[str, str]) -> str:
    """The comparison as GitHub-flavoured Markdown; every text of a lock is escaped."""
    changes = compare(old, new)
    out = [f"### fusionaudit: {code(sides[0])} and {code(sides[1])}", ""]
    out += [text(opening(changes, new, sides)), ""]
    rows = [_row(name, *pair, graph_counts(old, new, name)) for name, pair in changes.totals.items()]
    if rows:
        out += [*table(["per step", "launches", "copies and fills", "bytes", "graphs"], rows, range(1, 5)), ""]
    for lone, (has, lacks) in ((changes.only_old, sides), (changes.only_new, sides[::-1])):
        for name, totals in lone.items():
            ran = launched(totals.launches, totals.copies)
            out += [f"{text(name)}: not compared, as it never ran in {code(lacks)} ({code(has)}: {ran})", ""]
    out += [counted(changes), ""]
    return "\n".join([*out, *_changes(changes)])


def _row(name: str, before: Totals, after: Totals, graphs: tuple[int, int]) -> list[str]:
    sizes = [megabytes(t.bytes) + (f" and {t.unknown} unknown" if t.unknown else "") for t in (before, after)]
    pairs = [(before.launches, after.launches), (before.copies, after.copies), sizes, graphs]
    return [text(name), *(f"{a} → {b}" for a, b in pairs)]


def _changes(changes: Changes) -> list[str]:
    if not changes.changes:
        return []
    if changes.unrelated:
        return [text(UNRELATED), ""]
    rows = []
    for change in changes.changes[:_MOST_CHANGES]:
        ref = change.refs[0] if change.refs else None
        where = f"{ref.file}:{ref.line or ref.function}" if ref else ""
        line = f"{code(where)} {code(ref.code)}" if ref else ""
        told = describe(change)
        rows.append(
            [change.kind, line, text(told if len(told) <= _LONGEST_CHANGE else f"{told[:_LONGEST_CHANGE]} ...")]
        )
    more = len(changes.changes) - _MOST_CHANGES
    return [*table(["change", "line", "what"], rows), *([f"\n{more} more are in the JSON."] if more > 0 else []), ""]
