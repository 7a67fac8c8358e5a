"""Audit a script in several variants (dtype, dynamic sizes, Inductor options) and say where fusion depends on them."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fusionaudit.capture.variant import DTYPES
from fusionaudit.diff import Change, compare
from fusionaudit.errors import EXIT_ERROR, EXIT_OK, AuditError
from fusionaudit.explain import describe, megabytes
from fusionaudit.figures import counted, launched
from fusionaudit.findings import Finding, Location
from fusionaudit.grouping import lock_of, merge
from fusionaudit.groups import Lock
from fusionaudit.report.document import Document, finding_json
from fusionaudit.report.markdown import code, table, text

if TYPE_CHECKING:
    from fusionaudit.capture.session import RunOptions
    from fusionaudit.config import Config

SCHEMA_VERSION = 1
"""Of the JSON of a sweep."""
_GIVE = "before the script, give --dtype fp32,bf16, --dynamic on,off or --option KEY=VALUE"
_SWITCH = {"on": True, "off": False, "true": True, "false": False}
_DTYPE = re.compile(r"\b(?:f16|bf16|f32|f64)(?=\[)")


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One way to run the script; ``None`` and empty leave it as it is."""

    dtype: str | None = None
    dynamic: bool | None = None
    options: tuple[tuple[str, Any], ...] = ()

    @property
    def label(self) -> str:
        """``dtype=bf16 dynamic=on epilogue_fusion=false``."""
        parts = [] if self.dtype is None else [f"dtype={self.dtype}"]
        parts += [] if self.dynamic is None else [f"dynamic={'on' if self.dynamic else 'off'}"]
        parts += [f"{key}={json.dumps(value)}" for key, value in self.options]
        return " ".join(parts) or "as it is"

    def to_json(self) -> dict[str, Any]:
        """What :func:`fusionaudit.capture.variant.apply` reads."""
        return {"dtype": self.dtype, "dynamic": self.dynamic, "options": dict(self.options)}


