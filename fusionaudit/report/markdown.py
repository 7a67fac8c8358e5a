"""The audit as GitHub-flavoured Markdown, for an issue or a pull request: short, with the kernels folded away."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from fusionaudit.figures import counted, launched
from fusionaudit.report import wording as w
from fusionaudit.report.private import public_environment, scrub_document, scrub_text
from fusionaudit.report.rows import comparison, fold, moved, shown_passes, total

Document = dict[str, Any]

_SPECIAL = re.compile(r"([\\`*_{}\[\]|~#!])")
_MOST_KERNELS = 60
_MOST_FINDINGS = 25
_MOST_NOTES = 20
_LONGEST = 50_000
"""Characters; a comment on GitHub holds 65,536."""
_BADGES = {"error": "🔴", "warning": "🟠", "info": "🔵"}


def text(value: object) -> str:
    """Text that Markdown leaves alone: no markup, no HTML, no mention of a user or an issue."""
    clean = w.plain(value).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _SPECIAL.sub(r"\\\1", clean).replace("@", "&#64;").replace("\\#", "&#35;")


def code(value: object) -> str:
    """A code span that no backtick or pipe in the value can leave."""
    clean = w.plain(value)
    if not clean:
        return ""
    fence = "`" * (max((len(run) for run in re.findall(r"`+", clean)), default=0) + 1)
    pad = " " if clean.startswith("`") or clean.endswith("`") else ""
    return f"{fence}{pad}{clean}{pad}{fence}".replace("|", "\\|")


def table(head: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> list[str]:
    """The lines of a table; its cells are escaped by the caller. ``right``: columns of figures."""
    rule = ["---:" if i in right else "---" for i in range(len(head))]
    return [f"| {' | '.join(row)} |" for row in (head, rule, *rows)]


def render_markdown(document: Document) -> str:
    """The report; every text of the capture is escaped, home folders are shortened."""
    document = scrub_document(document)
    _, sentence = w.verdict(document)
    out = [f"### fusionaudit: {text(sentence)}", "", text(w.target_line(document)), ""]
    out += _comparison(document)
    out += _findings(document)
    kernels = _kernels(document)
    if sum(map(len, out)) + sum(map(len, kernels)) > _LONGEST:
        kernels = ["The kernels are in the full report: this text has to fit a comment.", ""]
    out += kernels
    if document["notes"]:
        out += ["", "**Notes**", ""]
        out += [f"- {text(n['kind'])}: {text(n['text'][:500])}" for n in document["notes"][:_MOST_NOTES]]
    facts = public_environment(document["environment"])
    words = [f"{k} {v}" for k in ("torch", "triton", "python", "driver", "nsys") if isinstance(v := facts.get(k), str)]
    version = f"fusionaudit {document['tool'].get('version', '')}"
    out += ["", f"<sub>{text(', '.join([version, *words]))}</sub>", ""]
    return "\n".join(out)


def _comparison(document: Document) -> list[str]:
    rows = comparison(document)
    if not rows:
        return []
    names = [text(p["name"]) for p in shown_passes(document)]
    head = ["per step", *names, "ratio"]
    body = [[r.label + w.basis_note(r.basis), *r.texts, text(r.ratio_text)] for r in rows]
    return [*table(head, body, range(1, len(head))), ""]


def _findings(document: Document) -> list[str]:
    findings = document["findings"]
    if not findings:
        return []
    rows = []
    for f in findings[:_MOST_FINDINGS]:
        badge = "⚪" if w.refuted(f) else _BADGES.get(f["severity"], "")
        rows.append(
            [
                f"{badge} {text(f['rule'])}",
                code(w.place(f["location"])),
                "withdrawn" if w.refuted(f) else text(w.finding_worth(f).removesuffix(" per step")) or "-",
                _finding_text(f),
            ]
        )
    out = [f"**Findings ({len(findings)})**", "", *table(["rule", "line", "saves", "what to do"], rows)]
    if len(findings) > _MOST_FINDINGS:
        out.append(f"\n{counted(len(findings) - _MOST_FINDINGS, 'more finding')}: see the full report.")
    return [*out, ""]


def _finding_text(finding: dict[str, Any]) -> str:
    parts = [text(finding["message"][:600])]
    if finding.get("reason"):
        parts.append(f"Why: {text(finding['reason'][:400])}")
    if finding.get("remedy"):
        parts.append(f"**{text(finding['remedy'][:400])}**")
    if finding.get("verification"):
        parts.append(f"Verified: {text(w.verification_text(finding['verification']))}")
    return "<br>".join(parts)


def _kernels(document: Document) -> list[str]:
    out: list[str] = []
    for p in shown_passes(document):
        if not p["kernels"]:
            continue
        folds = fold(p["kernels"])
        rows: list[list[str]] = []
        for item in folds:
            for index, kernel in enumerate(item.kernels):
                members = item.members[index :: len(item.kernels)]
                times = f" x{item.times}" if item.times > 1 else ""
                rows.append(
                    [
                        str(kernel["id"]),
                        code(w.shorten(w.kernel_label(scrub_text(kernel["name"])), 60)) + times,
                        text(w.op_list(kernel["ops"])),
                        code(w.place(kernel["location"])),
                        w.format_ns(total(members, "duration_ns")),
                        w.format_bytes(moved(members)),
                    ]
                )
        ran = launched(p["per_step"]["launches"], p["per_step"]["copies_and_fills"])
        out += [f"<details><summary>Kernels, {text(p['name'])} ({ran} per step)</summary>", ""]
        basis = w.basis_note(p["per_step"].get("time_basis"))
        head = ["#", "kernel", "ops", "line", f"time{basis}", "bytes (modelled)"]
        out += table(head, rows[:_MOST_KERNELS], (0, 4, 5))
        if len(rows) > _MOST_KERNELS:
            out.append(f"\n{counted(len(rows) - _MOST_KERNELS, 'more row')}: see the full report.")
        out += ["", "</details>", ""]
    return out
