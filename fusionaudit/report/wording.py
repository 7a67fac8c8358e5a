"""How figures, names, places and verdicts are put into words: one place, so that every report says the same."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from typing import Any

from fusionaudit.figures import counted, scaled_bytes, scaled_ns
from fusionaudit.program import kernel_names
from fusionaudit.tensors import Tensor

Document = dict[str, Any]

UNKNOWN = "-"
_HIDDEN = {"Cc", "Cf", "Co", "Cs", "Zl", "Zp"}

ENGINES = {
    "nsys": "Nsight Systems",
    "kineto": "torch.profiler",
    "deviceless": "deviceless (no GPU: kernels predicted)",
    "import": "imported trace",
}


def format_bytes(value: float | None) -> str:
    """Bytes in decimal units (``3.22 GB``), as datasheets give bandwidth."""
    return UNKNOWN if value is None else scaled_bytes(value)


def format_ns(value: float | None) -> str:
    """A time (``754 us``)."""
    return UNKNOWN if value is None else scaled_ns(value)


def format_rate(value: float | None) -> str:
    """Bytes per second (``4.27 TB/s``)."""
    return UNKNOWN if value is None else scaled_bytes(value) + "/s"


def format_count(value: float | None) -> str:
    """A count with thousands separators."""
    return UNKNOWN if value is None else f"{value:,.0f}"


def format_share(value: float | None) -> str:
    """A share as percent (``89%``)."""
    return UNKNOWN if value is None else f"{value * 100:.0f}%"


def plain(text: object) -> str:
    """The text on one line with control and direction characters made visible: it can neither steer a terminal nor
    turn the line around."""
    return "".join(
        c if unicodedata.category(c) not in _HIDDEN else c.encode("unicode_escape").decode() for c in str(text)
    )


def plain_lines(text: str) -> str:
    """:func:`plain` that keeps lines and tabs."""
    return "\n".join(plain(line.expandtabs(4)) for line in text.split("\n"))


def kernel_label(name: str) -> str:
    """A kernel's name without what all C++ kernels share, see :mod:`fusionaudit.program.kernel_names`."""
    return kernel_names.kernel_label(plain(name))


def format_ratio(value: float | None) -> str:
    """How many times the first the second is (``0.33x``)."""
    if value is None:
        return ""
    return "<0.01x" if 0 < value < 0.01 else f"{value:,.0f}x" if value >= 99.5 else f"{value:.2f}x"


def shorten(text: object, width: int) -> str:
    """The text in at most ``width`` characters, cut in the middle: kernel names differ at both ends."""
    clean = plain(text)
    if len(clean) <= width:
        return clean
    if width < 4:
        return clean[: max(width, 0)]
    tail = (width - 2) // 2
    return clean[: width - 2 - tail] + ".." + clean[len(clean) - tail :]


def short_path(file: str) -> str:
    """The file's name with its folder where that tells files apart; home and temporary folders are left out."""
    return plain(file.rsplit("/", 1)[-1])


def place(location: dict[str, Any] | None) -> str:
    """``file.py:12``; empty where it is not known."""
    return "" if not location else f"{short_path(location['file'])}:{location['line']}"


def op_list(ops: Sequence[str], limit: int = 6) -> str:
    """``abs, sum``: op names without ``aten.`` and overload; equal neighbours folded, long lists cut."""
    names = [short_op(o) for o in ops]
    out: list[str] = []
    counts: list[int] = []
    for name in names:
        if out and out[-1] == name:
            counts[-1] += 1
        else:
            out.append(name)
            counts.append(1)
    words = [n if c == 1 else f"{n} x{c}" for n, c in zip(out, counts, strict=True)]
    if len(words) > limit:
        words = [*words[: limit - 1], f"+{len(words) - limit + 1} more"]
    return ", ".join(words)


