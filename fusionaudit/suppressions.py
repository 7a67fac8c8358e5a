"""``# fusionaudit: ignore[FA101] reason`` in the source, and rules and files that the configuration leaves out."""

from __future__ import annotations

import ast
import fnmatch
import re
from collections.abc import Iterator, Mapping, Sequence

from fusionaudit.config import Config
from fusionaudit.findings import Finding, Location, Note
from fusionaudit.program.model import Program

_CODE = re.compile(r"^FA\d{1,3}$")
_COMMENT = re.compile(r"#\s*fusionaudit:\s*ignore\[([^\]]*)\][ \t:-]*(.*)")

Comments = Mapping[str, Mapping[int, tuple[tuple[str, ...], str]]]
"""{file: {line: (codes, reason)}}."""


def suppression(line: str) -> tuple[tuple[str, ...], str] | None:
    """(codes, reason) of a ``# fusionaudit: ignore[FA101, FA105] reason`` comment on that line."""
    match = _COMMENT.search(line)
    if match is None:
        return None
    codes = tuple(code.strip() for code in match.group(1).split(",") if code.strip())
    return codes, match.group(2).strip()


def suppressed_lines(text: str) -> dict[int, tuple[tuple[str, ...], str]]:
    """{line: (codes, reason)}: a comment counts on its line, and on all lines of the statement that it stands in."""
    found = {n: s for n, s in ((n, suppression(line)) for n, line in enumerate(text.splitlines(), start=1)) if s}
    if not found:
        return {}
    try:
        spans = list(_statements(ast.parse(text)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        spans = []
    out = dict(found)
    for line, said in found.items():
        around = [span for span in spans if span[0] <= line <= span[1]]
        first, last = min(around, key=lambda span: span[1] - span[0], default=(line, line))
        out.update({n: said for n in range(first, last + 1) if n not in found})
    return out


def _statements(tree: ast.AST) -> Iterator[tuple[int, int]]:
    """First and last line of every statement; of one with a body, the lines before the body."""
    for node in ast.walk(tree):
        if isinstance(node, ast.stmt):
            body = getattr(node, "body", None)
            last = body[0].lineno - 1 if body else node.end_lineno or node.lineno
            yield node.lineno, max(node.lineno, last)


def _places(finding: Finding, program: Program) -> list[Location]:
    """Where the finding points, then the lines of all its ops and kernels."""
    p = program.get(finding.pass_name)
    ops, kernels = set(finding.op_ids), set(finding.kernel_ids)
    found = [finding.location]
    if p is not None:
        found += [o.location for o in p.ops if o.id in ops]
        found += [k.location for k in p.kernels if k.id in kernels]
    return list(dict.fromkeys(place for place in found if place is not None))


def _file_ignores(finding: Finding, config: Config) -> bool:
    if finding.location is None:
        return False
    file = finding.location.file
    return any(
        finding.rule.startswith(code)
        for glob, codes in config.per_file.items()
        if fnmatch.fnmatch(file, glob) or fnmatch.fnmatch(file, f"*/{glob}")
        for code in codes
    )


def _comment(finding: Finding, program: Program, comments: Comments) -> tuple[Location, str] | None:
    for place in _places(finding, program) if comments else ():
        codes, why = comments.get(place.file, {}).get(place.line, ((), ""))
        if any(finding.rule.startswith(c) for c in codes if _CODE.match(c)):
            return place, why or "no reason given"
    return None


def _suppressed(
    finding: Finding, program: Program, comments: Comments, config: Config
) -> tuple[Location | None, str] | None:
    """Where and why the finding is left out; ``None`` where it stays."""
    if config.ignores(finding.rule):
        return finding.location, "ignored in pyproject.toml"
    if _file_ignores(finding, config):
        return finding.location, "ignored for this file in pyproject.toml"
    return _comment(finding, program, comments)


def apply_suppressions(
    findings: Sequence[Finding], program: Program, comments: Comments, config: Config
) -> tuple[list[Finding], list[Note]]:
    """The findings that stay, and one note for each one that was taken away."""
    kept: list[Finding] = []
    notes: list[Note] = []
    for finding in findings:
        found = _suppressed(finding, program, comments, config)
        if found is None:
            kept.append(finding)
            continue
        place, why = found
        where = f" at {place.file.rsplit('/', 1)[-1]}:{place.line}" if place is not None else ""
        text = f"{finding.rule}{where} ({finding.pass_name}): {why}"
        notes.append(Note(kind="suppressed", text=text, pass_name=finding.pass_name))
    return kept, notes
