"""Precision and recall of the rules over a folder of cases: ``python -m tests.score --cases DIR [options]``.

Each case is a script ``caseNN.py`` and an entry of ``expected.json`` ({case: {pass: [rules], "note": why}}).
Captures are made with the engine that is asked for, or taken where ``--captures DIR`` has them already
(``DIR/caseNN``). Findings at severity warning or above count. ``--overrides FILE`` has the same form and wins, with
its own note of why; rules under ``eager_optional`` and ``compiled_optional`` count neither for nor against.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PASSES = ("eager", "compiled")
MEASURED_ONLY = ("FA303", "FA304")
"""Rules that need measured times: without a GPU they are not expected."""
PAIRED = {"clean": "compiled", "clean_eager": "eager"}


@dataclass(frozen=True, kw_only=True)
class CaseScore:
    """What one case gave: (pass, rule) pairs that were right, too many, and missing."""

    case: str
    hits: tuple[tuple[str, str], ...] = ()
    extra: tuple[tuple[str, str], ...] = ()
    missed: tuple[tuple[str, str], ...] = ()
    error: str = ""


def compare(case: str, expected: dict[str, Any], found: set[tuple[str, str]]) -> CaseScore:
    """Found against expected."""
    wanted = {(p, rule) for p in PASSES for rule in expected.get(p, [])}
    found = found - {(p, rule) for p in PASSES for rule in expected.get(f"{p}_optional", [])}
    return CaseScore(
        case=case,
        hits=tuple(sorted(wanted & found)),
        extra=tuple(sorted(found - wanted)),
        missed=tuple(sorted(wanted - found)),
    )


def capture(script: Path, out: Path, arguments: argparse.Namespace) -> str:
    """Capture one case; "" or what went wrong."""
    from fusionaudit.capture.session import RunOptions, run_capture
    from fusionaudit.errors import AuditError

    options = RunOptions(
        script=str(script),
        arguments=tuple(arguments.argument),
        out=out,
        engine=arguments.engine,
        target=arguments.target if arguments.engine == "deviceless" else None,
        timeout_s=arguments.timeout,
        shapes_only=arguments.shapes_only,
        machine_output=True,
        quiet=True,
    )
    try:
        run_capture(options)
    except AuditError as problem:
        return str(problem)
    return ""


def score_case(case: str, expected: dict[str, Any], arguments: argparse.Namespace) -> tuple[CaseScore, list[str]]:
    """The score of one case and its findings as lines."""
    from fusionaudit import pipeline
    from fusionaudit.errors import AuditError

    folder = arguments.captures / case
    error = ""
    if not (folder / "manifest.json").exists():
        if arguments.no_run:
            return CaseScore(case=case, error="no capture"), []
        error = capture(arguments.cases / f"{case}.py", folder, arguments)
    try:
        result = pipeline.audit(folder, out=folder)
    except AuditError as problem:
        return CaseScore(case=case, error=error or str(problem)), []
    found = {
        (PAIRED.get(f.pass_name, f.pass_name), f.rule) for f in result.findings if f.severity in ("warning", "error")
    }
    lines = [
        f"    {f.severity:7} {f.pass_name:8} {f.rule} {f.message[:150]}"
        for f in sorted(result.findings, key=lambda f: (f.pass_name, f.rule))
        if f.severity != "info" or arguments.all
    ]
    lines += [f"    note: {n['text'][:150]}" for n in result.document["notes"] if n["blocks"]]
    if result.program.engine == "deviceless":
        expected = {p: [r for r in rules if r not in MEASURED_ONLY] for p, rules in expected.items() if p != "note"}
    return compare(case, expected, found), lines


def total(scores: list[CaseScore]) -> tuple[float, float]:
    """(precision, recall) over all cases; 1.0 where nothing was found or nothing was expected."""
    hits = sum(len(s.hits) for s in scores)
    extra = sum(len(s.extra) for s in scores)
    missed = sum(len(s.missed) for s in scores)
    return hits / (hits + extra) if hits + extra else 1.0, hits / (hits + missed) if hits + missed else 1.0


def main() -> int:
    """Print a line for each case, figures for each rule, and the totals; exit 1 below ``--least``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=Path, required=True, help="folder with caseNN.py and expected.json")
    parser.add_argument("--captures", type=Path, required=True, help="folder for (or with) the captures")
    parser.add_argument("--overrides", type=Path, help="expected.json entries that win, with figures in their notes")
    parser.add_argument("--only", nargs="*", help="cases to score")
    parser.add_argument("--engine", default="deviceless")
    parser.add_argument("--target", default="h200")
    parser.add_argument("--argument", action="append", default=[], help="an argument for the script (cuda)")
    parser.add_argument("--shapes-only", action="store_true", help="deviceless: do not compute, shapes only")
    parser.add_argument("--timeout", type=float, default=900)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--least", type=float, default=0.0, help="fail below this precision or recall")
    parser.add_argument("--no-run", action="store_true", help="score the captures that are there")
    parser.add_argument("--all", action="store_true", help="list information too")
    arguments = parser.parse_args()
    expected = json.loads((arguments.cases / "expected.json").read_text())
    if arguments.overrides is not None:
        expected.update(json.loads(arguments.overrides.read_text()))
    names = [c for c in sorted(expected) if not arguments.only or c in arguments.only]
    arguments.captures.mkdir(parents=True, exist_ok=True)
    scores: list[CaseScore] = []
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        for score, lines in pool.map(lambda c: score_case(c, expected[c], arguments), names):
            scores.append(score)
            state = score.error or ("ok" if not score.extra and not score.missed else "")
            state += "".join(f" +{p}:{r}" for p, r in score.extra) + "".join(f" -{p}:{r}" for p, r in score.missed)
            print(f"{score.case}: {state.strip()}", flush=True)
            if score.extra or score.missed or arguments.all:
                print("\n".join(lines), flush=True)
    by_rule: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    for score in scores:
        for column, pairs in enumerate((score.hits, score.extra, score.missed)):
            for _, rule in pairs:
                by_rule[rule][column] += 1
    print("rule   hit extra missed")
    for rule, (hit, more, less) in sorted(by_rule.items()):
        print(f"{rule}  {hit:3} {more:5} {less:6}")
    precision, recall = total(scores)
    broken = [s.case for s in scores if s.error]
    print(f"precision {precision:.3f}  recall {recall:.3f}  over {len(scores)} cases")
    print(f"not judged: {', '.join(broken) or 'none'}")
    return 1 if min(precision, recall) < arguments.least else 0


if __name__ == "__main__":
    sys.exit(main())
