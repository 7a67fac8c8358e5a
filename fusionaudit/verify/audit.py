"""Verify the findings of an audit on this machine's GPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

from fusionaudit.errors import AuditError
from fusionaudit.findings import Verification
from fusionaudit.report.document import Document
from fusionaudit.tensors import Tensor
from fusionaudit.trace.schema import Op

VERIFIABLE = ("FA101", "FA102", "FA103", "FA104", "FA105")
"""Rules whose findings are a group of ops that one kernel could do."""

Progress = Callable[[int, int, str], None]


def op_from_json(data: dict[str, Any]) -> Op:
    """An op of a document's pass."""
    return Op(
        id=data["id"],
        name=data["name"],
        inputs=tuple(Tensor.from_json(t) for t in data["inputs"]),
        outputs=tuple(Tensor.from_json(t) for t in data["outputs"]),
        mutated=tuple(data.get("mutated") or ()),
        arguments=tuple(data.get("arguments") or ()),
        phase=data.get("phase") or "forward",
        region=data.get("region"),
    )


def verify_audit(document: Document, *, progress: Progress | None = None, launch: Any = None) -> Document:
    """A copy of the document in which each finding of VERIFIABLE has a ``verification``; findings are ranked anew:
    refuted ones come last. ``progress(done, total, message)`` is called before each. Raises AuditError without a GPU.

    Findings with the same ops, shapes and arguments are measured once.
    """
    from fusionaudit.verify.launch import GpuLaunch
    from fusionaudit.verify.reference import verify_ops

    launch = GpuLaunch() if launch is None else launch
    passes = {p["name"]: [op_from_json(o) for o in p["ops"]] for p in document["passes"]}
    todo = [f for f in document["findings"] if f["rule"] in VERIFIABLE and f["op_ids"]]
    known: dict[tuple[Any, ...], Verification] = {}
    checks: dict[int, dict[str, Any]] = {}
    for done, finding in enumerate(todo):
        if progress is not None:
            progress(done, len(todo), finding["message"])
        ops = passes.get(finding["pass"], [])
        key = _shape_of(ops, finding["op_ids"])
        if key not in known:
            try:
                known[key] = verify_ops(ops, finding["op_ids"], launch)
            except AuditError as error:
                known[key] = Verification(verdict="inconclusive", reason=str(error))
        checks[id(finding)] = asdict(_per_step(known[key], finding))
    findings = [{**f, "verification": checks.get(id(f), f.get("verification"))} for f in document["findings"]]
    findings.sort(key=lambda f: (f["verification"] or {}).get("verdict") == "refuted")  # stable: ranks stay otherwise
    return {**document, "findings": findings}


def _shape_of(ops: list[Op], op_ids: list[int]) -> tuple[Any, ...]:
    wanted = set(op_ids)
    chosen = [op for op in ops if op.id in wanted]
    names: dict[Any, int] = {}
    out: list[Any] = []
    for op in chosen:
        tensors = [
            (names.setdefault(t.storage, len(names)), t.offset, t.shape, t.strides, t.dtype)
            for t in (*op.inputs, *op.outputs)
        ]
        out.append((op.name, tuple(tensors), op.mutated, repr(op.arguments)))
    later = {t.storage for op in ops if op.id not in wanted for t in op.inputs}
    return (*out, tuple(sorted(names[s] for s in later & set(names))))


def _per_step(check: Verification, finding: dict[str, Any]) -> Verification:
    """The saving for all executions in a step: a finding that stands for several says so in its evidence."""
    times = finding.get("evidence", {}).get("times_per_step", 1)
    if check.saving_ns is None or times == 1:
        return check
    return replace(check, saving_ns=check.saving_ns * times, details={**check.details, "times_per_step": times})
