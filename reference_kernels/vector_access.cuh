// Element types, 16-byte accesses and 64-bit positions for all reference kernels.
// Own 16-bit and 8-bit types: NVRTC brings no cuda_fp16.h, and these need only PTX (sm_80 and newer).
// A host compiler reads this file too (tests emulate a block on the CPU); it takes the plain C++ branches.
#pragma once

using index_t = long long;

struct float16 { unsigned short bits; };
struct bfloat16 { unsigned short bits; };
struct float8_e4m3 { unsigned char bits; };

template <class T> struct compute { using type = T; };
template <> struct compute<float16> { using type = float; };
template <> struct compute<bfloat16> { using type = float; };
template <> struct compute<float8_e4m3> { using type = float; };
template <class T> using compute_t = typename compute<T>::type;

__device__ inline unsigned bits_of(float v) { union { float f; unsigned u; } x; x.f = v; return x.u; }
__device__ inline float float_of(unsigned v) { union { float f; unsigned u; } x; x.u = v; return x.f; }

template <class T> __device__ inline T widen(T v) { return v; }
__device__ inline float widen(bfloat16 v) { return float_of(unsigned(v.bits) << 16); }
__device__ inline float widen(float16 v) {
#ifdef HOST_EMULATION
  _Float16 h; __builtin_memcpy(&h, &v.bits, 2); return float(h);
#else
  float f; asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(v.bits)); return f;
#endif
}
__device__ inline float widen(float8_e4m3 v) {
  unsigned exponent = (v.bits >> 3) & 15, mantissa = v.bits & 7;
  float magnitude = exponent ? float_of(((exponent + 120) << 23) | (mantissa << 20)) : float(mantissa) * 0x1p-9f;
  if ((v.bits & 127) == 127) magnitude = float_of(0x7fc00000u);
  return v.bits & 128 ? -magnitude : magnitude;
}

template <class T> struct narrow_to {
  template <class S> __device__ static T from(S v) { return static_cast<T>(v); }
};
template <> struct narrow_to<bfloat16> {
  template <class S> __device__ static bfloat16 from(S s) {
    float v = static_cast<float>(s);
    unsigned u = bits_of(v);
    if (v != v) return bfloat16{0x7fc0};
    return bfloat16{static_cast<unsigned short>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16)};
  }
};
template <> struct narrow_to<float16> {
  template <class S> __device__ static float16 from(S s) {
    float v = static_cast<float>(s);
    float16 out;
#ifdef HOST_EMULATION
    _Float16 h = static_cast<_Float16>(v); __builtin_memcpy(&out.bits, &h, 2);
#else
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(out.bits) : "f"(v));
#endif
    return out;
  }
};
// Round to nearest even; above 448 it saturates, as casts with a scale want (torch's plain cast gives NaN there).
template <> struct narrow_to<float8_e4m3> {
  template <class S> __device__ static float8_e4m3 from(S s) {
    float v = static_cast<float>(s);
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    unsigned short pair;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.f), "f"(v));
    return float8_e4m3{static_cast<unsigned char>(pair & 255)};
#endif
    unsigned sign = (bits_of(v) >> 24) & 128u;
    float a = v < 0.f ? -v : v;
    if (v != v) return float8_e4m3{static_cast<unsigned char>(sign | 127u)};
    if (a > 448.f) a = 448.f;
    unsigned code;
    if (a < 0x1p-6f) {
      code = bits_of(a * 0x1p9f + 0x1p23f) & 15u;  // subnormal: steps of 2^-9
    } else {
      unsigned u = bits_of(a);
      code = ((u + 0x7ffffu + ((u >> 20) & 1u)) >> 20) - (120u << 3);
      if (code > 126u) code = 126u;
    }
    return float8_e4m3{static_cast<unsigned char>(sign | code)};
  }
};
template <class T, class S> __device__ inline T narrow(S v) { return narrow_to<T>::from(v); }

// V elements, aligned so that the compiler moves them in accesses of up to 16 bytes.
template <class T, int V> struct alignas(sizeof(T) * V > 16 ? 16 : sizeof(T) * V) pack { T item[V]; };

template <int V, bool ALIGNED, class T> __device__ inline pack<T, V> load_pack(const T* p) {
  if constexpr (ALIGNED) return *reinterpret_cast<const pack<T, V>*>(p);
  pack<T, V> out;
#pragma unroll
  for (int v = 0; v < V; ++v) out.item[v] = p[v];
  return out;
}
template <int V, bool ALIGNED, class T> __device__ inline void store_pack(T* p, const pack<T, V>& in) {
  if constexpr (ALIGNED) { *reinterpret_cast<pack<T, V>*>(p) = in; return; }
#pragma unroll
  for (int v = 0; v < V; ++v) p[v] = in.item[v];
}

__device__ inline index_t global_thread() { return index_t(blockIdx.x) * blockDim.x + threadIdx.x; }
__device__ inline index_t global_threads() { return index_t(gridDim.x) * blockDim.x; }
