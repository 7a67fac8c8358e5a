"""The versions of a finding's ops that are timed against each other: as recorded, and every right fused form."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from fusionaudit.errors import AuditError
from fusionaudit.tensors import Tensor
from fusionaudit.trace.schema import Op
from fusionaudit.verify.check import alike, compare
from fusionaudit.verify.epilogue import has_matmul, library_forms
from fusionaudit.verify.replay import Replay, build_replay, call, view
from fusionaudit.verify.timing import Run, capture_graph, first_line

WORDS = {
    "reference": "the reference kernel",
    "compile": "torch.compile",
    "template": "Inductor's matmul template",
}
"""Fused versions by name; others are library calls and named as such."""

TEMPLATE_OPTIONS = {
    "max_autotune_gemm": True,
    "max_autotune_gemm_backends": "TRITON",
    "max_autotune_conv_backends": "TRITON",
    "epilogue_fusion": True,
    "autotune_num_choices_displayed": 0,
}
"""Triton templates only: a library's kernel, which might be chosen otherwise, takes no epilogue."""

Tensors = Sequence[torch.Tensor]


@dataclass(kw_only=True)
class Versions:
    """Runnable versions, why others are missing, and what has to stay alive for them."""

    runs: dict[str, Run] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    kept: list[Any] = field(default_factory=list)


def words(version: str) -> str:
    """A fused version as a reader knows it."""
    if version in WORDS:
        return WORDS[version]
    library = "cuDNN's" if "cudnn" in version else "cuBLASLt's"
    return f"{version.removesuffix('.default')} ({library} epilogue)" if version.startswith("aten.") else version


def make_versions(
    ops: Sequence[Op],
    outputs: Sequence[Tensor],
    replay: Replay,
    buffers: dict[str, torch.Tensor],
    exact: Tensors | None,
    *,
    length: int = 1,
    random: bool = False,
) -> Versions:
    """Eager and each fused form whose result is right; ``exact`` is the ops' result in fp64, else eager's own.

    With ``random`` each call draws anew: results are compared by mean and root mean square alone.
    """
    found = Versions()
    inputs = tuple(view(buffers, t) for t in replay.inputs)
    found.runs["eager"] = lambda: replay.module(*inputs)
    eager = call(replay, buffers)
    wanted = eager if exact is None else exact

    def offer(name: str, make: Callable[[], Replay]) -> None:
        try:
            form = make()
            got = call(form, buffers)
            check = alike(got, eager) if random else compare(got, wanted, eager, length=length)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # whatever dynamo, Inductor and the libraries raise, the audit goes on
            found.missing[name] = f"{type(error).__name__}: {first_line(error)}"
            return
        if not check.ok:
            found.missing[name] = f"wrong result: {check.text}"
            return
        given = tuple(view(buffers, t) for t in form.inputs)
        found.runs[name] = lambda: form.module(*given)

    with torch.no_grad():
        offer("compile", lambda: compiled(replay))
        if has_matmul(ops):
            for name, folded in library_forms(ops, outputs):
                offer(name, lambda folded=folded: build_replay(folded, outputs, inputs[0].device))  # type: ignore[misc]
            if inputs[0].device.type == "cuda":
                offer("template", lambda: compiled(replay, TEMPLATE_OPTIONS))
        try:
            found.runs["cuda_graph"], kept = capture_graph(found.runs["eager"])
            found.kept.append(kept)
        except (RuntimeError, AuditError) as error:
            found.missing["cuda_graph"] = first_line(error)
    return found


def compiled(replay: Replay, options: dict[str, Any] | None = None) -> Replay:
    """The same ops under torch.compile."""
    module: Any = torch.compile(replay.module, dynamic=False, options=options)
    return Replay(module=module, inputs=replay.inputs, outputs=replay.outputs, mutated=replay.mutated)