@dataclass(frozen=True, kw_only=True)
class Row:
    """A variant's compiled step. ``problem``: why it cannot be judged. ``findings``: what differs from the first
    variant; ``None`` where it was not compared (it is the first, or one of the two cannot be judged)."""

    variant: Variant
    document: Document
    launches: int | None = None
    copies: int | None = None
    bytes: int | None = None
    problem: str | None = None
    findings: tuple[Finding, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class SweepResult:
    """A row a variant, in their order, and the exit code: 2 where nothing could be compared."""

    rows: tuple[Row, ...]
    exit_code: int

    @property
    def findings(self) -> tuple[Finding, ...]:
        """FA117 findings of all variants."""
        return tuple(f for row in self.rows for f in row.findings or ())

    @property
    def lines(self) -> tuple[str, ...]:
        """The text that the command prints."""
        out: list[str] = []
        for row in self.rows:
            out.append(f"{row.variant.label}: {_told(row, row is self.rows[0])}")
            out += [f"    {f.message.partition(': ')[2]}" for f in row.findings or ()]
        return tuple(out)


def _told(row: Row, first: bool) -> str:
    if row.problem is not None:
        return f"cannot judge: {row.problem}"
    figures = f"{launched(row.launches or 0, row.copies or 0)}, {megabytes(row.bytes)}"
    if first:
        return f"{figures} (the first: others are compared with it)"
    if row.findings is None:
        return f"{figures}; nothing to compare with"
    count = len(row.findings)
    return f"{figures}; {counted(count, 'region differs', 'regions differ') if count else 'the same groups'}"


def _value(text: str) -> Any:
    if text in _SWITCH:
        return _SWITCH[text]
    try:
        return json.loads(text)
    except ValueError:
        return text


def parse_variants(
    *, dtype: str | None = None, dynamic: str | None = None, options: Sequence[str] = ()
) -> tuple[Variant, ...]:
    """The product of the lists: ``dtype="fp32,bf16"``, ``dynamic="on,off"``, ``options=["max_fusion_size=4,64"]``.

    AuditError for unknown words, an empty list, or fewer than two variants.
    """
    dtypes: list[str | None] = [d.strip() for d in dtype.split(",")] if dtype else [None]
    for name in dtypes:
        if name is not None and name not in DTYPES and name not in DTYPES.values():
            raise AuditError(f"sweep: unknown dtype {name!r}", remedy=f"known: {', '.join(DTYPES)}")
    switches: list[bool | None] = [None]
    if dynamic:
        words = [w.strip() for w in dynamic.split(",")]
        wrong = [w for w in words if w not in _SWITCH]
        if wrong:
            raise AuditError(f"sweep: --dynamic {wrong[0]!r}", remedy="write on, off or on,off")
        switches = [_SWITCH[w] for w in words]
    axes: list[list[tuple[str, Any]]] = []
    for option in options:
        key, equals, values = option.partition("=")
        if not equals or not key.strip() or not values:
            raise AuditError(f"sweep: --option {option!r}", remedy="write KEY=VALUE or KEY=VALUE1,VALUE2")
        axes.append([(key.strip(), _value(v.strip())) for v in values.split(",")])
    product = itertools.product(dtypes, switches, *axes)
    variants = list(dict.fromkeys(Variant(dtype=d, dynamic=s, options=tuple(chosen)) for d, s, *chosen in product))
    if len(variants) == 1 and variants[0] != Variant():
        variants.insert(0, Variant())  # one variant is compared with the script as it is
    if len(variants) < 2:
        raise AuditError("sweep: nothing to vary", remedy=_GIVE)
    return tuple(variants)


def _comparable(document: Document) -> Lock:
    """The compiled groups with float dtypes and symbolic sizes set aside: they are what the sweep varies."""
    lock = lock_of(document)
    groups = []
    for group in lock.groups:
        if group.section.pass_name != "compiled":
            continue
        section = replace(group.section, dynamic=0, inputs=tuple(_DTYPE.sub("float", t) for t in group.section.inputs))
        reads, writes = (tuple(_DTYPE.sub("float", t) for t in side) for side in (group.reads, group.writes))
        groups.append(replace(group, section=section, reads=reads, writes=writes, bytes=0))
    return replace(lock, groups=merge(groups))


def _finding(change: Change, variant: Variant, base: Variant, bytes_of: tuple[int | None, int | None]) -> Finding:
    ref = next((r for g in (*change.new, *change.old) for r in g.refs if r.line is not None), None)
    before, after = change.launches
    worse = after > before or bool(change.lost_edges)
    return Finding(
        rule="FA117",
        pass_name="compiled",
        severity="warning" if worse else "info",
        message=f"with {variant.label} other kernels than with {base.label}: {describe(change, costs=False)}",
        ops=tuple(dict.fromkeys(op for g in (*change.old, *change.new) for op in g.ops)),
        location=Location(file=ref.path or ref.file, line=ref.line or 0, function=ref.function) if ref else None,
        avoidable_bytes=sum(e.bytes or 0 for e in change.lost_edges) or None,
        remedy="use the variant that fuses, or rewrite these lines so that all do",
        evidence={"variant": variant.label, "base": base.label, "launches": [before, after], "pass_bytes": bytes_of},
        key=f"{variant.label}|{change.kind}|{','.join(change.added_ops)}",
    )


def compare_variants(base: Row, other: Row) -> tuple[Finding, ...]:
    """FA117 findings of one variant against the first. Neither may have a problem."""
    changes = compare(_comparable(base.document), _comparable(other.document))
    sizes = base.bytes, other.bytes
    return tuple(_finding(c, other.variant, base.variant, sizes) for c in changes.changes)


def _row(variant: Variant, document: Document) -> Row:
    """Launches, copies and fills, and bytes per step of the compiled pass."""
    blocked = next((n["text"] for n in document["notes"] if n["blocks"]), None)
    p = next((p for p in document["passes"] if p["name"] == "compiled" and p["kernels"]), None)
    if blocked is not None or p is None:
        return Row(variant=variant, document=document, problem=blocked or "its compiled pass launches nothing")
    sizes = [k["global_bytes"] for k in p["kernels"]]
    copies = sum(k["category"] in ("memcpy", "memset") for k in p["kernels"])
    return Row(
        variant=variant, document=document, launches=len(sizes) - copies, copies=copies,
        bytes=None if None in sizes else sum(sizes),
    )  # fmt: skip


def sweep(run: Callable[[Variant], Document], variants: Iterable[Variant]) -> SweepResult:
    """Run every variant and compare each with the first. ``run`` audits one variant.

    A variant that fails or cannot be judged is named and left out; exit code 2 where the first or all others are.
    """
    rows: list[Row] = []
    for variant in variants:
        try:
            document = run(variant)
        except AuditError as error:
            document = {"passes": [], "findings": [], "notes": [{"blocks": True, "text": str(error)}]}
        row = _row(variant, document)
        if rows and row.problem is None and rows[0].problem is None:
            row = replace(row, findings=compare_variants(rows[0], row))
        rows.append(row)
    compared = any(row.findings is not None for row in rows)
    return SweepResult(rows=tuple(rows), exit_code=EXIT_OK if compared else EXIT_ERROR)


def sweep_json(result: SweepResult) -> dict[str, Any]:
    """The result as one object; ``bytes`` is null where a kernel's are not known, ``findings`` where the variant was
    not compared with the first."""
    return {
        "schema_version": SCHEMA_VERSION,
        "variants": [
            {
                "label": row.variant.label,
                **row.variant.to_json(),
                "problem": row.problem,
                "launches": row.launches,
                "copies_and_fills": row.copies,
                "bytes": row.bytes,
                "findings": None if row.findings is None else [finding_json(f) for f in row.findings],
            }
            for row in result.rows
        ],
        "exit_code": result.exit_code,
    }


def sweep_markdown(result: SweepResult) -> str:
    """The result as GitHub-flavoured Markdown: a table of the variants, then what differs."""
    rows = [[code(row.variant.label), text(_told(row, row is result.rows[0]))] for row in result.rows]
    out = ["### fusionaudit sweep", "", *table(["variant", "compiled, per step"], rows), ""]
    out += [f"- {text(f.message)}{f' ({code(_where(f.location))})' if f.location else ''}" for f in result.findings]
    return "\n".join([*out, ""])


def _where(place: Location) -> str:
    return f"{place.file.rsplit('/', 1)[-1]}:{place.line}"


def sweep_script(options: RunOptions, variants: Sequence[Variant], *, config: Config | None = None) -> SweepResult:
    """Capture and audit the script once a variant, each in a folder of its own below ``options.out``."""
    from fusionaudit.pipeline import audit, capture_script

    top = options.out or Path.cwd() / "fusionaudit-sweep"
    numbers = {variant: number for number, variant in enumerate(variants, start=1)}

    def run(variant: Variant) -> Document:
        words = re.sub(r"[^A-Za-z0-9.=]+", "-", variant.label)[:80]
        folder = top / f"{numbers[variant]}-{words}"
        captured = capture_script(replace(options, out=folder, variant=variant.to_json()))
        return audit(captured, config=config).document

    return sweep(run, variants)
