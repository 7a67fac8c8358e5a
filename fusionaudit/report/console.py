"""The audit on a terminal: verdict, passes side by side, findings, kernels in order, notes. 80 columns are enough."""

from __future__ import annotations

import textwrap
from collections.abc import Hashable, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from fusionaudit.figures import counted, launched
from fusionaudit.report import regions
from fusionaudit.report import wording as w
from fusionaudit.report.rows import Fold, Measure, comparison, fold, kernel_key, moved, shown_passes, total, untimed

Document = dict[str, Any]

_TONES = {
    "blocked": "bold magenta",
    "error": "bold red",
    "warning": "bold yellow",
    "info": "bold cyan",
    "ok": "bold green",
}
_MARKS = {"blocked": "?", "error": "!", "warning": "!", "info": "i", "ok": "+"}
_FEW_FINDINGS = 10
_FEW_KERNELS = 30
_WIDEST = 140
_NARROW = 60
"""Below this width registers and local memory are left out: kernels' names need the room."""


def render_console(document: Document, console: Console, *, verbose: bool = False) -> None:
    """Print the audit. ``verbose`` shows every kernel and finding. Names from the capture are never read as markup."""
    width = max(40, min(console.width, _WIDEST))
    lines = [
        *_head(document, width),
        *_comparison(document, width),
        *_regions(document, width),
        *_findings(document, width, verbose=verbose),
        *_kernels(document, width, verbose=verbose),
        *_notes(document, width, verbose=verbose),
    ]
    for line in lines:
        console.print(line, soft_wrap=True, highlight=False)


def _wrap(text: str, width: int, first: str = "", rest: str = "", style: str = "") -> list[Text]:
    parts = textwrap.wrap(
        w.plain(text), width, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False
    ) or [first]
    return [Text(part, style=style) for part in parts]


def _title(text: str, width: int, aside: str = "") -> list[Text]:
    line = Text(text, style="bold")
    if aside and len(text) + 2 + len(aside) > width:
        return [Text(), line, *_wrap(aside, width, style="dim")]
    if aside:
        line.append(f"  {aside}", style="dim not bold")
    return [Text(), line]


def _head(document: Document, width: int) -> list[Text]:
    tone, sentence = w.verdict(document)
    out = _wrap(f"{_MARKS[tone]} {sentence}", width, rest="  ", style=_TONES[tone])
    return [*out, *_wrap(w.target_line(document), width, "  ", "  ", style="dim")]


