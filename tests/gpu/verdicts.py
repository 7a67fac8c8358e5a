"""Verdicts on the findings of many audits, on this GPU: modelled savings beside measured ones.

usage: verdicts.py OUT.json FOLDER [RULE ...]     FOLDER holds captures with their audit.db (``python -m tests.score``
makes them); with rules (``FA104``) only their findings are verified.

The first round runs eight processes at a time and only fills the compilers' caches; the second, one process with the
GPU to itself, gives the figures.
"""

from __future__ import annotations

import json
import statistics
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from subprocess import DEVNULL, run
from typing import Any


def verdicts(audit: Path, launch: Any, rules: list[str]) -> list[dict[str, Any]]:
    """One row a finding that verify looks at."""
    from fusionaudit import store
    from fusionaudit.verify.audit import verify_audit

    document = store.load(audit)
    if rules:
        document = {**document, "findings": [f for f in document["findings"] if f["rule"] in rules]}
    found = verify_audit(document, launch=launch)["findings"]
    return [
        {
            "case": audit.parent.name, "rule": f["rule"], "pass": f["pass"], "severity": f["severity"],
            "ops": f["ops"][:8], "modelled_ns": f["saving_ns"], "basis": f["basis"],
            "avoidable_bytes": f["avoidable_bytes"],
            **{k: f["verification"][k] for k in ("verdict", "reason", "saving_ns", "baseline_ns", "reference_ns",
                                                 "compile_ns", "cuda_graph_ns", "reference", "max_error",
                                                 "details")},
        }
        for f in found if f.get("verification")
    ]  # fmt: skip


def main() -> None:
    """See the module's docstring."""
    if sys.argv[1] == "--warm":
        from fusionaudit.verify.launch import GpuLaunch

        verdicts(Path(sys.argv[2]), GpuLaunch(), sys.argv[3:])
        return
    out, audits, rules = Path(sys.argv[1]), sorted(Path(sys.argv[2]).glob("*/audit.db")), sys.argv[3:]
    with ThreadPoolExecutor(8) as pool:
        list(
            pool.map(
                lambda a: run([sys.executable, __file__, "--warm", str(a), *rules], stdout=DEVNULL, stderr=DEVNULL),
                audits,
            )
        )
    from fusionaudit.verify.launch import GpuLaunch

    launch, rows = GpuLaunch(), []
    for audit in audits:
        rows += verdicts(audit, launch, rules)
        for row in (r for r in rows if r["case"] == audit.parent.name):
            figures = f"modelled {row['modelled_ns']} measured {row['saving_ns']} of {row['baseline_ns']} ns"
            print(f"{row['case']} {row['rule']} {row['verdict']:12} {figures}  {row['ops'][:3]} {row['reason'][:110]}")
        out.write_text(json.dumps(rows) + "\n")
        sys.stdout.flush()
    for rule in sorted({r["rule"] for r in rows}):
        mine = [abs(r["modelled_ns"] / r["saving_ns"] - 1) for r in rows if r["rule"] == rule
                and r["verdict"] == "confirmed" and r["modelled_ns"] and r["saving_ns"]]  # fmt: skip
        if mine:
            print(f"{rule}: {len(mine)} confirmed, median error of the modelled saving {statistics.median(mine):.3f}")
    both = [r for r in rows if r["verdict"] == "confirmed" and r["modelled_ns"] and r["saving_ns"]]
    errors = [abs(r["modelled_ns"] / r["saving_ns"] - 1) for r in both]
    counts = {v: sum(r["verdict"] == v for r in rows) for v in ("confirmed", "refuted", "inconclusive")}
    print(f"{len(rows)} findings {counts}; median error of the modelled saving "
          f"{statistics.median(errors) if errors else float('nan'):.3f} over {len(errors)}")  # fmt: skip


if __name__ == "__main__":
    main()
