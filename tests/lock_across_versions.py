"""Locks across versions of torch, over the examples and a folder of cases. A plain script, not collected by pytest:

``python tests/lock_across_versions.py ../shared/cases --python-a PYTHON --python-b PYTHON --work FOLDER``

For each script: audits without a GPU (``--shapes-only`` where that gives a lock), ``--runs`` times with each
interpreter and another hash seed each time. The lock of A is checked with B's audit: exit 2, other key, every change
named as the upgrade's. Each version's further audits are checked against its own first lock: no difference. What
changed is also counted in another way, from the generated code alone (``agreement.py``), so that an invented or a
missed change shows.

Captures stay in ``--work`` and are not made again; one line a script, ``--json`` keeps the table. What the scripts
print goes to stderr.
"""

from __future__ import annotations

import argparse
import difflib
import functools
import json
import os
import shutil
import sys
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from agreement import graphs_of
from warm_children import WarmChildren

from fusionaudit.baseline import read_lock, write_lock
from fusionaudit.capture import engines, session
from fusionaudit.capture.session import RunOptions, run_capture
from fusionaudit.check import check
from fusionaudit.errors import AuditError
from fusionaudit.groups import Lock
from fusionaudit.pipeline import audit
from fusionaudit.report.document import Document

ROOT = Path(__file__).resolve().parents[1]
CASE_ARGUMENTS = ("cuda", "compile")
"""``python caseNN.py [device] [eager|compile]`` (README of the cases): the sizes that a GPU would get."""


def scripts(cases: Path | None, only: list[str]) -> list[tuple[Path, tuple[str, ...]]]:
    """Each script and its arguments."""
    found: list[tuple[Path, tuple[str, ...]]] = [(p, ()) for p in sorted((ROOT / "examples").glob("*.py"))]
    if cases is not None:
        found += [(p, CASE_ARGUMENTS) for p in sorted(cases.glob("case*.py"))]
    return [s for s in found if not only or any(word in s[0].stem for word in only)]


@functools.cache
def children(python: str, run: int) -> WarmChildren:
    """The server of one interpreter and one of the runs, whose number is its hash seed."""
    return WarmChildren(python, {**os.environ, "PYTHONHASHSEED": str(run)})


def capture(script: Path, arguments: tuple[str, ...], python: str, run: int, folder: Path, seconds: int) -> None:
    """One capture in ``folder``; ``folder/failed.txt`` says why there is none. Made once.

    Without arithmetic where the script never needs a value before its step ends, which takes seconds at any size."""
    if (folder / "manifest.json").exists() or (folder / "failed.txt").exists():
        return
    part = folder.with_name(folder.name + ".part")
    session.run_child = children(python, run).run_child  # type: ignore[assignment]
    for shapes_only in (True, False):
        shutil.rmtree(part, ignore_errors=True)
        options = RunOptions(
            script=str(script), arguments=arguments, out=part, engine="deviceless", target="h100", python=python,
            timeout_s=seconds, machine_output=True, shapes_only=shapes_only,
        )  # fmt: skip
        try:
            run_capture(options)
            outcome(part)
            break
        except AuditError as error:
            if not shapes_only:
                part.mkdir(parents=True, exist_ok=True)
                (part / "failed.txt").write_text(str(error))
    part.replace(folder)


def outcome(folder: Path) -> tuple[Document, str]:
    """The audit of a capture and its lock's text. AuditError where it cannot be locked."""
    if (folder / "failed.txt").exists():
        raise AuditError((folder / "failed.txt").read_text().strip().splitlines()[-1])
    document = audit(folder).document
    return document, write_lock(document)


def generated(folder: Path) -> list[list[str]]:
    """Launches of each generated graph, by the text of the log."""
    path = folder / "compiled" / "torch_logs.txt"
    return graphs_of(path.read_text()) if path.exists() else []


def eager_ops(document: Document) -> list[str]:
    """The eager pass's launches in order: ops, shapes, dtypes."""
    kernels = next((p["kernels"] for p in document["passes"] if p["name"] == "eager"), [])
    return [f"{k['ops']} {k['shapes']} {k['dtypes']}" for k in kernels]


def unlike(old: list[str], new: list[str]) -> int:
    """Entries that only one side has."""
    return sum(d[0] in "+-" for d in difflib.ndiff(old, new))


def flat(graphs: list[list[str]]) -> list[str]:
    """The distinct graphs' launches: a graph that is compiled again alike counts once."""
    return [launch for graph in dict.fromkeys(map(tuple, graphs)) for launch in graph]


