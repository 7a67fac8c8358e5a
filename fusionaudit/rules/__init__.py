"""The rule catalogue: one module a rule, each with ``CODE``, ``TITLE``, a docstring for users, and ``check``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Protocol

from fusionaudit.config import Config
from fusionaudit.findings import Finding
from fusionaudit.program.model import Program
from fusionaudit.rules import (
    fa101,
    fa102,
    fa103,
    fa104,
    fa105,
    fa106,
    fa107,
    fa108,
    fa111,
    fa112,
    fa113,
    fa114,
    fa115,
    fa116,
    fa117,
    fa118,
    fa201,
    fa202,
    fa203,
    fa204,
    fa301,
    fa302,
    fa303,
    fa304,
    fa305,
    fa306,
    fa307,
)


class Rule(Protocol):
    """What a rule module offers."""

    CODE: str
    TITLE: str
    __doc__: str | None

    def check(self, program: Program, config: Config) -> Iterator[Finding]:
        """The rule's findings in a program. Pure."""
        ...


RULES: tuple[Rule, ...] = (
    fa101,
    fa102,
    fa103,
    fa104,
    fa105,
    fa106,
    fa107,
    fa108,
    fa111,
    fa112,
    fa113,
    fa114,
    fa115,
    fa116,
    fa117,
    fa118,
    fa201,
    fa202,
    fa203,
    fa204,
    fa301,
    fa302,
    fa303,
    fa304,
    fa305,
    fa306,
    fa307,
)
"""All rules in order of their codes."""


def above_floor(finding: Finding, config: Config) -> Finding:
    """The finding, as information where what it saves is less than one kernel, whatever its share of a tiny step.

    FA106 counts launches on the host, which cost more than what they save on the GPU.
    """
    tiny = finding.saving_ns is not None and finding.saving_ns < config.thresholds.min_saving_ns
    if finding.severity == "warning" and tiny and finding.rule != fa106.CODE:
        return replace(finding, severity="info")
    return finding


def run_rules(program: Program, config: Config) -> list[Finding]:
    """The findings of all rules that the configuration selects, in order of the rules; ignored ones are among them.

    Fingerprints are unique: of findings that would share one (same ops at the same line), later ones are numbered.
    """
    seen: Counter[str] = Counter()
    out: list[Finding] = []
    for rule in RULES:
        if not config.selects(rule.CODE):
            continue
        for finding in rule.check(program, config):
            finding = above_floor(finding, config)
            seen[finding.fingerprint] += 1
            number = seen[finding.fingerprint]
            out.append(finding if number == 1 else replace(finding, key=f"{finding.key}#{number}"))
    return out