def _comparison(document: Document, width: int) -> list[Text]:
    rows, passes = comparison(document), shown_passes(document)
    if not rows:
        return []
    columns = [p["name"] for p in passes]
    ratio = any(r.ratio is not None for r in rows)
    labels = [r.label + w.basis_note(r.basis) for r in rows]
    label_width = max(len(t) for t in labels) + 1
    cells = [len(t) for r in rows for t in r.texts] + [len(c) for c in columns]
    cell = min(max(cells) + 2, max(8, (width - label_width - 12) // max(len(columns), 1)))
    steps = ", ".join(f"{p['name']} {p['steps']}" for p in passes if p["steps"])
    out = _title("Per step", width, f"median over steady steps: {steps}" if steps else "")
    if label_width + cell * len(columns) + 9 * ratio > width:
        return [*out, *_stacked(rows, columns, width), *_unknown(document, width)]
    head = Text(" " * label_width, style="dim")
    for name in columns:
        head.append(w.shorten(name, cell - 1).rjust(cell))
    if ratio:
        head.append("ratio".rjust(9))
    out.append(head)
    for row, label in zip(rows, labels, strict=True):
        line = Text(label.ljust(label_width))
        for text in row.texts:
            line.append(text.rjust(cell))
        if row.ratio is not None:
            better = row.ratio < 0.995 if row.less_is_better else row.ratio > 1.005
            same = 0.995 <= row.ratio <= 1.005
            line.append(row.ratio_text.rjust(9), style="dim" if same or row.bound else "green" if better else "red")
        out.append(line)
    return [*out, *_unknown(document, width)]


def _stacked(rows: Sequence[Measure], columns: Sequence[str], width: int) -> list[Text]:
    """The comparison where its table is too wide: a paragraph a row."""
    out = []
    for row in rows:
        figures = ", ".join(f"{name} {text}" for name, text in zip(columns, row.texts, strict=True))
        ratio = f" ({row.ratio_text})" if row.ratio is not None else ""
        out += _wrap(f"{row.label}{w.basis_note(row.basis)}: {figures}{ratio}", width, rest="  ")
    return out


def _unknown(document: Document, width: int) -> list[Text]:
    """What of the comparison is not known, and why."""
    out = []
    passes = shown_passes(document)
    if why := untimed(document):
        out += _wrap(why, width, style="dim")
    missing = [
        f"{p['name']} {p['per_step']['kernels_without_bytes']}"
        for p in passes
        if p["per_step"].get("kernels_without_bytes")
    ]
    if missing:
        out += _wrap(f"bytes not known, so not counted: kernels of {', '.join(missing)}", width, style="dim")
    return out


def _regions(document: Document, width: int) -> list[Text]:
    rows = regions.regions(document)
    if not rows:
        return []
    out = _title("Regions", width, "per step; fusionaudit.region")
    if width < _NARROW:
        for row in rows:
            text = f"{row.name}, {row.pass_name}: launches {row.launches}, {row.bytes}, {row.time}"
            out += _wrap(text, width, "  " * row.depth, "  " * row.depth + "  ")
        return [*out, *_wrap(regions.NOTE, width, style="dim")]
    time = regions.time_label(document)
    room = width - 10 - 10 - 11 - max(11, len(time) + 2)
    head = Text(" " * room + "pass".ljust(10) + "launches".rjust(10) + "bytes".rjust(11), style="dim")
    out.append(head.append(time.rjust(width - len(head.plain))))
    before = ""
    for row in rows:
        name = "  " * row.depth + w.plain(row.name)
        line = Text("" if name == before else w.shorten(name, room - 1))
        line.append(" " * (room - len(line.plain)) + w.shorten(row.pass_name, 9).ljust(10), style="dim")
        line.append(row.launches.rjust(10) + row.bytes.rjust(11))
        out.append(line.append(row.time.rjust(width - len(line.plain))))
        before = name
    return [*out, *_wrap(regions.NOTE, width, style="dim")]


def _findings(document: Document, width: int, *, verbose: bool) -> list[Text]:
    findings = document["findings"]
    if not findings:
        return []
    shown = findings if verbose else findings[:_FEW_FINDINGS]
    out = _title(f"Findings ({len(findings)})", width, "ranked by severity, then time and bytes saved")
    for finding in shown:
        out += _finding(document, finding, width)
    if len(shown) < len(findings):
        out.append(Text(f"  .. {len(findings) - len(shown)} more; --verbose shows them", style="dim"))
    return out


def _finding(document: Document, finding: dict[str, Any], width: int) -> list[Text]:
    style = "dim" if w.refuted(finding) else _TONES.get(finding["severity"], "")
    head = Text(f"{finding['rule']} {finding['severity']}", style=style)
    where = w.place(finding["location"])
    head.append(f"  {finding['pass']}", style="dim not bold")
    if where:
        head.append(f"  {w.shorten(where, max(12, width - len(head.plain) - 2))}", style="cyan not bold")
    out = [Text(), head]
    worth = w.finding_worth(finding)
    if w.refuted(finding):
        out += _wrap("withdrawn: a run on the GPU showed no gain", width, "  ", "  ", style="dim")
    elif worth:
        out += _wrap(f"saves {worth}", width, "  ", "  ", style="bold")
    out += _wrap(finding["message"], width, "  ", "  ")
    source = _source(document, finding["location"])
    if source is not None:
        text = f"  {finding['location']['line']:>4} | "
        out.append(Text(text, style="dim").append(w.shorten(source, width - len(text)), style="not dim"))
    facts: tuple[tuple[str, str | None], ...] = (
        ("why", finding.get("reason")), ("do", finding.get("remedy")),
        ("verified", w.verification_text(finding.get("verification"))),
    )  # fmt: skip
    for label, fact in facts:
        if fact:
            first, *rest = _wrap(fact, width, f"  {label}: ", "      ")
            first.stylize("dim", 0, len(label) + 4)
            out += [first, *rest]
    return out


def _source(document: Document, location: dict[str, Any] | None) -> str | None:
    if location is None:
        return None
    line = document["sources"].get(location["file"], {}).get(str(location["line"]))
    return None if line is None else line.strip()


def _kernels(document: Document, width: int, *, verbose: bool) -> list[Text]:
    out: list[Text] = []
    before: list[Hashable] = []
    for p in shown_passes(document):
        if not p["kernels"]:
            continue
        folds = fold(p["kernels"])
        aside = f"{launched(p['per_step']['launches'], p['per_step']['copies_and_fills'])} per step, in order"
        if len(folds) < len(p["kernels"]):
            aside += "; loops folded and added up"
        out += _title(f"Kernels, {p['name']}", width, aside)
        keys = [kernel_key(k) for k in p["kernels"]]
        if keys == before:
            out.append(Text("  the same as above", style="dim"))
            continue
        before = keys
        basis = p["per_step"].get("time_basis")
        out.append(_columns("kernel", "time", "bytes", "regs", "local", width, number="#", style="dim"))
        shown = folds if verbose else folds[:_FEW_KERNELS]
        for item in shown:
            out += _fold(item, width)
        if basis:
            note = f"time {basis}; bytes modelled, an op's with its first launch"
            note += "; regs, local memory (spills) a thread" if width >= _NARROW else ""
            out += _wrap(note, width, style="dim")
        if len(shown) < len(folds):
            rest = sum(len(f.members) for f in folds[len(shown) :])
            out.append(Text(f".. {counted(rest, 'more kernel')}; --verbose shows them", style="dim"))
    return out


def _columns(
    name: str, time: str, size: str, registers: str, local: str, width: int, *, number: str = "", style: str = ""
) -> Text:
    room = _name_room(width)
    line = Text(number.rjust(4) + " ", style="dim")
    line.append(w.shorten(name, room - 1).ljust(room), style=style)
    line.append(time.rjust(10) + size.rjust(10), style=style)
    if width >= _NARROW:
        line.append(registers.rjust(6) + local.rjust(7), style=style)
    return line


def _name_room(width: int) -> int:
    """Columns of a kernel's name: what number, time, bytes, registers and local memory leave."""
    return width - 5 - 10 - 10 - (13 if width >= _NARROW else 0)


def _fold(item: Fold, width: int) -> list[Text]:
    out = []
    several = len(item.kernels) > 1
    if several:
        out.append(
            _columns(
                f"loop of {len(item.kernels)} kernels x{item.times}:",
                w.format_ns(total(item.members, "duration_ns")),
                w.format_bytes(moved(item.members)),
                "",
                "",
                width,
                style="bold",
            )
        )
    for index, kernel in enumerate(item.kernels):
        members = item.members[index :: len(item.kernels)]
        name = w.kernel_label(kernel["name"])
        if item.times > 1:
            times = f" x{item.times}"
            name = w.shorten(name, _name_room(width) - 1 - len(times) - (2 if several else 0)) + times
        local = kernel["local_memory_bytes"] if kernel["local_memory_bytes"] is not None else kernel["spill_bytes"]
        out.append(
            _columns(
                ("| " if several else "") + name,
                w.format_ns(total(members, "duration_ns")),
                w.format_bytes(moved(members)),
                w.format_count(kernel["registers"]),
                "0" if local == 0 else w.format_bytes(local),
                width,
                number=str(kernel["id"]),
            )
        )
        out.append(_detail(kernel, width, bar="| " if several else ""))
    return out


def _detail(kernel: dict[str, Any], width: int, bar: str) -> Text:
    where = w.place(kernel["location"])
    tensors = w.flow_text(kernel["reads"], kernel["writes"], 3)
    indent = " " * 7 + bar
    line = Text(indent)
    room = width - len(indent) - (len(where) + 2 if where else 0)
    ops = w.op_list(kernel["ops"]) or "op not known"
    # Both are cut where they do not fit; ops keep at least about half of the line.
    ops_room = max(30, room - len(tensors) - 2) if tensors else room
    line.append(w.shorten(ops, min(ops_room, room)), style="dim")
    left = room - len(line.plain) + len(indent) - 2
    if tensors and left > 8:
        line.append("  " + w.shorten(tensors, left), style="dim")
    if where and len(line.plain) + len(where) + 2 <= width:
        line.append("  " + where, style="cyan")
    return line


def _notes(document: Document, width: int, *, verbose: bool) -> list[Text]:
    if not document["notes"]:
        return []
    out = _title("Notes", width)
    suppressed = [n for n in document["notes"] if n["kind"] == "suppressed"]
    hidden = [] if verbose else suppressed[_FEW_FINDINGS:]
    for note in document["notes"]:
        if any(note is n for n in hidden):
            continue
        kind = note["kind"] + (f" ({note['pass']})" if note.get("pass") else "")
        text = note["text"].removeprefix(f"{note.get('pass')}: ")
        out += _wrap(f"{kind}: {text}", width, "- ", "  ", style="bold magenta" if note.get("blocks") else "")
        if note.get("remedy"):
            out += _wrap(f"-> {note['remedy']}", width, "  ", "     ", style="dim")
    if hidden:
        out.append(Text(f"- suppressed: {len(hidden)} more; --verbose shows them", style="dim"))
    return out
