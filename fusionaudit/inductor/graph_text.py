"""Reads the ATen graphs that ``post_grad_graphs`` (and ``aot_graphs``) print: nodes, ops, shapes and source lines."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from fusionaudit.findings import Location
from fusionaudit.inductor.fragments import short_op, static_tensor
from fusionaudit.inductor.model import Node

_FILE = re.compile(r"^\s*# File: (?P<file>.+?):(?P<line>\d+) in (?P<function>[^,]+?)(?:, code: .*)?$")
_NODE = re.compile(r"^\s*(?P<name>\w+)(?:: \"(?P<type>[^\"]*)\")? = (?P<target>[\w.]+)\((?P<rest>.*)$")
_GETITEM = re.compile(r"^\s*(?P<name>\w+)(?:: \"(?P<type>[^\"]*)\")? = (?P<source>\w+)\[(?P<position>\d+)\]")
_SIGNATURE = re.compile(r"^\s*def forward\(self, (?P<inputs>.*)\):")
_INPUT = re.compile(r"(?P<name>\w+)(?:: \"(?P<type>[^\"]*)\")?(?:, |$)")
_WORD = re.compile(r"\b([A-Za-z_]\w*)\b")
_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>\S+)')
_OWN = "/fusionaudit/capture/"
"""What runs around the user's program in a capture; Dynamo names frames of it as it does any other."""
_LIBRARY = ("/site-packages/", "/dist-packages/", "/torch/_", "<frozen", "<eval_with_key>", "<string>", _OWN)


def is_user_file(file: str) -> bool:
    """The file is the user's: not installed, not torch's own, not generated."""
    return not any(part in file for part in _LIBRARY) and not file.startswith("<")


def innermost_user_frame(text: str) -> Location | None:
    """The last frame of a traceback text that is in the user's code; without one, the last frame."""
    frames = [
        Location(file=m["file"], line=int(m["line"]), function=m["function"].rstrip("',"))
        for m in _FRAME.finditer(text)
    ]
    own = [f for f in frames if is_user_file(f.file)]
    return own[-1] if own else (frames[-1] if frames else None)


def parse_graph(lines: Iterable[str]) -> tuple[Node, ...]:
    """The nodes of one printed graph. A ``# File:`` comment holds for all nodes below it up to the next one."""
    nodes: dict[str, Node] = {}
    given: set[str] = set()
    location: Location | None = None
    for line in lines:
        if "# File:" in line:
            found = _FILE.match(line)
            if found and _OWN in found["file"]:
                location = None
            elif found:
                location = Location(file=found["file"], line=int(found["line"]), function=found["function"].strip())
            continue
        if line.lstrip().startswith("#"):
            location = None if "No stacktrace found" in line else location
            continue
        signature = _SIGNATURE.match(line)
        if signature:
            # A backward's inputs have the names that the forward gave them; sizes are no values.
            given = {
                m["name"] for m in _INPUT.finditer(signature["inputs"]) if not (m["type"] or "").startswith("Sym(")
            }
            continue
        found = _GETITEM.match(line)
        if found and found["source"] in nodes:
            nodes[found["name"]] = Node(
                name=found["name"],
                op="getitem",
                location=location,
                inputs=(found["source"],),
                tensor=static_tensor(found["type"], found["name"]),
            )
            continue
        found = _NODE.match(line)
        if found is None or "." not in found["target"]:
            continue
        rest = found["rest"].split(");  ")[0]
        nodes[found["name"]] = Node(
            name=found["name"],
            op=short_op(found["target"]),
            location=location,
            inputs=tuple(dict.fromkeys(w for w in _WORD.findall(rest) if w in given or _is_value(w, nodes))),
            tensor=static_tensor(found["type"], found["name"]),
        )
    return tuple(nodes.values())


def _is_value(word: str, nodes: dict[str, Node]) -> bool:
    return word in nodes or re.fullmatch(r"(arg|primals_|tangents_|getitem_?)\d*(_\d+)?", word) is not None


def locations(nodes: Sequence[Node], names: Iterable[str]) -> tuple[Location, ...]:
    """The distinct source lines of the named nodes, in graph order."""
    wanted = set(names)
    return tuple(dict.fromkeys(n.location for n in nodes if n.name in wanted and n.location is not None))
