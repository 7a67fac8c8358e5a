"""Many small savings: findings that are each below the share that makes a warning, and together a large part of a step.

Wrong where two findings name different kernels for the same bytes, or the same kernels for different ones: findings
that share a kernel are counted once, by the largest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fusionaudit.config import Config
from fusionaudit.figures import counted
from fusionaudit.findings import Finding
from fusionaudit.program.model import Pass, Program
from fusionaudit.rules import fa106, run_rules
from fusionaudit.rules.judging import step_ns

_FLOORS = 2
"""Floors of one finding (``Thresholds.min_time_share``, 5 %) that small ones must save together: 10 % of the step. A
sum of modelled savings also sums what is wrong with them, so it has to show more than one finding alone."""


def raise_sums(program: Program, config: Config, findings: Sequence[Finding]) -> list[Finding]:
    """The findings, the largest of the small ones as warnings where all of a pass save 10 % of its step or more (twice
    the floor of one), until what is left saves less. ``findings``: those that were not suppressed."""
    raised: dict[str, Finding] = {}
    small: set[str] | None = None
    floor = _FLOORS * config.thresholds.min_time_share
    for p in program.passes:
        mine = [f for f in findings if f.pass_name == p.name]
        shares = _shares(program, p, mine)
        if sum(shares.values()) < floor:
            continue
        if small is None:
            small = _small_alone(program, config)
        shares = _shares(program, p, [f for f in mine if f.severity != "info" or f.fingerprint in small])
        left = together = sum(shares.values())
        for finding in sorted((f for f in mine if f.fingerprint in shares), key=lambda f: -shares[f.fingerprint]):
            if left < floor:
                break
            left -= shares[finding.fingerprint]
            raised[finding.fingerprint] = _raised(finding, len(shares), together)
    return [raised.get(f.fingerprint, f) for f in findings]


def _raised(finding: Finding, count: int, together: float) -> Finding:
    text = f"small alone, but one of {counted(count, 'finding')} that together save {together:.0%} of the step"
    return replace(
        finding,
        severity="warning",
        reason=f"{finding.reason}; {text}" if finding.reason else text,
        evidence={**finding.evidence, "small_findings": count, "share_of_step_together": round(together, 4)},
    )


def _counts(finding: Finding) -> bool:
    """It is about fusion and on the GPU's side; FA106 saves launches of the host."""
    return finding.rule.startswith("FA1") and finding.rule != fa106.CODE and finding.confidence != "low"


def _shares(program: Program, p: Pass, findings: Sequence[Finding]) -> dict[str, float]:
    """The share of the step that each small finding saves; none of kernels that a larger one or a warning names."""
    step, moved = step_ns(p, program.device), p.global_bytes
    taken = {k for f in findings if f.severity != "info" for k in f.kernel_ids}
    found: list[tuple[float, Finding]] = []
    for f in findings:
        if f.severity != "info" or not f.kernel_ids or not _counts(f):
            continue
        if f.saving_ns is not None and step:
            found.append((f.saving_ns / step, f))
        elif f.avoidable_bytes is not None and moved:
            found.append((f.avoidable_bytes / moved, f))
    out: dict[str, float] = {}
    for share, f in sorted(found, key=lambda pair: -pair[0]):
        if taken.isdisjoint(f.kernel_ids):
            taken.update(f.kernel_ids)
            out[f.fingerprint] = share
    return out


def _small_alone(program: Program, config: Config) -> set[str]:
    """Fingerprints of the findings that would be warnings however small their share of the step; what is information
    for another reason (fused by the compiled pass, too little time) is not among them."""
    thresholds = replace(config.thresholds, min_time_share=0.0, min_byte_share=0.0)
    found = run_rules(program, replace(config, thresholds=thresholds))
    return {f.fingerprint for f in found if f.severity == "warning" and _worth_something(f)}


def _worth_something(finding: Finding) -> bool:
    return not finding.remedy.startswith("nothing to") and bool(finding.saving_ns or finding.avoidable_bytes)
