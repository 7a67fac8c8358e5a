"""All reference kernels by name."""

from __future__ import annotations

from fusionaudit.reference_kernels.adamw import ADAMW
from fusionaudit.reference_kernels.bias_activation import BIAS_GELU_RESIDUAL, SCALE_BIAS_RELU
from fusionaudit.reference_kernels.cross_entropy import CROSS_ENTROPY
from fusionaudit.reference_kernels.dropout_residual import DROPOUT_RESIDUAL
from fusionaudit.reference_kernels.fp8_cast import FP8_CAST
from fusionaudit.reference_kernels.gated import SWIGLU
from fusionaudit.reference_kernels.norm import LAYER_NORM, LAYER_NORM_BACKWARD, RMS_NORM, RMS_NORM_BACKWARD
from fusionaudit.reference_kernels.reference import Reference
from fusionaudit.reference_kernels.rope import ROPE
from fusionaudit.reference_kernels.softmax import LOG_SOFTMAX, OUTER_SOFTMAX, SOFTMAX
from fusionaudit.reference_kernels.spilling import SPILLING
from fusionaudit.reference_kernels.sum_abs import SUM_ABS
from fusionaudit.reference_kernels.transpose_cast import TRANSPOSE_CAST
from fusionaudit.reference_kernels.work_queue import WORK_QUEUE

REFERENCES: dict[str, Reference] = {
    reference.name: reference
    for reference in (
        SUM_ABS, SCALE_BIAS_RELU, BIAS_GELU_RESIDUAL, SWIGLU, ROPE, SOFTMAX, LOG_SOFTMAX, OUTER_SOFTMAX, LAYER_NORM,
        RMS_NORM, LAYER_NORM_BACKWARD, RMS_NORM_BACKWARD, CROSS_ENTROPY, DROPOUT_RESIDUAL, FP8_CAST, ADAMW,
        TRANSPOSE_CAST, WORK_QUEUE, SPILLING,
    )
}  # fmt: skip
