"""Changes between locks in words: which group split, which edge was lost, what it costs before and after."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Callable, Sequence

from fusionaudit.compiled_by import not_told
from fusionaudit.diff import Change, Changes, compare, graph_counts
from fusionaudit.figures import counted as number
from fusionaudit.figures import launched, times
from fusionaudit.groups import Group, Lock, Ref, Section
from fusionaudit.report.wording import format_bytes, plain


def megabytes(size: int | None) -> str:
    """Bytes for a reader (``16.8 MB``)."""
    return "unknown bytes" if size is None else format_bytes(size)


def place(section: Section) -> str:
    """``compiled forward graph of Block.forward`` or ``eager backward``."""
    where = section.place.partition(" ")[2]
    graph = f" graph of {where}" if section.graph and where else " graph" if section.graph else ""
    return f"{section.pass_name} {section.kind}{graph}"


def _cost(change: Change) -> str:
    before, after = change.launches
    size_before, size_after = change.bytes
    one, more = ("copy", "copies") if all(g.copy for g in (*change.old, *change.new)) else ("launch", "launches")
    launches = number(before, one, more) + ("" if before == after else f" -> {after}")
    if size_before == size_after:
        return f"{launches}, {megabytes(size_before)}"
    return f"{launches}, {megabytes(size_before)} -> {megabytes(size_after)}"


def _brief(names: Sequence[str], most: int = 4) -> str:
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


def _event(change: Change) -> str:
    group = (change.new or change.old)[0]
    verb = "no longer" if not change.new else "now"
    what = {
        "break": "breaks the graph",
        "sync": f"makes the host wait for the device ({group.ops[0]})",
        "skip": "has its CUDA graph skipped",
        "recompile": f"compiles {group.refs[0].function if group.refs else 'it'} again and again ({group.ops[0]})",
    }[group.what]
    if change.kind == "repeated":
        what += f" {times(change.launches[1])} a step, before {times(change.launches[0])}"
    return f"{verb} {what}" + (f": {group.note}" if group.note else "")


def describe(change: Change, reason: str | None = None, *, costs: bool = True) -> str:
    """One change in words; with ``costs`` launches and bytes before and after."""
    old, new = change.old, change.new
    if (new or old)[0].what != "kernel":
        return f"{change.pass_name}: {_event(change)}"
    head = place(change.section)
    if change.kind == "dynamic":
        was, now = old[0].section.dynamic, new[0].section.dynamic
        word = (
            f"{now} size{'s are' if now > 1 else ' is'} now symbolic (dynamic)" if now else "all sizes are static again"
        )
        return f"{head}: {word}; the kernels are {'no longer' if now > was else 'now'} compiled for these shapes"
    if change.kind == "cuda graph":
        lost = old[0].section.cuda_graph
        word, how = ("no longer", "one by one") if lost else ("now", "together")
        return f"{head}: {word} asks for a CUDA graph: its kernels are launched {how}"
    if change.kind == "added":
        text = f"{head}: new kernel {_brief([g.label for g in new])}"
    elif change.kind == "removed":
        text = f"{head}: kernel gone: {_brief([g.label for g in old])}"
    elif change.kind == "split":
        text = f"{head}: {old[0].label} was one kernel and is now {len(new)}: {_brief([g.label for g in new])}"
    elif change.kind == "merged":
        text = f"{head}: {len(old)} kernels are now one: {new[0].label}"
    elif change.kind == "repeated":
        text = f"{head}: {new[0].label} runs {times(change.launches[1])} a step, before {times(change.launches[0])}"
    elif change.kind == "inputs":
        text = f"{head}: it is called with other tensors: {_pairs(old[0].section.inputs, new[0].section.inputs)}"
    elif change.kind == "signature":
        text = f"{head}: {new[0].label} works on other tensors: {_tensor_change(old[0], new[0])}"
    elif change.kind == "changed" and change.added_ops:
        verb = "took the place of" if change.removed_ops else "joined"
        gone = _brief(change.removed_ops) if change.removed_ops else old[0].label
        text = f"{head}: {_brief(change.added_ops)} {verb} {gone}"
    elif change.kind == "changed" and change.removed_ops:
        text = f"{head}: {_brief(change.removed_ops)} left {old[0].label}"
    elif change.kind == "changed":
        text = f"{head}: {new[0].label} moves other bytes"
    else:
        text = f"{head}: {len(old)} kernels became {len(new)}: {_brief([g.label for g in new])}"
        if change.added_ops:
            text += f"; new: {_brief(change.added_ops)}"
    for edge in change.lost_edges[:3]:
        ends = [
            f"{op}{_at(ref)}" for op, ref in ((edge.producer, edge.producer_ref), (edge.consumer, edge.consumer_ref))
        ]
        through = f"memory and {_brief(edge.through)}" if edge.through else "memory"
        text += (
            f"; {ends[0]} -> {ends[1]} shared a kernel, now {edge.tensor}"
            f" ({megabytes(edge.bytes)}) goes through {through} between them"
        )
    if reason:
        text += f"; Inductor: {reason}"
    return f"{text} ({_cost(change)})" if costs else text


def _at(ref: Ref | None) -> str:
    return f" ({ref.file}:{ref.line})" if ref else ""


def _pairs(old: Sequence[str], new: Sequence[str]) -> str:
    gone, come = Counter(old) - Counter(new), Counter(new) - Counter(old)
    if len(old) == len(new):
        return _brief(list(dict.fromkeys(f"{a} -> {b}" for a, b in zip(old, new, strict=True) if a != b)), 2)
    words = [
        f"{word} {_brief(list(tensors), 2)}" for word, tensors in (("no longer", gone), ("now also", come)) if tensors
    ]
    return ", ".join(words)


def _tensor_change(old: Group, new: Group) -> str:
    sides = (("reads", old.reads, new.reads), ("writes", old.writes, new.writes))
    return ", ".join(f"{word} {_pairs(a, b)}" for word, a, b in sides if a != b)


_EAGER_SIDE = {
    "removed": "now as it runs eagerly: the script no longer compiles",
    "added": "before as it ran eagerly: the script did not compile",
}


def compiling_text(changes: Changes) -> str:
    """In words: the script's own compilation came or went, and what that costs its step."""
    assert changes.compiling is not None
    what, names = changes.compiling
    before, after = changes.totals["compiled"]
    costs = [f"{launched(t.launches, t.copies)}, {megabytes(t.bytes)}" for t in (before, after)]
    least = "; without the groups whose bytes are not known" if before.unknown or after.unknown else ""
    verb, basis = (
        ("no longer compiles", "compiled before, eager now")
        if what == "removed"
        else ("now compiles", "eager before, compiled now")
    )
    function = f" {_brief(names)}" if names else ""
    return f"the script {verb}{function}: its step goes from {costs[0]} to {costs[1]} ({basis}{least})"


