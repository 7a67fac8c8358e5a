"""The gate: does this audit still match its lock? FA115 findings, one for each line that changed the kernels."""

from __future__ import annotations

import datetime
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from fusionaudit.baseline import blocking
from fusionaudit.compiled_by import SCRIPT, compiled_lines
from fusionaudit.diff import Change, Changes, compare, reason_for
from fusionaudit.errors import EXIT_ERROR, EXIT_FINDINGS, EXIT_OK, AuditError
from fusionaudit.explain import (
    UNRELATED,
    change_line,
    compiling_text,
    counted,
    describe,
    figures,
    listed,
    of_two_programs,
)
from fusionaudit.figures import counted as number
from fusionaudit.findings import Finding, Location, Severity
from fusionaudit.grouping import lock_of
from fusionaudit.groups import COMPILES, MAKES_DYNAMIC, MAKES_OPTIMIZER, Lock, Ref, bare
from fusionaudit.limits import Allowed, Limits, expired
from fusionaudit.matching import line_id
from fusionaudit.outcomes import Outcome, as_run, outcome
from fusionaudit.report.document import Document, finding_json

_MOST_TOLD = 20
"""Changes of one finding that are written out: a lock of another script would fill the terminal."""
_NEAR_LINES = 6
"""Edited lines of one function this close together are one edit (a loop of a few lines): one message."""


@dataclass(frozen=True, kw_only=True)
class CheckResult:
    """``verdict`` in a word, ``exit_code`` (0 same or better, 1 worse or changed, 2 cannot judge) and the text."""

    verdict: Literal["same", "improved", "allowed", "regression", "changed", "not locked in", "cannot judge"]
    exit_code: int
    findings: tuple[Finding, ...] = ()
    lines: tuple[str, ...] = ()
    changes: Changes | None = None


@dataclass(kw_only=True)
class _Cluster:
    """Changes that one edit explains."""

    refs: list[Ref]
    changes: list[Change] = field(default_factory=list)
    compiling: Literal["added", "removed"] | None = None
    """The script's own torch.compile came or went, and all changes of the compiled pass with it."""


_ASKS = {
    "dynamic": MAKES_DYNAMIC,
    "cuda graph": re.compile(COMPILES.pattern + r"|\bmode\s*=|reduce-overhead|max-autotune"),
}
"""What a line says that makes sizes symbolic, or asks for CUDA graphs (or did, before its mode was taken away)."""


def _deciding_line(pattern: re.Pattern[str], change: Change, document: Document) -> list[Ref]:
    """The line of the program that says such a thing, nearest to what changed."""
    asks = [
        Ref(file=file.rsplit("/", 1)[-1], function="<module>", code=bare(text), path=file, line=int(number))
        for file, lines in (document.get("sources") or {}).items()
        for number, text in lines.items()
        if pattern.search(bare(text))
    ]
    at = change.refs[0] if change.refs else None
    place = (at.path, at.line or 0) if at else ("", 0)
    return sorted(asks, key=lambda r: (r.path != place[0], abs((r.line or 0) - place[1])))[:1]


def _roots(changes: Changes, document: Document) -> list[_Cluster]:
    """The edits that explain the changes, the strongest first: the line that compiles otherwise, an edited line that
    breaks or syncs, then edited lines in order of execution (eager first: it is what the program asks for). Lines of
    one edit are one root."""
    events = [c for c in changes.changes if c.new and c.new[0].what != "kernel"]
    kernels = sorted((c for c in changes.changes if c not in events), key=lambda c: c.pass_name != "eager")
    roots: list[_Cluster] = []
    compiled_otherwise = next((c for c in changes.changes if c.kind in _ASKS), None)
    if compiled_otherwise is not None:
        asks = _ASKS[compiled_otherwise.kind]
        roots = [_Cluster(refs=[ref]) for ref in _deciding_line(asks, compiled_otherwise, document)]
    kernels.sort(key=lambda c: c.section.kind == "backward")
    for change in (*events, *kernels):
        if change.section.kind == "backward" and roots:
            break  # what backward does follows from the forward lines
        for ref in change.refs:
            if line_id(ref) not in changes.edited:
                continue
            home = next((r for r in roots if any(_near(ref, x) for x in r.refs)), None)
            if home is None:
                roots.append(_Cluster(refs=[ref]))
            elif ref not in home.refs:
                home.refs.append(ref)
    return roots


def _near(a: Ref, b: Ref) -> bool:
    if a.line is None or b.line is None:
        return a == b
    return (a.path, a.function) == (b.path, b.function) and abs(a.line - b.line) <= _NEAR_LINES


