"""What each aten op is, by its name without namespace, overload and in-place underscore: the table behind costs."""

from __future__ import annotations

from typing import Literal

OpKind = Literal[
    "view", "pointwise", "cast", "copy", "fill", "random", "reduction", "softmax", "norm", "pool", "scan", "sort",
    "gather", "scatter", "join", "matmul", "convolution", "attention", "foreach", "collective", "scalar_read",
    "transfer", "opaque",
]  # fmt: skip
"""Finer than a kernel's Category: ``cast`` and ``copy`` only move, ``join`` is cat and pad, ``fill`` reads nothing,
``transfer`` copies from one device (or the host) to another."""


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


VIEW = _names(
    "view as_strided t transpose permute expand select slice squeeze unsqueeze unbind split split_with_sizes chunk "
    "narrow detach alias _unsafe_view _reshape_alias reshape unfold view_as expand_as diagonal flatten unflatten "
    "view_as_real view_as_complex real imag _conj _neg_view lift_fresh movedim swapaxes swapdims mT mH H T adjoint "
    "empty empty_like empty_strided new_empty new_empty_strided resize set _resize_output is_same_size sym_size "
    "sym_stride sym_numel sym_storage_offset size stride result_type is_contiguous is_strides_like_format "
    "_nested_view_from_buffer hsplit vsplit dsplit tensor_split conj resolve_conj resolve_neg _has_same_storage_numel "
    "_version output_nr requires_grad retain_grad numpy_T matrix_H _sparse_coo_tensor_unsafe "
    "_assert_scalar _assert_tensor_metadata sym_constrain_range sym_constrain_range_for_size record_stream "
    "is_complex is_floating_point is_inference"
)
"""No kernel: another view of the same storage, an allocation, or metadata only."""

POINTWISE = _names(
    "abs absolute acos acosh add addcdiv addcmul angle arccos arccosh arcsin arcsinh arctan arctan2 arctanh asin asinh "
    "atan atan2 atanh bitwise_and bitwise_left_shift bitwise_not bitwise_or bitwise_right_shift bitwise_xor ceil celu "
    "clamp clamp_max clamp_min clip complex conj_physical copysign cos cosh deg2rad digamma div divide elu "
    "elu_backward eq erf erfc erfinv exp exp2 expm1 fix float_power floor floor_divide fmax fmin fmod frac frexp gcd "
    "ge gelu gelu_backward glu glu_backward greater greater_equal gt hardshrink hardshrink_backward hardsigmoid "
    "hardsigmoid_backward hardswish hardswish_backward hardtanh hardtanh_backward heaviside huber_loss_pointwise "
    "hypot i0 igamma isclose isfinite isinf isnan isneginf isposinf isreal lcm ldexp le leaky_relu "
    "leaky_relu_backward lerp less less_equal lgamma log log10 log1p log2 log_sigmoid_forward log_sigmoid_backward "
    "logaddexp logaddexp2 logical_and logical_not logical_or logical_xor logit logit_backward lt masked_fill maximum "
    "minimum mish mish_backward mul multiply mvlgamma nan_to_num ne neg negative nextafter not_equal polar polygamma "
    "pow positive prelu _prelu_kernel _prelu_kernel_backward rad2deg reciprocal relu relu6 remainder round rsqrt "
    "rsub selu sgn sigmoid sigmoid_backward sign signbit silu silu_backward sin sinc sinh softplus "
    "softplus_backward softshrink softshrink_backward special_entr special_erfcx special_expit special_i0e "
    "special_i1 special_log1p special_ndtr special_xlog1py special_xlogy special_zeta sqrt square sub subtract "
    "tan tanh tanh_backward threshold threshold_backward true_divide trunc tril triu where xlogy __and__ __or__ "
    "__xor__ __lshift__ __rshift__ __iand__ __ior__ __ixor__ __ilshift__ __irshift__ mse_loss_backward "
    "smooth_l1_loss_backward binary_cross_entropy_backward huber_loss_backward soft_margin_loss_backward "
    "_thnn_fused_lstm_cell _thnn_fused_lstm_cell_backward_impl _thnn_fused_gru_cell _thnn_fused_gru_cell_backward "
    "native_dropout_backward _masked_scale masked_fill_scalar fake_quantize_per_tensor_affine flip roll"
)
"""Each output element needs one element of each input (``flip``, ``roll``, ``tril`` move or mask on the way)."""

