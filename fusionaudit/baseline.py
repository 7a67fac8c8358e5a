"""``fusion.lock``: the text form of a :class:`Lock`. Made to be read in review.

A header, then a section per graph or phase, then one group a line::

    [compiled forward block.py Block.forward]
    inputs bf16[8,1024,1024], bf16[1024] x2
    aten.gelu + aten.add | bf16[8,1024] x2 -> bf16[8,1024] | 1 launch | 49152 bytes | block.py:forward "return x + y"

The last line counts the groups, so a file that was cut off is told from a whole one.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from urllib.parse import quote, unquote

from fusionaudit.compiled_by import AUDIT, SCRIPT
from fusionaudit.errors import AuditError
from fusionaudit.grouping import groups_of, key_of, lock_of
from fusionaudit.groups import LOCK_FORMAT, MOST_TENSORS, Group, Key, Lock, Ref, Section
from fusionaudit.report.document import Document

__all__ = [
    "Group",
    "Key",
    "Lock",
    "Ref",
    "Section",
    "format_lock",
    "groups_of",
    "key_of",
    "lock_of",
    "read_lock",
    "write_lock",
]

_HEAD = "# fusionaudit lock: which ops share a kernel. Review changes like code; rewrite with `fusionaudit baseline`."
_REMEDY = "make it again with `fusionaudit baseline`"
_CONFLICT = re.compile(r"^(<<<<<<<|=======|>>>>>>>|\|\|\|\|\|\|\|)( |$)", re.M)
_SECTION = re.compile(r"^\[(\S+) (\S+)( graph(?: #(\S+))?)?(?: in (.+))?\]$")
_REF = re.compile(r'(\S+?):(\S+) ("(?:[^"\\]|\\.)*")(?: & |$)')
_RUN = re.compile(r"(.+?)(?: x([0-9]+))?")
_TENSOR = re.compile(r"\S+\[[0-9?,]*\](?:\([0-9,-]*\))?|[0-9]+ tensors of [0-9]+ elements #[0-9a-f]{8}")
_TARGET = re.compile(r"(\S+)(?: ([0-9]{1,9}) SMs)?")
_CUDA_GRAPH = "asks for a CUDA graph"
_MOST_DIGITS = 18
_MOST_LAUNCHES = 10_000_000
"""Of a group in a step: at 2 us a launch that is a step of 20 s of nothing else."""
_COUNTED = {False: ("launch", "launches"), True: ("copy", "copies")}


def _runs(items: Sequence[str]) -> str:
    """``a, b x3``: neighbours that are equal are counted."""
    counted = ((item, len(list(same))) for item, same in itertools.groupby(items))
    return ", ".join(item if n == 1 else f"{item} x{n}" for item, n in counted)


def _number(text: str) -> int:
    """A count that a lock may hold. ``int`` alone takes signs, underscores, digits of any script and of any length."""
    if not (text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS):
        raise ValueError(f"not a count: {text[:20]!r}")
    return int(text)


def _launches(text: str) -> int:
    count = _number(text)
    if count > _MOST_LAUNCHES:
        raise ValueError(f"a step launches a group at most {_MOST_LAUNCHES:,} times")
    return count


def _unruns(text: str) -> tuple[str, ...]:
    out: list[str] = []
    for part in re.split(r", (?![^\[(]*[\])])", text) if text else []:
        match = _RUN.fullmatch(part)
        if match is None or not _TENSOR.fullmatch(match[1]):
            raise ValueError(f"not a tensor: {part[:40]!r}")
        repeats = _number(match[2] or "1")
        if not 1 <= repeats <= MOST_TENSORS - len(out):
            raise ValueError(f"a line holds 1 to {MOST_TENSORS} tensors")
        out += [match[1]] * repeats
    return tuple(out)


def _file(name: str) -> str:
    """A file's or function's name without what ends it on a line: blanks, colons and all that is not printed."""
    return "".join(c if c.isprintable() and c not in " :%" else quote(c, safe="", errors="surrogatepass") for c in name)


def _unfile(name: str) -> str:
    return unquote(name, errors="surrogatepass")


def _section_line(s: Section) -> str:
    graph = "" if not s.graph else " graph" if s.number == 1 else f" graph #{s.number}"
    return f"[{s.pass_name} {s.kind}{graph}{' in ' + s.place if s.place else ''}]"


def _refs(refs: Iterable[Ref]) -> str:
    return " & ".join(f"{_file(r.file)}:{_file(r.function)} {_quoted(r.code)}" for r in refs)


def _quoted(code: str) -> str:
    """As a JSON string that any UTF-8 file can hold: halves of surrogate pairs are escaped."""
    return json.dumps(code, ensure_ascii=False).encode("utf-8", "backslashreplace").decode()


def group_line(group: Group) -> str:
    """The line of one group."""
    times = f" x{group.launches}" if group.launches > 1 else ""
    name = group.label if group.what == "kernel" else f"{group.what}: {group.label}{times}"
    if group.what == "kernel":
        tensors = f"{_runs(group.reads)} -> {_runs(group.writes)}".strip()
        size = "? bytes" if group.bytes is None else f"{group.bytes} bytes"
        one, more = _COUNTED[group.copy]
        count = f"{group.launches} {one if group.launches == 1 else more}"
        return f"{name} | {tensors} | {count} | {size} | {_refs(group.refs)}".rstrip()
    return f"{name} | {_refs(group.refs)}".rstrip()


def format_lock(lock: Lock) -> str:
    """The text of a lock; the same lock gives the same text."""
    key = lock.key
    sms = "" if key.sm_count is None else f" {key.sm_count} SMs"
    lines = [
        _HEAD,
        f"format {lock.format}",
        f"tool fusionaudit {lock.tool or 'unknown'}",
        f"target {key.target}{sms}",
        f"torch {key.torch}",
        f"triton {key.triton}",
        f"engine {key.engine}",
        *([f"compiled-by {lock.compiled_by}"] if lock.compiled_by else []),
    ]
    for section, groups in itertools.groupby(lock.groups, key=lambda g: g.section):
        lines += ["", _section_line(section)]
        if section.inputs:
            lines.append(f"inputs {_runs(section.inputs)}")
        if section.dynamic:
            lines.append(f"dynamic {section.dynamic}")
        if section.cuda_graph:
            lines.append(_CUDA_GRAPH)
        lines += [group_line(g) for g in groups]
    return "\n".join([*lines, "", f"end {len(lock.groups)} groups", ""])


def write_lock(document: Document) -> str:
    """The lock text of an audit. AuditError where the audit cannot support one (it has a blocking note)."""
    blocking(document)
    lock = lock_of(document)
    if not lock.groups:
        raise AuditError("the audit holds no kernel: there is nothing to lock", remedy="run the script's steady step")
    return format_lock(lock)


def blocking(document: Document) -> None:
    """AuditError (exit 2) with the first reason why this audit cannot support a verdict."""
    for note in document.get("notes") or []:
        if note.get("blocks"):
            raise AuditError(f"cannot judge: {note['text']}", remedy=note.get("remedy") or "")


def _group(text: str, section: Section) -> Group:
    what, name = "kernel", text.split(" | ", 1)[0]
    head = re.match(r"(break|sync|skip|recompile): (.+?)(?: x([0-9]+))?(?: \|)?$", name)
    rest = text[len(name) + 3 :]
    if head:
        what, name = head[1], head[2]
        fields, tail = ["", f"{(head[3] or '1') if what == 'sync' else 0} launches", "0 bytes"], rest
    else:
        *fields, tail = rest.split(" | ", 3) if rest.count(" | ") >= 3 else [*rest.rstrip(" |").split(" | "), ""]
    if len(fields) != 3:
        raise ValueError("fields are missing")
    reads, arrow, writes = fields[0].partition("->")
    if not arrow and what == "kernel":
        raise ValueError("no tensors")
    launches, size = fields[1].split(" "), fields[2].split(" ")
    copy = launches[1] in _COUNTED[True]
    if not (copy or launches[1] in _COUNTED[False]) or size[1] != "bytes":
        raise ValueError("no launches or bytes")
    refs = tuple(Ref(file=_unfile(m[1]), function=_unfile(m[2]), code=json.loads(m[3])) for m in _REF.finditer(tail))
    if tail and not refs:
        raise ValueError("a source line cannot be read")
    return Group(
        section=section,
        what=what,
        ops=() if name == "(no aten op)" else tuple(name.split(" + ")),
        reads=_unruns(reads.strip()),
        writes=_unruns(writes.strip()),
        refs=refs,
        launches=_launches(launches[0]),
        copy=copy,
        bytes=None if size[0] == "?" else _number(size[0]),
    )


def _header(lines: Iterator[tuple[int, str]], name: str) -> dict[str, str]:
    """The lines before the first section, by first word."""
    out: dict[str, str] = {}
    for _, line in lines:
        if not line.strip():
            break
        if not line.startswith("#"):
            word, _, value = line.partition(" ")
            if word in out:
                raise AuditError(f"{name}: the lock has two {word[:20]} lines", remedy=_REMEDY)
            out[word] = value.strip()
    if not re.fullmatch("[1-9][0-9]*", out.get("format", "")):
        raise AuditError(f"{name}: not a fusionaudit lock (no format line)", remedy=_REMEDY)
    if out["format"] != str(LOCK_FORMAT):
        raise AuditError(
            f"{name}: lock format {out['format'][:20]} is newer than this fusionaudit reads ({LOCK_FORMAT})",
            remedy="upgrade fusionaudit",
        )
    if out.get("compiled-by", SCRIPT) not in (SCRIPT, AUDIT):
        raise AuditError(f"{name}: cannot read the compiled-by line of the lock", remedy=_REMEDY)
    missing = [w for w in ("target", "torch", "triton", "engine") if not out.get(w)]
    if missing:
        raise AuditError(f"{name}: the lock is cut off (no {missing[0]} line)", remedy=_REMEDY)
    return out


def _key(header: dict[str, str], name: str) -> Key:
    match = _TARGET.fullmatch(header["target"])
    if match is None:
        raise AuditError(f"{name}: cannot read the target line of the lock", remedy=_REMEDY)
    sm_count = None if match[2] is None else int(match[2])
    return Key(
        target=match[1], sm_count=sm_count, torch=header["torch"], triton=header["triton"], engine=header["engine"]
    )


def read_lock(text: str, *, name: str = "fusion.lock") -> Lock:
    """The lock from its text.

    AuditError (exit 2) where it is empty, holds merge conflict marks, is cut off, was edited by hand into something
    unreadable, or has a later format.
    """
    if not text.strip():
        raise AuditError(f"{name}: the lock is empty", remedy=_REMEDY)
    conflict = _CONFLICT.search(text)
    if conflict:
        at = text.count("\n", 0, conflict.start()) + 1
        raise AuditError(f"{name}:{at}: merge conflict marks in the lock", remedy=f"resolve the merge, then {_REMEDY}")
    lines = iter(enumerate((line.rstrip("\r") for line in text.split("\n")), start=1))
    header = _header(lines, name)
    key = _key(header, name)
    if not re.search(r"^end ", text, re.M):
        raise AuditError(f"{name}: the lock is cut off (no end line)", remedy=_REMEDY)
    groups: list[Group] = []
    section: Section | None = None
    ended: int | None = None
    for number, line in lines:
        if not line.strip() or line.startswith("#"):
            continue
        try:
            if ended is not None:
                raise ValueError("it comes after the end line")
            if line.startswith("end "):
                ended = _number(line.split(" ")[1])
            elif match := _SECTION.match(line):
                section = Section(
                    pass_name=match[1],
                    kind=match[2],
                    graph=bool(match[3]),
                    number=_number(match[4] or "1"),
                    place=match[5] or "",
                )
            elif section is None:
                raise ValueError("a group before the first section")
            elif line.startswith("inputs "):
                section = Section(**{**section.__dict__, "inputs": _unruns(line[7:])})
            elif line.startswith("dynamic "):
                section = Section(**{**section.__dict__, "dynamic": _number(line[8:])})
            elif line == _CUDA_GRAPH:
                section = Section(**{**section.__dict__, "cuda_graph": True})
            else:
                groups.append(_group(line, section))
        except (ValueError, IndexError) as error:
            raise AuditError(f"{name}:{number}: cannot read this line of the lock ({error})", remedy=_REMEDY) from None
    if ended != len(groups):
        raise AuditError(f"{name}: the lock should hold {ended} groups and holds {len(groups)}", remedy=_REMEDY)
    return Lock(
        key=key, groups=tuple(groups), tool=header.get("tool", "").replace("fusionaudit ", ""),
        format=int(header["format"]), compiled_by=header.get("compiled-by", ""),
    )  # fmt: skip