def _clusters(changes: Changes, document: Document) -> list[_Cluster]:
    """Each change under the edit that explains it; without an edited line, all under the first event or change."""
    if changes.compiling:
        own = [c for c in changes.changes if c.pass_name == "compiled"]
        rest = replace(changes, compiling=None, changes=tuple(c for c in changes.changes if c not in own))
        lines = compiled_lines([r for c in own for r in c.refs], changes.compiling.names)
        cluster = _Cluster(refs=lines, changes=own, compiling=changes.compiling.what)
        return [*([cluster] if own else []), *(_clusters(rest, document) if rest.changes else [])]
    roots = _roots(changes, document)
    if not roots:
        events = [c for c in changes.changes if c.new and c.new[0].what != "kernel" and c.refs]
        placed = events or [c for c in changes.changes if c.refs] or list(changes.changes)
        steps = all(".step(" in ref.code for change in placed for ref in change.refs)
        made = _deciding_line(MAKES_OPTIMIZER, placed[0], document) if steps else []
        roots = [_Cluster(refs=made or list(placed[0].refs[:1]))]
    for change in changes.changes:
        ids = {line_id(r) for r in change.refs}
        home = next((r for r in roots if any(line_id(x) in ids for x in r.refs)), roots[0])
        home.changes.append(change)
    return [r for r in roots if r.changes]


def _cluster_outcome(cluster: _Cluster, limits: Limits, *, compiles: bool) -> Outcome:
    """A script that no longer compiles is never as locked, whatever it costs; one that now does is better, unless its
    kernels cost more. Graph breaks come and go with compiling and cost only what the kernels do. ``compiles``: the
    script compiles itself on both sides."""
    if cluster.compiling is None:
        return outcome(as_run(cluster.changes) if compiles else cluster.changes, limits)
    kernels = [c for c in cluster.changes if (c.new or c.old)[0].what == "kernel"]
    worse = outcome(kernels, limits) == "regression"
    return "regression" if worse else "changed" if cluster.compiling == "removed" else "improvement"


_WORDS = {
    "regression": "fusion got worse",
    "changed": "the kernels changed",
    "improvement": "fusion got better",
    "same": "an edit at no cost",
}


_NEW_CODE = "new code came in with kernels of its own"


def _is_new_code(mine: Sequence[Change], changes: Changes) -> bool:
    """Nothing that was locked got worse: all of it is new kernels, of a line that the lock does not know."""
    if any(c.old or any(g.what != "kernel" for g in c.new) for c in mine):
        return False
    return any(line_id(r) in changes.edited for c in mine for r in c.refs)


def _severity(result: Outcome) -> Severity:
    return "error" if result == "regression" else "warning" if result == "changed" else "info"


def _weight(change: Change, refs: Sequence[Ref]) -> tuple[object, ...]:
    """The most telling change first: at the named line, events, kernels that fell apart, then what costs most."""
    before, after = change.bytes
    return (
        not refs or refs[0] not in change.refs,
        (change.new or change.old)[0].what == "kernel",
        change.kind not in _ASKS,
        not change.lost_edges,
        change.section.kind == "backward",
        -(change.launches[1] - change.launches[0]),
        -((after or 0) - (before or 0)),
    )


def _finding(cluster: _Cluster, result: Outcome, document: Document, changes: Changes) -> Finding:
    decisions = {p["name"]: p.get("decisions") or [] for p in document["passes"]}
    ordered = sorted(cluster.changes, key=lambda c: _weight(c, cluster.refs))
    reasons = {id(c): reason_for(c, decisions.get(c.pass_name, ())) for c in ordered}
    texts = [describe(c, reasons[id(c)]) for c in ordered]
    ref = cluster.refs[0] if cluster.refs else None
    location = None
    where = "the step"
    if ref is not None:
        if ref.path is not None and ref.line is not None:
            location = Location(file=ref.path, line=ref.line, function=ref.function)
        where = f"{ref.file}:{ref.line}" if ref.line is not None else f"{ref.file} {ref.function}"
        where += f" `{ref.code}`" if ref.code else ""
    follow = f"{number(len(texts) - 1, 'further change')} that follow{'s' if len(texts) == 2 else ''} from it"
    more = "" if len(texts) == 1 else f" (and {follow})"
    word = _NEW_CODE if result == "regression" and _is_new_code(ordered, changes) else _WORDS[result]
    message = f"{word} at {where}: {texts[0]}{more}"
    if cluster.compiling:
        message = f"at {where}: {compiling_text(changes)}"
        texts = [message, *texts]
    launches = {name: [b[0], a[0]] for name, (b, a) in changes.totals.items()}
    return Finding(
        rule="FA115",
        pass_name=ordered[0].pass_name,
        severity=_severity(result),
        message=message,
        ops=tuple(dict.fromkeys(op for c in ordered[:1] for g in (c.new or c.old) for op in g.ops)),
        location=location,
        avoidable_bytes=_more_bytes(cluster.changes),
        reason=next((r for r in reasons.values() if r), None),
        remedy="undo the edit, or accept it with `fusionaudit check --update`"
        if result in ("regression", "changed")
        else "write it down with `fusionaudit check --update`",
        evidence={"outcome": result, "changes": texts, "launches_per_step": launches},
        key=ref.code if ref else "",
    )


