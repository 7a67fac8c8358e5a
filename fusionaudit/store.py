"""``audit.db``: the audit as SQLite tables that any tool can query, and back.

Tables: ``audit`` (one row), ``passes``, ``kernels``, ``ops``, ``edges``, ``findings``, ``verifications``, ``notes``,
``environment``, ``graphs``, ``sources``. Nested values are JSON text in columns that end in ``_json``.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
from pathlib import Path
from typing import Any

import sqlite_utils

from fusionaudit.errors import AuditError
from fusionaudit.report.document import SCHEMA_VERSION, Document

AUDIT_DB = "audit.db"
_PASS_LISTS = ("kernels", "ops", "edges", "graphs")
_PASS_EXTRA = ("syncs", "decisions", "breaks", "recompiles", "cudagraph_skips")


def _flat(row: dict[str, Any]) -> dict[str, Any]:
    return {
        (key + "_json" if isinstance(value, (dict, list)) else key): json.dumps(value)
        if isinstance(value, (dict, list))
        else value
        for key, value in row.items()
    }


def _nested(row: dict[str, Any]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, value in row.items():
        name = key[:-5] if key.endswith("_json") else key
        if key.endswith("_json"):
            if value is not None:
                out[name] = json.loads(value)
            else:
                out.setdefault(name, None)
        elif not (value is None and out.get(name) is not None):
            out[name] = value
    return out


def _insert(db: sqlite_utils.Database, table: str, rows: list[dict[str, Any]]) -> None:
    """Insert with the type of each column taken from all rows (sqlite-utils makes TEXT of a null in the first ones)."""
    types: dict[str, type] = {}
    for row in rows:
        for key, value in row.items():
            if value is not None and types.get(key) is not float:
                types[key] = type(value)
    if rows:
        db.table(table).insert_all(rows, alter=True, columns=types)


def save(document: Document, path: Path) -> None:
    """Write the document to a fresh SQLite file, whole or not at all."""
    temporary = path.with_name(path.name + ".part")
    temporary.unlink(missing_ok=True)
    try:
        db = sqlite_utils.Database(temporary)
        head = {k: document[k] for k in ("schema_version", "tool", "created", "engine", "target", "exit_code")}
        db.table("audit").insert(_flat(head))
        # All passes go in at once: a column whose first rows are null gets its type from the later ones.
        rows = [_flat({k: v for k, v in p.items() if k not in _PASS_LISTS}) for p in document["passes"]]
        _insert(db, "passes", rows)
        for table in _PASS_LISTS:
            _insert(db, table, [_flat({"pass": p["name"], **item}) for p in document["passes"] for item in p[table]])
        findings = list(enumerate(document["findings"]))
        _insert(
            db,
            "findings",
            [_flat({"position": i, **{k: v for k, v in f.items() if k != "verification"}}) for i, f in findings],
        )
        checks = [
            _flat({"position": i, "fingerprint": f["fingerprint"], **f["verification"]})
            for i, f in findings
            if f["verification"]
        ]
        _insert(db, "verifications", checks)
        if document["notes"]:
            db.table("notes").insert_all([_flat(n) for n in document["notes"]], alter=True)
        if document["environment"]:
            db.table("environment").insert_all(
                [{"name": k, "value_json": json.dumps(v)} for k, v in document["environment"].items()]
            )
        lines = [{"file": f, "line": int(n), "text": t} for f, ls in document["sources"].items() for n, t in ls.items()]
        if lines:
            db.table("sources").insert_all(lines)
        db.conn.commit()
        db.conn.close()
        temporary.replace(path)
    except (OSError, sqlite3.Error, OverflowError) as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise AuditError(f"{path}: cannot write the audit: {error}", remedy="free space, or choose --out") from None


def load(path: Path) -> Document:
    """The document back from ``audit.db`` (or from a folder that holds one)."""
    path = path / AUDIT_DB if path.is_dir() else path
    if not path.is_file():
        raise AuditError(f"{path}: no audit there", remedy="give a folder made by `fusionaudit run` or `analyze`")
    try:
        connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
        connection.row_factory = sqlite3.Row
        tables = {r[0] for r in connection.execute("select name from sqlite_master where type='table'")}
        if "audit" not in tables or "passes" not in tables:
            raise AuditError(f"{path}: not an audit.db")

        def rows(table: str) -> list[dict[str, Any]]:
            if table not in tables:
                return []
            return [_nested(dict(r)) for r in connection.execute(f'select * from "{table}" order by rowid')]

        document: Document = rows("audit")[0]
        if document["schema_version"] > SCHEMA_VERSION:
            raise AuditError(f"{path}: made by a newer fusionaudit", remedy="upgrade it")
        document["passes"] = rows("passes")
        for p in document["passes"]:
            for extra in _PASS_EXTRA:
                p.setdefault(extra, [])
        for table in _PASS_LISTS:
            by_pass: dict[str, list[dict[str, Any]]] = {}
            for row in rows(table):
                by_pass.setdefault(row.pop("pass"), []).append(row)
            for p in document["passes"]:
                p[table] = by_pass.get(p["name"], [])
        checks = {c.pop("position"): c for c in rows("verifications")}
        document["findings"] = []
        for finding in rows("findings"):
            check = checks.get(finding.pop("position"))
            if check:
                check.pop("fingerprint", None)
            document["findings"].append({**finding, "verification": check})
        document["notes"] = rows("notes")
        document["environment"] = {r["name"]: r["value"] for r in rows("environment")}
        document["sources"] = {}
        for r in rows("sources"):
            document["sources"].setdefault(r["file"], {})[str(r["line"])] = r["text"]
        connection.close()
        return document
    except (sqlite3.Error, ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        raise AuditError(f"{path}: cannot read the audit: {error}", remedy="run `fusionaudit analyze` again") from None
