"""What an audit says: findings about the program, notes about the capture, and what verification made of them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any, Literal

Severity = Literal["info", "warning", "error"]
Confidence = Literal["low", "medium", "high"]
Basis = Literal["measured", "modelled", "predicted"]
Verdict = Literal["confirmed", "refuted", "inconclusive"]

SEVERITIES: tuple[Severity, ...] = ("info", "warning", "error")


@dataclass(frozen=True, kw_only=True)
class Location:
    """A line of the user's source: absolute ``file`` as captured, 1-based ``line``, and the function if known.

    ``library`` is the function of torch that the line calls and that the op is part of (optimizers, gradient
    clipping): the user chooses the call, not what is in it.
    """

    file: str
    line: int
    function: str | None = None
    library: str | None = field(default=None, compare=False)


@dataclass(frozen=True, kw_only=True)
class Verification:
    """What a run on the GPU made of a finding: verdict, measured saving (ns per step) and how it was measured."""

    verdict: Verdict
    reason: str
    reference: str | None = None
    baseline_ns: int | None = None
    reference_ns: int | None = None
    compile_ns: int | None = None
    cuda_compute_ns: int | None = None
    cuda_graph_ns: int | None = None
    saving_ns: int | None = None
    max_error: float | None = None
    details: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing worth changing (or worth knowing) in one pass.

    ``op_ids`` and ``kernel_ids`` point into the pass; ``ops`` are op names in order. ``avoidable_bytes`` and
    ``saving_ns`` are per step, ``None`` where nothing honest can be said; ``basis`` is the basis of ``saving_ns``
    (bytes are always modelled). ``reason`` says why it happened, ``remedy`` what to do. ``evidence`` holds further
    figures as JSON values. ``severity``, ``confidence`` and ``verification`` are three separate axes.
    """

    rule: str
    pass_name: str
    severity: Severity
    message: str
    ops: tuple[str, ...] = ()
    op_ids: tuple[int, ...] = ()
    kernel_ids: tuple[int, ...] = ()
    location: Location | None = None
    avoidable_bytes: int | None = None
    saving_ns: int | None = None
    basis: Basis | None = None
    reason: str | None = None
    remedy: str = ""
    confidence: Confidence = "high"
    evidence: dict[str, Any] = field(default_factory=dict)
    verification: Verification | None = None
    graph: str | None = None
    key: str = ""

    @property
    def fingerprint(self) -> str:
        """16 hex digits that stay the same over runs: rule, ops, file name and line, and ``key`` if a rule sets one.

        No times, ids, kernel names or directories go in; ``key`` tells apart two findings on one line.
        """
        where = "" if self.location is None else f"{self.location.file.rsplit('/', 1)[-1]}:{self.location.line}"
        text = "\x1f".join((self.rule, self.pass_name, ",".join(self.ops), where, self.key))
        return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:16]


NOT_COMPARED = frozenset({"other-loop", "other-steps"})
"""Kinds of notes after which no figure of one pass is set against one of the other."""


@dataclass(frozen=True, kw_only=True)
class Note:
    """A fact about the capture that a reader needs in order to trust it; not a finding.

    ``kind`` is a stable word (``lost-events``, ``match-rate``, ``warm-cache``, ``missing-pass``, ...). ``blocks`` is
    true where the capture cannot support a verdict: the audit then says "cannot judge" and exits 2.
    """

    kind: str
    text: str
    remedy: str = ""
    blocks: bool = False
    pass_name: str | None = None


def rank(findings: list[Finding]) -> list[Finding]:
    """Findings in reporting order: severity, then time saved, then bytes saved (unknown last), then rule and line.

    Of one severity, those that leave nothing to do (the remedy says so) come last, whatever the model says they cost.
    """
    return sorted(
        findings,
        key=lambda f: (
            f.verification is not None and f.verification.verdict == "refuted",
            -SEVERITIES.index(f.severity),
            f.remedy.startswith("nothing to"),
            -(f.saving_ns or 0),
            -(f.avoidable_bytes or 0),
            f.rule,
            f.pass_name,
            (f.location.file, f.location.line) if f.location else ("", 0),
            f.fingerprint,
        ),
    )
