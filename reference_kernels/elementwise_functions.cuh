// Functions of one element that generated chains call; every one works on the compute type of its operands.
#pragma once
#include "block_reduce.cuh"
#include "philox.cuh"

template <class C> __device__ inline C f_add(C a, C b) { return a + b; }
template <class C> __device__ inline C f_sub(C a, C b) { return a - b; }
template <class C> __device__ inline C f_mul(C a, C b) { return a * b; }
template <class C> __device__ inline C f_div(C a, C b) { return a / b; }
template <class C> __device__ inline C f_neg(C a) { return -a; }
template <class C> __device__ inline C f_abs(C a) { return a < C(0) ? -a : a; }
__device__ inline float f_abs(float a) { return fabsf(a); }
__device__ inline double f_abs(double a) { return fabs(a); }
template <class C> __device__ inline C f_square(C a) { return a * a; }
template <class C> __device__ inline C f_sign(C a) { return C((a > C(0)) - (a < C(0))); }
template <class C> __device__ inline C f_reciprocal(C a) { return C(1) / a; }
template <class C> __device__ inline C f_exp(C a) { return exp(a); }
template <class C> __device__ inline C f_exp2(C a) { return exp2(a); }
template <class C> __device__ inline C f_expm1(C a) { return expm1(a); }
template <class C> __device__ inline C f_log(C a) { return log(a); }
template <class C> __device__ inline C f_log2(C a) { return log2(a); }
template <class C> __device__ inline C f_log10(C a) { return log10(a); }
template <class C> __device__ inline C f_log1p(C a) { return log1p(a); }
template <class C> __device__ inline C f_sqrt(C a) { return sqrt(a); }
template <class C> __device__ inline C f_rsqrt(C a) { return C(1) / sqrt(a); }
template <class C> __device__ inline C f_sin(C a) { return sin(a); }
template <class C> __device__ inline C f_cos(C a) { return cos(a); }
template <class C> __device__ inline C f_tan(C a) { return tan(a); }
template <class C> __device__ inline C f_atan(C a) { return atan(a); }
template <class C> __device__ inline C f_tanh(C a) { return tanh(a); }
template <class C> __device__ inline C f_erf(C a) { return erf(a); }
template <class C> __device__ inline C f_floor(C a) { return floor(a); }
template <class C> __device__ inline C f_ceil(C a) { return ceil(a); }
template <class C> __device__ inline C f_round(C a) { return rint(a); }
template <class C> __device__ inline C f_trunc(C a) { return trunc(a); }
template <class C> __device__ inline C f_atan2(C a, C b) { return atan2(a, b); }
template <class C> __device__ inline C f_fmod(C a, C b) { return fmod(a, b); }
template <class C> __device__ inline C f_pow(C a, C b) { return b == C(2) ? a * a : b == C(3) ? a * a * a : pow(a, b); }
__device__ inline long long f_pow(long long a, long long b) {
  long long out = 1;
  for (; b > 0; --b) out *= a;
  return out;
}
template <class C> __device__ inline C f_maximum(C a, C b) { return max_op{}(a, b); }
template <class C> __device__ inline C f_minimum(C a, C b) { return min_op{}(a, b); }
template <class C> __device__ inline C f_floor_divide(C a, C b) { return floor(a / b); }
__device__ inline long long f_floor_divide(long long a, long long b) {
  return a / b - ((a % b != 0) && ((a < 0) != (b < 0)));
}
template <class C> __device__ inline C f_trunc_divide(C a, C b) { return trunc(a / b); }
__device__ inline long long f_trunc_divide(long long a, long long b) { return a / b; }
template <class C> __device__ inline C f_remainder(C a, C b) { C m = fmod(a, b); return m != C(0) && ((m < C(0)) != (b < C(0))) ? m + b : m; }
__device__ inline long long f_remainder(long long a, long long b) {
  long long m = a % b;
  return m != 0 && ((m < 0) != (b < 0)) ? m + b : m;
}
template <class C> __device__ inline C f_relu(C a) { return f_maximum(a, C(0)); }
template <class C> __device__ inline C f_sigmoid(C a) { return C(1) / (C(1) + exp(-a)); }
template <class C> __device__ inline C f_silu(C a) { return a / (C(1) + exp(-a)); }
template <class C> __device__ inline C f_gelu(C a) { return C(0.5) * a * (C(1) + erf(a * C(0.70710678118654752440))); }
template <class C> __device__ inline C f_gelu_tanh(C a) {
  return C(0.5) * a * (C(1) + tanh(C(0.79788456080286535588) * (a + C(0.044715) * a * a * a)));
}
template <class C> __device__ inline C f_gelu_backward(C g, C a) {
  C cdf = C(0.5) * (C(1) + erf(a * C(0.70710678118654752440)));
  return g * (cdf + a * exp(C(-0.5) * a * a) * C(0.39894228040143267794));
}
template <class C> __device__ inline C f_gelu_tanh_backward(C g, C a) {
  C t = tanh(C(0.79788456080286535588) * (a + C(0.044715) * a * a * a));
  C slope = (C(1) - t * t) * C(0.79788456080286535588) * (C(1) + C(3 * 0.044715) * a * a);
  return g * C(0.5) * (C(1) + t + a * slope);
}
template <class C> __device__ inline C f_silu_backward(C g, C a) { C s = f_sigmoid(a); return g * s * (C(1) + a * (C(1) - s)); }
template <class C> __device__ inline C f_sigmoid_backward(C g, C y) { return g * y * (C(1) - y); }
template <class C> __device__ inline C f_tanh_backward(C g, C y) { return g * (C(1) - y * y); }
template <class C> __device__ inline C f_threshold_backward(C g, C a, C t) { return a <= t ? C(0) : g; }
template <class C> __device__ inline C f_leaky_relu(C a, C slope) { return a > C(0) ? a : a * slope; }
template <class C> __device__ inline C f_hardswish(C a) { return a * f_minimum(f_maximum(a + C(3), C(0)), C(6)) / C(6); }
template <class C> __device__ inline C f_hardsigmoid(C a) { return f_minimum(f_maximum(a + C(3), C(0)), C(6)) / C(6); }
template <class C> __device__ inline C f_softplus(C a, C beta, C threshold) { return a * beta > threshold ? a : log1p(exp(a * beta)) / beta; }
template <class C> __device__ inline C f_elu(C a, C alpha, C scale, C input) { return scale * (a > C(0) ? a : alpha * expm1(a * input)); }
template <class C> __device__ inline C f_log_sigmoid(C a) { return f_minimum(a, C(0)) - log1p(exp(-f_abs(a))); }
template <class C> __device__ inline C f_lerp(C a, C b, C w) { return a + w * (b - a); }
template <class C> __device__ inline C f_logical_not(C a) { return C(!a); }
template <class C> __device__ inline bool f_eq(C a, C b) { return a == b; }
template <class C> __device__ inline bool f_ne(C a, C b) { return a != b; }
template <class C> __device__ inline bool f_lt(C a, C b) { return a < b; }
template <class C> __device__ inline bool f_le(C a, C b) { return a <= b; }
template <class C> __device__ inline bool f_gt(C a, C b) { return a > b; }
template <class C> __device__ inline bool f_ge(C a, C b) { return a >= b; }
template <class C> __device__ inline bool f_isnan(C a) { return a != a; }
template <class C> __device__ inline bool f_isinf(C a) { return f_abs(a) == C(float_of(0x7f800000u)); }
template <class C> __device__ inline bool f_logical_and(C a, C b) { return a && b; }
template <class C> __device__ inline bool f_logical_or(C a, C b) { return a || b; }
template <class C> __device__ inline C f_bitwise_and(C a, C b) { return a & b; }
template <class C> __device__ inline C f_bitwise_or(C a, C b) { return a | b; }
template <class C> __device__ inline C f_bitwise_xor(C a, C b) { return a ^ b; }
__device__ inline bool f_bitwise_not(bool a) { return !a; }
__device__ inline long long f_bitwise_not(long long a) { return ~a; }
// Rounding to a narrower type, which stays visible: the program asked for it.
template <class T, class C> __device__ inline compute_t<T> round_to(C a) { return compute_t<T>(widen(narrow<T>(a))); }
