"""Verify the findings of an audit on this machine's GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Any

from fusionaudit.findings import Verification
from fusionaudit.report.document import Document
from fusionaudit.trace.oplog import op_from_json
from fusionaudit.trace.schema import Op

VERIFIABLE = ("FA101", "FA102", "FA103", "FA104", "FA105")
"""Rules whose findings are a group of ops that one kernel could do. FA201 is about the whole step."""

Progress = Callable[[str], None]


def verify_audit(document: Document, *, progress: Progress | None = None, launch: Any = None) -> Document:
    """A copy of the document in which each finding of VERIFIABLE has a ``verification``; refuted findings come last.

    So has FA201 of a measured eager pass: its step is captured in a CUDA graph.

    ``progress`` is told what is being measured. Raises AuditError without a GPU. Groups of ops with the same shapes
    and arguments are measured once. After an error that ends the GPU's context nothing more is run, which is said.
    """
    from fusionaudit.verify.launch import GpuLaunch
    from fusionaudit.verify.reference import verify_ops
    from fusionaudit.verify.step_graph import verify_step

    launch = GpuLaunch() if launch is None else launch
    passes = {p["name"]: [op_from_json(o) for o in p["ops"]] for p in document["passes"]}
    todo = [f for f in document["findings"] if f["rule"] in VERIFIABLE and f["op_ids"]]
    known: dict[tuple[Any, ...], Verification] = {}
    checks: dict[int, Verification] = {}
    lost = ""
    for done, finding in enumerate(todo):
        if progress is not None:
            progress(f"verify {done + 1} of {len(todo)}: {finding['rule']} {finding['message']}")
        ops = passes.get(finding["pass"], [])
        library = bool((finding.get("evidence") or {}).get("library"))
        found = []
        for ids in executions(finding):
            key = (library, *_shape_of(ops, ids))
            if key not in known and not lost:
                known[key] = verify_ops(ops, ids, launch, saved=not library)
                lost = _lost(launch, known[key])
            found.append(known.get(key) or _not_run(lost))
        check = combine(found)
        if (
            library
            and check.verdict == "refuted"
            and any(o.phase == "backward" for o in ops if o.id in finding["op_ids"])
        ):
            check = _unproved(check)
        checks[id(finding)] = check
    for finding in todo:
        inner = [checks[id(f)] for f in todo if _is_call_in(f, finding)]
        if inner:
            checks[id(finding)] = without(checks[id(finding)], inner)
    for finding in document["findings"]:
        if finding["rule"] == "FA201" and finding["basis"] == "modelled" and passes.get(finding["pass"]):
            ops, step_ns = passes[finding["pass"]], finding["evidence"]["step_ns"]
            check = _not_run(lost) if lost else verify_step(ops, step_ns, launch.device)
            lost = lost or _lost(launch, check)
            checks[id(finding)] = check
    told = {key: asdict(check) for key, check in checks.items()}
    findings = [{**f, "verification": told.get(id(f), f.get("verification"))} for f in document["findings"]]
    findings.sort(key=lambda f: (f["verification"] or {}).get("verdict") == "refuted")  # stable: ranks stay otherwise
    return {**document, "findings": findings}


def _lost(launch: Any, check: Verification) -> str:
    """What ended the GPU's context while this was verified (an illegal access); empty where it still works."""
    import torch

    from fusionaudit.verify.timing import first_line

    if check.verdict != "inconclusive" or launch.device.type != "cuda":
        return ""
    try:
        torch.cuda.synchronize(launch.device)
    except RuntimeError as error:
        return first_line(error)
    return ""


def _not_run(lost: str) -> Verification:
    reason = f"not run: the GPU's context ended before, with '{lost}'; verify again without the finding that says so"
    return Verification(verdict="inconclusive", reason=reason)


def _unproved(check: Verification) -> Verification:
    """A library's backward reads fewer tensors than the recorded ops saved: their replay cannot refute it."""
    reason = f"{check.reason}; the library's own backward reads less than these ops, and is not run here"
    return replace(check, verdict="inconclusive", reason=reason)


def executions(finding: dict[str, Any]) -> list[list[int]]:
    """The op ids of each time that the finding's ops run in a step: rules put equal chains of one line together."""
    ids, length = list(finding["op_ids"]), len(finding["ops"])
    times = (finding.get("evidence") or {}).get("times", 1)
    if times < 2 or length == 0 or len(ids) != times * length:
        return [ids]
    return [ids[i * length : (i + 1) * length] for i in range(times)]


def combine(found: list[Verification]) -> Verification:
    """One verification for several executions: times and savings added up, the verdict from the sum. Pure."""
    if len(found) == 1:
        return found[0]
    worst = next((v for v in found if v.verdict == "inconclusive"), None)

    def total(name: str) -> int | None:
        values = [getattr(v, name) for v in found]
        return None if None in values else sum(values)

    saving = total("saving_ns")
    verdict = found[0].verdict if worst is None else "inconclusive"
    if worst is None and len({v.verdict for v in found}) > 1:
        verdict = "confirmed" if (saving or 0) > 0 else "refuted"
    errors = [v.max_error for v in found if v.max_error is not None]
    return replace(
        worst or found[0],
        verdict=verdict,
        max_error=max(errors, default=None),
        details={**(worst or found[0]).details, "times_per_step": len(found)},
        baseline_ns=total("baseline_ns"),
        reference_ns=total("reference_ns"),
        compile_ns=total("compile_ns"),
        cuda_graph_ns=total("cuda_graph_ns"),
        saving_ns=saving,
    )


def _is_call_in(call: dict[str, Any], finding: dict[str, Any]) -> bool:
    """``call`` is a library's pattern among the ops of the other finding, which counts it as that call."""
    beside = (finding.get("evidence") or {}).get("beside") or ()
    return (call.get("evidence") or {}).get("library") in beside and set(call["op_ids"]) <= set(finding["op_ids"])


def without(check: Verification, inner: Sequence[Verification]) -> Verification:
    """A chain's verdict without what library calls among its ops save, which their own findings have. Pure."""
    savings = [v.saving_ns for v in inner]
    if check.verdict != "confirmed" or check.saving_ns is None:
        return check
    if None in savings:
        reason = f"{check.reason}; what the library's call saves of that is not known"
        return replace(check, verdict="inconclusive", saving_ns=None, reason=reason)
    saved = sum(max(0, s) for s in savings if s is not None)
    left = check.saving_ns - saved
    reason = f"{check.reason}; {saved / 1000:.1f} us of that the library's call saves"
    return replace(check, verdict="confirmed" if left > 0 else "refuted", saving_ns=left, reason=reason)


def _shape_of(ops: list[Op], op_ids: list[int]) -> tuple[Any, ...]:
    """What two executions have in common if measuring one is enough: ops, tensors up to renaming, what leaves."""
    wanted = set(op_ids)
    names: dict[Any, int] = {}
    out: list[Any] = []
    for op in (op for op in ops if op.id in wanted):
        tensors = [
            (names.setdefault(t.storage, len(names)), t.offset, t.shape, t.strides, t.dtype)
            for t in (*op.inputs, *op.outputs)
        ]
        out.append((op.name, tuple(tensors), op.mutated, repr(op.arguments)))
    later = {t.storage for op in ops if op.id not in wanted for t in op.inputs}
    return (*out, tuple(sorted(names[s] for s in later & set(names))))