CAST = _names("_to_copy to type_as")
COPY = _names(
    "clone copy contiguous lift_fresh_copy _reshape_copy view_copy permute_copy slice_copy expand_copy select_copy "
    "t_copy transpose_copy unsqueeze_copy squeeze_copy as_strided_copy repeat tile repeat_interleave "
    "constant_pad_nd pixel_shuffle pixel_unshuffle channel_shuffle"
)
MOVING = _names(
    "flip roll repeat tile repeat_interleave pixel_shuffle pixel_unshuffle channel_shuffle permute_copy transpose_copy "
    "t_copy slice_copy select_copy as_strided_copy rot90"
)
"""Elements come out in other places than they went in."""
JOIN = _names("cat stack hstack vstack dstack concat concatenate constant_pad_nd pad block_diag")
FILL = _names(
    "fill zero zeros ones full zeros_like ones_like full_like new_zeros new_ones new_full arange linspace logspace "
    "eye scalar_tensor zero_ fill_ range tril_indices triu_indices _efficientzerotensor"
)
RANDOM = _names(
    "bernoulli uniform normal rand rand_like randn randn_like randint randint_like randperm native_dropout dropout "
    "exponential geometric cauchy log_normal random poisson binomial alpha_dropout feature_dropout rrelu_with_noise "
    "_fused_dropout"
)
REDUCTION = _names(
    "sum mean amax amin max min prod norm linalg_vector_norm var std var_mean std_mean argmax argmin any all "
    "logsumexp count_nonzero nansum nanmean aminmax _linalg_check_errors mse_loss l1_loss smooth_l1_loss huber_loss "
    "binary_cross_entropy binary_cross_entropy_with_logits soft_margin_loss kl_div dot vdot dist "
    "_chunk_grad_outputs sum_to_size trace"
)
SOFTMAX = _names(
    "_softmax _log_softmax softmax log_softmax _softmax_backward_data _log_softmax_backward_data _safe_softmax "
    "_masked_softmax _masked_softmax_backward"
)
NORM = _names(
    "native_layer_norm native_layer_norm_backward layer_norm rms_norm _fused_rms_norm _fused_rms_norm_backward "
    "native_group_norm native_group_norm_backward native_batch_norm native_batch_norm_backward cudnn_batch_norm "
    "cudnn_batch_norm_backward miopen_batch_norm miopen_batch_norm_backward _native_batch_norm_legit "
    "_native_batch_norm_legit_no_training _batch_norm_with_update _batch_norm_no_update batch_norm_backward "
    "_weight_norm_interface _weight_norm_interface_backward renorm local_response_norm"
)
POOL = _names(
    "max_pool2d_with_indices max_pool2d_with_indices_backward avg_pool2d avg_pool2d_backward _adaptive_avg_pool2d "
    "_adaptive_avg_pool2d_backward adaptive_max_pool2d adaptive_max_pool2d_backward max_pool3d_with_indices "
    "max_pool3d_with_indices_backward avg_pool3d avg_pool3d_backward _adaptive_avg_pool3d max_pool1d avg_pool1d "
    "upsample_nearest1d upsample_nearest2d upsample_nearest3d upsample_bilinear2d upsample_bicubic2d "
    "upsample_trilinear3d upsample_linear1d _upsample_bilinear2d_aa _upsample_bicubic2d_aa upsample_nearest2d_backward "
    "upsample_bilinear2d_backward upsample_bicubic2d_backward grid_sampler_2d grid_sampler_3d reflection_pad1d "
    "reflection_pad2d replication_pad1d replication_pad2d reflection_pad2d_backward im2col col2im"
)
"""Windows over the input: input once, output once (neighbours come from cache)."""
SCAN = _names("cumsum cumprod logcumsumexp cummax cummin _cummax_helper _cummin_helper")
SORT = _names("sort topk argsort msort kthvalue median nanmedian mode unique_consecutive _unique2 unique_dim")
GATHER = _names(
    "index index_select gather embedding take take_along_dim _embedding_bag nll_loss_forward nll_loss2d_forward"
)
SCATTER = _names(
    "index_put _index_put_impl _unsafe_index_put scatter scatter_add scatter_reduce index_add index_copy index_fill "
    "put masked_scatter slice_scatter select_scatter diagonal_scatter as_strided_scatter embedding_dense_backward "
    "nll_loss_backward nll_loss2d_backward index_reduce"
)
MATMUL = _names(
    "mm bmm addmm baddbmm addbmm matmul linear addmv mv addr ger outer _scaled_mm _scaled_grouped_mm _grouped_mm "
    "_int_mm _addmm_activation linear_backward _weight_int4pack_mm _weight_int8pack_mm einsum tensordot "
    "_cudnn_rnn _cudnn_rnn_backward"
)
"""With cuDNN's recurrent layers: matrix products and the cell's arithmetic in kernels that are not public."""
CONVOLUTION = _names(
    "convolution _convolution convolution_backward cudnn_convolution cudnn_convolution_relu conv1d conv2d conv3d "
    "cudnn_convolution_transpose miopen_convolution convolution_overrideable cudnn_convolution_add_relu "
    "_slow_conv2d_forward _slow_conv2d_backward _conv_depthwise2d conv_depthwise3d conv_transpose2d"
)
ATTENTION = _names(
    "scaled_dot_product_attention _scaled_dot_product_flash_attention _scaled_dot_product_efficient_attention "
    "_scaled_dot_product_cudnn_attention _scaled_dot_product_flash_attention_backward "
    "_scaled_dot_product_efficient_attention_backward _scaled_dot_product_cudnn_attention_backward "
    "_scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention_for_cpu_backward "
    "_scaled_dot_product_fused_attention_overrideable _scaled_dot_product_fused_attention_overrideable_backward "
    "_flash_attention_forward _flash_attention_backward _efficient_attention_forward _efficient_attention_backward "
    "_cudnn_attention_forward _cudnn_attention_backward"
)
SCALAR_READ = _names("_local_scalar_dense item is_nonzero equal")

_KINDS: tuple[tuple[OpKind, frozenset[str]], ...] = (
    ("scalar_read", SCALAR_READ), ("view", VIEW), ("join", JOIN), ("cast", CAST), ("copy", COPY), ("fill", FILL),
    ("random", RANDOM), ("softmax", SOFTMAX), ("norm", NORM), ("pool", POOL), ("scan", SCAN), ("sort", SORT),
    ("gather", GATHER), ("scatter", SCATTER), ("matmul", MATMUL), ("convolution", CONVOLUTION),
    ("attention", ATTENTION), ("reduction", REDUCTION), ("pointwise", POINTWISE),
)  # fmt: skip

KINDS: dict[str, OpKind] = {name: kind for kind, names in reversed(_KINDS) for name in names}
"""Name to kind; earlier rows of the table win."""

WRITE_ONLY = _names(
    "fill zero copy bernoulli uniform normal exponential geometric cauchy log_normal random _foreach_zero _foreach_copy"
)
"""In-place ops that do not read what they overwrite."""