def _more_bytes(changes: Sequence[Change]) -> int | None:
    """Bytes that the changes cost in the pass that runs (compiled where there is one)."""
    name = "compiled" if any(c.pass_name == "compiled" for c in changes) else changes[0].pass_name
    extra = 0
    for change in changes:
        before, after = change.bytes
        if change.pass_name == name:
            if before is None or after is None:
                return None
            extra += after - before
    return extra if extra > 0 else None


def _allowed(cluster: _Cluster, message: str, limits: Limits, today: datetime.date) -> Allowed | None:
    """The entry that is about these changes, by a part of their message, lines, function or ops: one that holds today,
    else one that has expired."""
    lines = [*(r for c in cluster.changes for r in c.refs), *cluster.refs]
    words = [message, *(r.code for r in lines), *(r.function for r in cluster.refs)]
    words += [op for c in cluster.changes for g in (*c.new, *c.old) for op in g.ops]
    found = [entry for entry in limits.allow if any(entry.match in w for w in words)]
    return min(found, key=lambda entry: expired(entry, today), default=None)


CANNOT_JUDGE = "verdict: cannot judge"


def thresholds(limits: Limits) -> str:
    """The line that says what a change may cost."""
    return f"limits: +{limits.launches} launches, +{limits.bytes_percent:g}% +{limits.bytes} bytes in a changed region"


def _cannot_judge(
    text: str, remedy: str, limits: Limits, counts: Sequence[str], changes: Changes | None = None
) -> CheckResult:
    """The result with exit code 2."""
    lines = [CANNOT_JUDGE, text, *([f"  -> {remedy}"] if remedy else []), thresholds(limits), *counts]
    return CheckResult(verdict="cannot judge", exit_code=EXIT_ERROR, lines=tuple(lines), changes=changes)


def _not_compared(lock: Lock, new: Lock) -> list[str]:
    return [f"groups: {len(lock.groups)} in the lock, {len(new.groups)} in this audit, none compared"]


def _other_key(changes: Changes, lock: Lock, new: Lock, document: Document, limits: Limits) -> CheckResult:
    """No verdict. For another torch or Triton on the same target: what the upgrade changed, group by group."""
    text = f"other key: {'; '.join(changes.other_key)}"
    same_target = all(getattr(lock.key, f) == getattr(new.key, f) for f in ("target", "sm_count", "engine"))
    if not same_target:
        remedy = "audit for the lock's key, or keep a lock for each: `fusionaudit baseline -o OTHER.lock`"
        return _cannot_judge(f"{text}; not compared", remedy, limits, _not_compared(lock, new))
    decisions = {p["name"]: p.get("decisions") or [] for p in document["passes"]}

    def tell(change: Change) -> str:
        edited = any(line_id(r) in changes.edited for r in change.refs)
        who = "upgrade or edit (the line is not in the lock)" if edited else "upgrade"
        return f"{who}: {change_line(change, reason_for(change, decisions.get(change.pass_name, ())))}"

    more = [*figures(changes, lock, new), counted(changes), *listed(changes, tell)]
    remedy = "look through the changes, then `fusionaudit check --update` writes a lock for this key"
    return _cannot_judge(text, remedy, limits, more, changes)


