"""A declared fused kernel did not run.

What: the program says with ``fusionaudit.expect`` what a block must come to (kernels, bytes, ops that share a kernel, a
kernel by name), and the pass shows something else.

Why it costs: a fusion that a team counts on goes away without a word (another dtype, a new torch, a graph break); vLLM
lost 276 fused kernels that way before anybody saw it (vllm 52190).

How it is measured: kernels of the block are those launched inside its region, and those of compiled graphs whose source
line lies in the block. Per entry of the block, in the compiled pass where there is one, else in the eager one.

When it is wrong: backward kernels are not the block's; a fused kernel with an op of the block counts whole, also what
it does for other lines. Where bytes are not known, or compiled code has no kernel of the block, a warning says so.

What to do: see the reason that Inductor gives for the block's lines (FA111, FA112, FA114), or correct the declaration.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from fusionaudit.config import Config
from fusionaudit.figures import counted
from fusionaudit.findings import Finding, Location
from fusionaudit.program.expectation import Expectation, expectations
from fusionaudit.program.model import Kernel, Pass, Program, uncounted

CODE = "FA116"
TITLE = "a declared fused kernel did not run"


def _declared(program: Program) -> dict[Expectation, int]:
    """Expectations of all passes with the largest number of entries per step that a pass shows."""
    out: dict[Expectation, int] = {}
    for p in program.passes:
        entries: dict[Expectation, set[int]] = {}
        for region in (*(o.region for o in p.ops), *(k.region for k in p.kernels)):
            for expectation, entry in expectations(region):
                entries.setdefault(expectation, set()).add(entry)
        for expectation, numbers in entries.items():
            out[expectation] = max(out.get(expectation, 0), len(numbers))
    return out


def _entries(p: Pass, expectation: Expectation, count: int) -> list[list[Kernel]]:
    """The block's kernels, one list an entry."""
    entered: dict[int, list[Kernel]] = {}
    by_line: list[Kernel] = []
    lines = {(g.id, c.index): c.locations for g in p.log.graphs for c in g.calls}
    for kernel in p.kernels:
        entry = next((n for declared, n in expectations(kernel.region) if declared == expectation), None)
        if entry is not None:
            entered.setdefault(entry, []).append(kernel)
            continue
        if kernel.graph and kernel.phase == "forward":
            # A fused kernel has ops of several lines; the one that it is shown at may be outside of the block.
            places = [kernel.location, *lines.get((kernel.graph, kernel.call or 0), ())]
            if any(place is not None and _inside(place, expectation) for place in places):
                by_line.append(kernel)
    if by_line:
        each = math.ceil(len(by_line) / max(count, 1))
        parts = [by_line[i : i + each] for i in range(0, len(by_line), each)]
        return [*entered.values(), *parts]
    return list(entered.values())


def _inside(place: Location, expectation: Expectation) -> bool:
    return place.file == expectation.file and expectation.first_line <= place.line <= expectation.last_line


def _unknown(expectation: Expectation, entries: Sequence[Sequence[Kernel]], eager: Pass | None) -> str:
    """Why a declaration that nothing speaks against cannot be called kept; empty where it can."""
    if expectation.max_bytes is not None:
        missing = sum(uncounted(kernels) for kernels in entries)
        if missing:
            return f"the bytes of {counted(missing, 'kernel')} are not known"
    ran_eagerly = eager is not None and any(_entries(eager, expectation, 1))
    return "" if any(entries) or not ran_eagerly else "no kernel of its lines is in the compiled code"


def _base(name: str) -> str:
    """``aten.add`` for ``add``, ``aten.add.Tensor`` and the in-place ``aten.add_.Tensor``."""
    parts = name.split(".")
    base = ".".join(parts[:2]) if len(parts) > 1 else f"aten.{name}"
    return base if base.endswith("__") else base.removesuffix("_")


def _failures(expectation: Expectation, entries: Sequence[Sequence[Kernel]]) -> list[str]:
    """What is not as declared, in words."""
    out = []
    everything = [k for kernels in entries for k in kernels]
    most = max((len(kernels) for kernels in entries), default=0)
    if expectation.max_kernels is not None and most > expectation.max_kernels:
        out.append(f"{most} kernels ran, declared at most {expectation.max_kernels}")
    if expectation.max_bytes is not None:
        sizes = [[k.global_bytes for k in kernels] for kernels in entries]
        totals = [sum(b for b in row if b is not None) for row in sizes]
        if max(totals, default=0) > expectation.max_bytes:
            out.append(f"{max(totals)} bytes moved, declared at most {expectation.max_bytes}")
    wanted = {_base(op) for op in expectation.fused}
    if wanted and not any(wanted <= {_base(op) for op in k.op_names} for k in everything):
        holders = sum(bool(wanted & {_base(op) for op in k.op_names}) for k in everything)
        where = "none of them ran" if not holders else "one kernel holds a part of them"
        where = f"they are spread over {holders} kernels" if holders > 1 else where
        out.append(f"{' and '.join(sorted(wanted))} do not share a kernel ({where})")
    if expectation.kernel is not None and not any(expectation.kernel in k.name for k in everything):
        out.append(f"no kernel named {expectation.kernel!r} ran")
    return out


def check(program: Program, config: Config) -> Iterator[Finding]:
    """One finding for each declaration that does not hold."""
    p = program.get("compiled") or program.get("eager") or program.get("imported")
    if p is None:
        return
    for expectation, count in _declared(program).items():
        entries = _entries(p, expectation, count)
        failures = _failures(expectation, entries)
        unknown = "" if failures else _unknown(expectation, entries, program.get("eager"))
        if not failures and not unknown:
            continue
        kernels = [k for part in entries for k in part]
        yield Finding(
            rule=CODE,
            pass_name=p.name,
            severity="error" if failures else "warning",
            message=f"declared fusion did not happen: {'; '.join(failures)}"
            if failures
            else f"declared fusion cannot be checked: {unknown}",
            ops=expectation.fused or tuple(dict.fromkeys(op for k in kernels for op in k.op_names)),
            op_ids=tuple(i for k in kernels for i in k.ops),
            kernel_ids=tuple(k.id for k in kernels),
            location=Location(file=expectation.file, line=expectation.first_line) if expectation.file else None,
            remedy="see what keeps the block's ops apart (FA111, FA112, FA114), or correct the declaration",
            evidence={"entries_per_step": len(entries), "kernels_per_entry": [len(e) for e in entries[:20]]},
            key=",".join(str(v) for v in (expectation.max_kernels, expectation.max_bytes, expectation.kernel)),
        )