def figures(changes: Changes, lock: Lock, new: Lock, sides: tuple[str, str] = ("the lock", "this audit")) -> list[str]:
    """A line a pass: launches, bytes and graphs before and after; what only one side has is not compared."""
    lines = []
    for name, (before, after) in changes.totals.items():
        graphs = graph_counts(lock, new, name)
        text = f"{name}: launches {before.launches} -> {after.launches}"
        if before.copies or after.copies:
            text += f", copies and fills {before.copies} -> {after.copies}"
        text += f", bytes {megabytes(before.bytes)} -> {megabytes(after.bytes)} per step"
        if before.unknown or after.unknown:
            text += f" (without {before.unknown} -> {after.unknown} groups whose bytes are not known)"
        text += f", graphs {graphs[0]} -> {graphs[1]}" if any(graphs) else ""
        if name == "compiled" and changes.compiling:
            text += f" ({_EAGER_SIDE[changes.compiling.what]})"
        lines.append(text)
    for side, one, other in ((sides[0], lock, new), (sides[1], new, lock)):
        if not_told(one, other):
            lines.append(
                f"whether the script compiles itself: not compared: {side} does not say (an older fusionaudit made it; "
                "`fusionaudit check --update` writes it down)"
            )
    for lone, (has, lacks) in ((changes.only_old, sides), (changes.only_new, sides[::-1])):
        for name, totals in lone.items():
            ran = launched(totals.launches, totals.copies)
            lines.append(f"{name}: not compared: the pass never ran in {lacks} ({has}: {ran} per step)")
    return lines


def counted(changes: Changes) -> str:
    """How many groups are the same and how many regions are not."""
    return f"groups: {changes.same} the same, {number(len(changes.changes), 'region')} changed"


def wrapped(lines: Sequence[str], width: int) -> str:
    """The lines in at most ``width`` characters (longer words stay whole), what goes on further in."""
    out: list[str] = []
    for line in lines:
        text = line.lstrip(" ")
        indent = " " * (len(line) - len(text))
        out += textwrap.wrap(
            plain(text), width, initial_indent=indent, subsequent_indent=f"{indent}    ",
            break_long_words=False, break_on_hyphens=False,
        )  # fmt: skip
    return "\n".join(out)


def diff_lines(old: Lock, new: Lock, sides: tuple[str, str] = ("the first", "the second")) -> list[str]:
    """Two locks side by side, group by group, whatever their keys: for ``fusionaudit diff``."""
    changes = compare(old, new)
    return [opening(changes, new, sides), *figures(changes, old, new, sides), counted(changes), *listed(changes)]


def opening(changes: Changes, new: Lock, sides: tuple[str, str]) -> str:
    """What came out, between what, and whether the two were made for the same GPU and with the same versions."""
    count = len(changes.changes)
    what = f"{number(count, 'fusion region')} changed" if count else "No fusion group changed"
    if not changes.totals:
        what = "Nothing could be compared"
    between = f"{what} between {sides[0]} and {sides[1]}"
    key = new.key
    if changes.other_key:
        alone = ": a change may come from that alone" if count else ""
        return f"{between}. They differ in {'; '.join(changes.other_key)}{alone}."
    cores = "" if key.sm_count is None else f" ({key.sm_count} SMs)"
    versions = [f"{name} {v}" for name, v in (("torch", key.torch), ("Triton", key.triton)) if v != "unknown"]
    return f"{between}, both for {key.target}{cores}, {key.engine}, {' and '.join(versions) or 'versions not known'}."


_FEW = 8
"""Changes of unrelated programs that are listed all the same: a script of a few lines may be rewritten whole."""
UNRELATED = (
    "these two share hardly a source line and hardly a kernel: they are of two programs, or of one that was rewritten"
)


def of_two_programs(changes: Changes) -> bool:
    """Nothing of the two can be told apart from chance; a script of a few lines is compared all the same."""
    return changes.unrelated and len(changes.changes) > _FEW


def listed(changes: Changes, tell: Callable[[Change], str] | None = None) -> list[str]:
    """A line for each change; one line alone where two programs have nothing in common."""
    lines = [(tell or change_line)(change) for change in changes.changes]
    if not changes.unrelated:
        return lines
    return [UNRELATED, *([] if of_two_programs(changes) else lines)]


def change_line(change: Change, reason: str | None = None) -> str:
    """One change with its kind and its source line."""
    ref = change.refs[0] if change.refs else None
    where = f"{ref.file} {ref.function} `{ref.code}`: " if ref else ""
    return f"{change.kind}: {where}{describe(change, reason)}"