def compared(work: Path, name: str, runs: int) -> dict[str, Any]:
    """The row of one script, from what captures there are."""
    row: dict[str, Any] = {"script": name}
    first: dict[str, tuple[Document, Lock, Path]] = {}
    for side in ("a", "b"):
        row[f"runs_{side}"], row[f"self_differences_{side}"] = 0, 0
        for run in range(runs):
            folder = work / name / f"{side}{run}"
            if not folder.exists():
                continue
            try:
                document, text = outcome(folder)
            except AuditError as error:
                row[f"error_{side}"] = str(error)[:300]
                break
            row[f"runs_{side}"] += 1
            if side not in first:
                first[side] = document, read_lock(text), folder
                continue
            result = check(document, first[side][1])
            # A broken declaration (fa116) fails whatever the lock says: no difference from it.
            same = result.changes is not None and not result.changes.changes
            row[f"self_differences_{side}"] += not same
            if not same:
                row.setdefault("self_lines", []).extend(result.lines)
    if len(first) < 2:
        return row
    result = check(first["b"][0], first["a"][1])
    changes = result.changes
    assert changes is not None
    row["exit_code"], row["verdict"] = result.exit_code, result.verdict
    row["groups"] = [len(first[s][1].groups) for s in ("a", "b")]
    row["same"] = changes.same
    row["changes"] = dict(Counter(f"{c.pass_name} {c.kind}" for c in changes.changes))
    row["edited"] = len(changes.edited)
    row["lines"] = list(result.lines)
    row["code_differences"] = {
        "eager": unlike(*(eager_ops(first[s][0]) for s in ("a", "b"))),
        "compiled": unlike(*(flat(generated(first[s][2])) for s in ("a", "b"))),
    }
    row["no_line"] = [
        sum(g.what == "kernel" and not any(r.code for r in g.refs) for g in first[s][1].groups) for s in ("a", "b")
    ]
    return row


def line(row: dict[str, Any]) -> str:
    """One row as text."""
    runs = f"runs {row['runs_a']}+{row['runs_b']}"
    own = f"self {row['self_differences_a']}+{row['self_differences_b']}"
    errors = "; ".join(f"{s.upper()}: {row[f'error_{s}']}" for s in ("a", "b") if f"error_{s}" in row)
    if "changes" not in row:
        return f"{row['script']:24} {runs} {own}  {errors or '(not made yet)'}"
    told = ", ".join(f"{n} {k}" for k, n in row["changes"].items()) or "no change"
    code = row["code_differences"]
    return (
        f"{row['script']:24} {runs} {own}  same {row['same']:3}  {told}"
        f"  [by code: eager {code['eager']}, compiled {code['compiled']}]"
    )


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", type=Path, nargs="?", help="folder of caseNN.py, besides the examples")
    parser.add_argument("--python-a", default=sys.executable, help="interpreter whose lock is checked")
    parser.add_argument("--python-b", default=sys.executable, help="interpreter that checks it")
    parser.add_argument("--work", type=Path, required=True, help="folder of the captures; they are not made again")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=240, help="limit for each pass of a script")
    parser.add_argument("--only", default="", help="comma-separated parts of script names")
    parser.add_argument("--no-run", action="store_true", help="compare the captures that are there")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    os.environ["PYTHONPATH"] = str(ROOT)
    engines.probe = functools.cache(engines.probe)  # the interpreters stay the same
    chosen = scripts(options.cases, [w for w in options.only.split(",") if w])
    if not options.no_run:
        for run in range(options.runs):  # all scripts once, then again: what is there first says most
            for script, arguments in chosen:
                for side, python in (("a", options.python_a), ("b", options.python_b)):
                    folder = options.work / script.stem / f"{side}{run}"
                    capture(script.resolve(), arguments, python, run, folder, options.seconds)
                if run == 0:
                    print(line(compared(options.work, script.stem, 1)), flush=True)
    rows = [compared(options.work, script.stem, options.runs) for script, _ in chosen]
    for row in rows:
        print(line(row))
    done = [r for r in rows if "changes" in r]
    total: Counter[str] = Counter()
    for row in done:
        total.update(row["changes"])
    own = sum(r["self_differences_a"] + r["self_differences_b"] for r in rows)
    again = sum(max(r[f"runs_{s}"] - 1, 0) for r in rows for s in ("a", "b"))
    print(f"\n{len(done)} of {len(rows)} scripts compared; groups the same {sum(r['same'] for r in done)}")
    print("the upgrade's changes: " + (", ".join(f"{n} {k}" for k, n in total.items()) or "none"))
    print(f"{again} audits again against their own lock: {own} differ")
    if options.json:
        options.json.write_text(json.dumps({"again": again, "self_differences": own, "scripts": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