def check(
    document: Document, lock: Lock, limits: Limits | None = None, *, today: datetime.date | None = None
) -> CheckResult:
    """Compare an audit with its lock. Prints nothing; ``lines`` is the text. ``today`` ends allow-list entries.

    A broken declaration in the program (FA116) is a regression whatever the lock says; with one that cannot be checked,
    nothing passes.
    """
    limits = limits or Limits()
    today = today or datetime.date.today()
    new = lock_of(document)
    try:
        blocking(document)
    except AuditError as error:
        text = error.message.removeprefix("cannot judge: ")
        return _cannot_judge(text, error.remedy, limits, _not_compared(lock, new))
    changes = compare(lock, new, bytes_percent=limits.bytes_percent)
    if changes.other_key:
        return _other_key(changes, lock, new, document, limits)
    sides = ("the lock", "this audit")
    for lone, (has, lacks) in ((changes.only_old, sides), (changes.only_new, sides[::-1])):
        if lone:
            remedy = "run with the same --passes, or write the lock anew with `fusionaudit check --update`"
            text = f"{has} has a pass {next(iter(lone))} and {lacks} has not"
            return _cannot_judge(text, remedy, limits, _not_compared(lock, new))
    if of_two_programs(changes):
        remedy = "give this script's lock with --lock, or write the lock anew with `fusionaudit check --update`"
        text = f"the lock is of another script: {UNRELATED}"
        return _cannot_judge(text, remedy, limits, [*figures(changes, lock, new), counted(changes)], changes)
    findings: list[Finding] = []
    told: list[str] = []
    results: list[Outcome] = []
    compiles = lock.compiled_by == new.compiled_by == SCRIPT
    for cluster in _clusters(changes, document) if changes.changes else []:
        result = _cluster_outcome(cluster, limits, compiles=compiles)
        finding = _finding(cluster, result, document, changes)
        allowed = _allowed(cluster, finding.message, limits, today) if result in ("regression", "changed") else None
        if allowed and not expired(allowed, today):
            until = f", until {allowed.expires}" if allowed.expires else ""
            told.append(f"allowed ({allowed.reason}{until}): {finding.message}")
            continue
        results.append(result)
        findings.append(finding)
        told.append(f"{result}: {finding.message}")
        if allowed:
            told.append(f"    allowed until {allowed.expires} ({allowed.reason}): that has expired")
        told += [f"    {text}" for text in finding.evidence["changes"][1:_MOST_TOLD]]
        if len(finding.evidence["changes"]) > _MOST_TOLD:
            told.append(f"    and {len(finding.evidence['changes']) - _MOST_TOLD} more (--format json has them all)")
    if {"regression", "changed"} & set(results):
        told.append("accept with `fusionaudit check --update`")
    declared = [f for f in document.get("findings") or [] if f["rule"] == "FA116"]
    unchecked = [f"{_declared_at(f['location'])}{f['message']} (FA116)" for f in declared if f["severity"] != "error"]
    for broken in (f for f in declared if f["severity"] == "error"):
        results.append("regression")
        told.append(f"regression: {_declared_at(broken['location'])}{broken['message']} (FA116)")
    verdict, code = _verdict(results, limits)
    if unchecked and code == EXIT_OK:
        more = [*figures(changes, lock, new), counted(changes), *told, *(f"cannot judge: {t}" for t in unchecked[1:])]
        return _cannot_judge(unchecked[0], "correct the declaration, or take it out", limits, more, changes)
    if verdict == "same" and any(line.startswith("allowed") for line in told):
        verdict = "allowed"
    head = [
        f"verdict: {verdict}",
        thresholds(limits),
        *figures(changes, lock, new),
        counted(changes),
    ]
    if verdict == "not locked in":
        told.append("write it down with `fusionaudit check --update`")
    return CheckResult(verdict=verdict, exit_code=code, findings=tuple(findings), lines=(*head, *told), changes=changes)


def _declared_at(place: dict[str, Any] | None) -> str:
    return f"{place['file'].rsplit('/', 1)[-1]}:{place['line']} " if place else ""


def _verdict(results: Sequence[Outcome], limits: Limits) -> tuple[Any, int]:
    if "regression" in results:
        return "regression", EXIT_FINDINGS
    if "changed" in results:
        return "changed", EXIT_FINDINGS
    if "improvement" in results:
        return ("not locked in", EXIT_FINDINGS) if limits.require_locked else ("improved", EXIT_OK)
    return "same", EXIT_OK


def document_with(document: Document, result: CheckResult) -> Document:
    """The audit's document with the check's findings in front and its exit code: what the reports render."""
    findings = [finding_json(f) for f in result.findings]
    others = [f for f in document["findings"] if f["rule"] != "FA115"]  # of an earlier check of this audit
    notes = list(document["notes"])
    if result.exit_code == EXIT_ERROR and not any(n["blocks"] for n in notes):
        text = f"cannot judge against the lock: {result.lines[1] if len(result.lines) > 1 else ''}"
        remedy = result.lines[2].removeprefix("  -> ") if len(result.lines) > 2 else ""
        notes.append({"kind": "other-key", "text": text, "remedy": remedy, "blocks": True, "pass": None})
    return {**document, "findings": findings + others, "notes": notes, "exit_code": result.exit_code}