def short_op(name: str) -> str:
    """``add`` for ``aten.add.Tensor``; namespaces other than aten and prims stay."""
    parts = name.split(".")
    if parts[0] in ("aten", "prims") and len(parts) > 1:
        return plain(parts[1])
    return plain(name.removesuffix(".default"))


_DTYPES = {
    "float64": "f64", "float32": "f32", "float16": "f16", "bfloat16": "bf16", "int64": "i64", "int32": "i32",
    "int16": "i16", "int8": "i8", "uint8": "u8", "bool": "b8", "float8_e4m3fn": "f8e4m3", "float8_e5m2": "f8e5m2",
}  # fmt: skip


def tensor_text(shape: Sequence[int], dtype: str) -> str:
    """``bf16[8,1024]``, as Inductor writes it."""
    short = "?" if dtype == "unknown" else _DTYPES.get(dtype, plain(dtype))
    return f"{short}[{','.join(str(s) for s in shape)}]"


def tensors_text(tensors: Sequence[dict[str, Any]], limit: int = 4) -> str:
    """Several tensors, equal ones folded (``2x f32[64]``)."""
    counts: dict[str, int] = {}
    for t in tensors:
        text = tensor_text(t["shape"], t["dtype"])
        counts[text] = counts.get(text, 0) + 1
    words = [t if n == 1 else f"{n}x {t}" for t, n in counts.items()]
    return " ".join([*words[:limit], f"+{len(words) - limit}"] if len(words) > limit else words)


def flow_text(reads: Sequence[dict[str, Any]], writes: Sequence[dict[str, Any]], limit: int) -> str:
    """``f32[64] f32[8] -> f32[64]``; empty where no tensor is known."""
    left, right = tensors_text(reads, limit), tensors_text(writes, limit)
    return f"{left} -> {right}".strip() if right else left


def basis_note(basis: str | None) -> str:
    """`` (modelled)``; nothing where there is no basis."""
    return f" ({basis})" if basis else ""


def finding_worth(finding: dict[str, Any]) -> str:
    """``2.15 GB, 503 us (modelled) per step, 66% of it``; empty where nothing honest can be said."""
    words = []
    if finding.get("avoidable_bytes"):
        words.append(format_bytes(finding["avoidable_bytes"]))
    if finding.get("saving_ns"):
        words.append(format_ns(finding["saving_ns"]) + basis_note(finding.get("basis")))
    if not words:
        return ""
    share = (finding.get("evidence") or {}).get("share_of_step")
    part = f", {share:.0%} of it" if share is not None and finding.get("saving_ns") and share >= 0.005 else ""
    return ", ".join(words) + " per step" + part


def together_worth(findings: Sequence[dict[str, Any]]) -> str:
    """What findings save together in the pass where they save most, as :func:`finding_worth` says it of one; findings
    that share a kernel count once, by the larger. What leaves nothing to do saves nothing."""
    best: dict[str, Any] = {}
    for name in dict.fromkeys(f["pass"] for f in findings):
        mine = [f for f in findings if f["pass"] == name and f["kernels"] and not f["remedy"].startswith("nothing to")]
        sums: dict[str, Any] = {"avoidable_bytes": 0, "saving_ns": 0, "basis": None}
        share, taken = 0.0, set[int]()
        for f in sorted(mine, key=lambda f: (-(f["saving_ns"] or 0), -(f["avoidable_bytes"] or 0))):
            if (f["saving_ns"] or f["avoidable_bytes"]) and taken.isdisjoint(f["kernels"]):
                taken.update(f["kernels"])
                sums["avoidable_bytes"] += f["avoidable_bytes"] or 0
                sums["saving_ns"] += f["saving_ns"] or 0
                sums["basis"] = sums["basis"] or f["basis"]
                share += f["evidence"].get("share_of_step") or 0.0
        sums["evidence"] = {"share_of_step": share}
        best = max(best, sums, key=lambda s: (s.get("saving_ns", 0), s.get("avoidable_bytes", 0)))
    return finding_worth(best)


