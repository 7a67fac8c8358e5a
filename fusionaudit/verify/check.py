"""Is a result right? Errors against a wider reference, with tolerances from dtype and length."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

EXACT_MISMATCH = 1e-3
"""Share of integer or boolean elements that may differ: comparisons of values that are equal before rounding."""


@dataclass(frozen=True, kw_only=True)
class Check:
    """``error`` is the worst output's; ``text`` says what is wrong where ``ok`` is false."""

    ok: bool
    error: float
    tolerance: float
    text: str = ""


def errors(out: torch.Tensor, reference: torch.Tensor) -> tuple[float, float]:
    """(relative error by norm, largest error of an element over |reference| + its rms); NaN where one has NaN."""
    a, b = out.double().flatten(), reference.double().flatten()
    same = (a == b) | (a.isnan() & b.isnan())
    a, b = a.masked_fill(same, 0.0), b.masked_fill(same & ~b.isfinite(), 0.0)
    difference = torch.where(same, torch.zeros((), dtype=a.dtype, device=a.device), a - b)
    norm = float(torch.linalg.vector_norm(b))
    if norm == 0.0 or b.numel() == 0:
        return float(torch.linalg.vector_norm(difference)), float(difference.abs().max()) if b.numel() else 0.0
    rms = norm / math.sqrt(b.numel())
    return float(torch.linalg.vector_norm(difference)) / norm, float((difference.abs() / (b.abs() + rms)).max())


def tolerance_of(dtype: torch.dtype, length: int) -> float:
    """Allowed relative error by norm: two roundings to the dtype, and of the arithmetic (fp32, fp64 for fp64) eight and
    more by the logarithm of what is summed up.
    """
    if not dtype.is_floating_point:
        return EXACT_MISMATCH
    inner = min(float(torch.finfo(dtype).eps), float(torch.finfo(torch.float32).eps))
    return 2 * float(torch.finfo(dtype).eps) + inner * (8 + 2 * math.log2(max(length, 2)))


def compare(
    outputs: Sequence[torch.Tensor],
    reference: Sequence[torch.Tensor],
    eager: Sequence[torch.Tensor] | None = None,
    *,
    length: int = 1,
    scale: float = 1.0,
) -> Check:
    """Compare with a reference in higher precision. Where ``eager`` (the program's own precision) is further off than
    the tolerance, twice its error is allowed: the fused form need not be better than the program.
    """
    worst = Check(ok=True, error=0.0, tolerance=0.0)
    for k, (out, ref) in enumerate(zip(outputs, reference, strict=True)):
        if out.shape != ref.shape:
            return Check(ok=False, error=math.nan, tolerance=0.0, text=f"output {k} has shape {list(out.shape)}")
        allowed = scale * tolerance_of(out.dtype, length)
        if not out.dtype.is_floating_point:
            # Integer results that eager itself gives differently in another precision are not the kernel's fault.
            target = ref if eager is None else eager[k]
            error = float((out.long() != target.long()).double().mean())
            if not error <= allowed:
                return Check(
                    ok=False, error=error, tolerance=allowed, text=f"output {k}: {error:.2%} of elements differ"
                )
            worst = max(worst, Check(ok=True, error=error, tolerance=allowed), key=lambda c: c.error)
            continue
        by_norm, by_element = errors(out, ref)
        own = errors(eager[k], ref) if eager is not None else (0.0, 0.0)
        limits = (max(allowed, 2 * own[0]), max(8 * allowed, 2 * own[1]))
        if not (by_norm <= limits[0] and by_element <= limits[1]):
            text = f"output {k}: relative error {by_norm:.2e} (allowed {limits[0]:.1e}), worst element {by_element:.2e} (allowed {limits[1]:.1e})"  # noqa: E501
            return Check(ok=False, error=by_norm, tolerance=limits[0], text=text)
        worst = max(worst, Check(ok=True, error=by_norm, tolerance=limits[0]), key=lambda c: c.error)
    return worst


MOMENTS_ERROR = 0.02
"""By which mean and root mean square of two draws may differ, as a share of the latter. A choice: dropout of a tenth of
10,000 numbers of N(0, 1) moves them by 0.01 (one standard deviation)."""


def alike(outputs: Sequence[torch.Tensor], others: Sequence[torch.Tensor]) -> Check:
    """Could both be draws of the same distribution? Mean and root mean square of every output of 10,000 or more."""
    worst = 0.0
    for k, (a, b) in enumerate(zip(outputs, others, strict=True)):
        if a.shape != b.shape or a.dtype != b.dtype:
            return Check(ok=False, error=math.nan, tolerance=0.0, text=f"output {k} has shape {list(a.shape)}")
        if a.numel() < 10_000:
            continue
        moments = [(float(t.double().mean()), float(t.double().square().mean().sqrt())) for t in (a, b)]
        scale = max(moments[1][1], 1e-30)
        error = max(abs(x - y) / scale for x, y in zip(*moments, strict=True))
        if not error <= MOMENTS_ERROR:
            text = f"output {k}: mean or root mean square off by {error:.1%}"
            return Check(ok=False, error=error, tolerance=MOMENTS_ERROR, text=text)
        worst = max(worst, error)
    return Check(ok=True, error=worst, tolerance=MOMENTS_ERROR)
