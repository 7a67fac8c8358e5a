"""All reference kernels by name."""

from __future__ import annotations

from fusionaudit.reference_kernels import norm, softmax, sum_abs
from fusionaudit.reference_kernels.reference import Reference

REFERENCES: dict[str, Reference] = {
    reference.name: reference
    for reference in (
        sum_abs.SUM_ABS,
        softmax.SOFTMAX,
        softmax.LOG_SOFTMAX,
        softmax.OUTER_SOFTMAX,
        norm.LAYER_NORM,
        norm.RMS_NORM,
        norm.LAYER_NORM_BACKWARD,
        norm.RMS_NORM_BACKWARD,
    )
}