def verification_text(check: dict[str, Any] | None) -> str:
    """One line on what a run on the GPU made of a finding."""
    if not check:
        return ""
    times = [
        f"{label} {format_ns(check[key])}"
        for key, label in (
            ("baseline_ns", "now"), ("reference_ns", "fused reference"), ("compile_ns", "torch.compile"),
            ("cuda_compute_ns", "cuda.compute"), ("cuda_graph_ns", "CUDA graph"),
        )
        if check.get(key) is not None
    ]  # fmt: skip
    text = str(check["verdict"]) + (f": {plain(check['reason'])}" if check.get("reason") else "")
    return text + (f" ({', '.join(times)})" if times else "")


def refuted(finding: dict[str, Any]) -> bool:
    """A run on the GPU showed that the finding is worth nothing."""
    check = finding.get("verification") or {}
    return bool(check.get("verdict") == "refuted")


def find_pass(document: Document, name: str) -> dict[str, Any] | None:
    """The pass of that name."""
    return next((p for p in document["passes"] if p["name"] == name), None)


def verdict(document: Document) -> tuple[str, str]:
    """(tone, sentence): tone is ``blocked``, ``error``, ``warning``, ``info`` or ``ok``."""
    tone, sentence = _verdict(document)
    suppressed = sum(n["kind"] == "suppressed" for n in document["notes"])
    return tone, f"{sentence}; {suppressed} suppressed" if suppressed else sentence


def _verdict(document: Document) -> tuple[str, str]:
    blocking = [n for n in document["notes"] if n.get("blocks")]
    if blocking:
        remedy = plain(blocking[0].get("remedy") or "")
        why = plain(blocking[0]["text"]).removeprefix("cannot judge: ")
        return "blocked", f"Cannot judge: {why}" + (f"; to do: {remedy}" if remedy else "")
    if not any(p["kernels"] for p in document["passes"]):
        return "blocked", "Nothing to judge: no kernel was recorded"
    open_findings = [f for f in document["findings"] if not refuted(f)]
    serious = [f for f in open_findings if f["severity"] in ("warning", "error")]
    if serious:
        best = max(serious, key=lambda f: (f.get("saving_ns") or 0, f.get("avoidable_bytes") or 0))
        tone = "error" if any(f["severity"] == "error" for f in serious) else "warning"
        count = counted(len(serious), "finding")
        text = f"{count} worth acting on"
        worth = finding_worth(best)
        where = place(best.get("location"))
        top = best["rule"] + (f" at {where}" if where else "") + (f", worth {worth}" if worth else "")
        return tone, f"{text}; {'it is' if len(serious) == 1 else 'the largest is'} {top}"
    if open_findings:
        count = counted(len(open_findings), "remark")
        worth = together_worth(open_findings)
        if not worth or len(open_findings) == 1:
            return "info", f"No missed fusion worth acting on; {count}"
        return "info", f"{count}, none worth acting on alone; together they save {worth}"
    return "ok", "No missed fusion found"


def target_line(document: Document) -> str:
    """Engine, GPU and the basis of the figures in one line."""
    if document["engine"] is None:
        return "no audit to show"
    target = document["target"]
    words = [ENGINES.get(document["engine"], plain(document["engine"]))]
    if target.get("name"):
        name = plain(target["name"])
        if target.get("peak_bandwidth_bytes_per_s"):
            name += f", {format_rate(target['peak_bandwidth_bytes_per_s'])} peak"
        if target.get("sm_count"):
            name += f", {target['sm_count']} SMs"
        words.append(name)
    else:
        words.append("GPU not known")
    times = sorted({p["per_step"].get("time_basis") for p in document["passes"]} - {None})
    words.append(f"times {' and '.join(times)}" if times else "no times")
    words.append("bytes modelled")
    return "; ".join(words)


def tensor_bytes(tensor: dict[str, Any]) -> int | None:
    """Bytes of the distinct elements of a tensor of the document."""
    return Tensor.from_json(tensor).nbytes
