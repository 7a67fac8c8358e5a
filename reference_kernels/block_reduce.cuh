// Reductions over the THREADS threads (threadIdx.x) that share a row; every thread gets the result.
// THREADS is a power of two: up to 32 several rows share a block (threadIdx.y), above it the block is one row.
#pragma once
#include "vector_access.cuh"

struct add_op { template <class T> __device__ T operator()(T a, T b) const { return a + b; } };
struct mul_op { template <class T> __device__ T operator()(T a, T b) const { return a * b; } };
// NaN wins, as in torch.
struct max_op { template <class T> __device__ T operator()(T a, T b) const { return a > b || a != a ? a : b; } };
struct min_op { template <class T> __device__ T operator()(T a, T b) const { return a < b || a != a ? a : b; } };

// Two values that are reduced together: half of the barriers.
template <class T> struct pair { T a, b; };
template <class T> __device__ inline pair<T> operator+(pair<T> p, pair<T> q) { return {p.a + q.a, p.b + q.b}; }
template <class T> __device__ inline T shuffle_xor(T value, int step) { return __shfl_xor_sync(0xffffffffu, value, step); }
template <class T> __device__ inline pair<T> shuffle_xor(pair<T> p, int step) {
  return {shuffle_xor(p.a, step), shuffle_xor(p.b, step)};
}

template <int THREADS, class Op, class T> __device__ inline T reduce_row(T value, Op op, T identity) {
#pragma unroll
  for (int step = (THREADS < 32 ? THREADS : 32) / 2; step > 0; step /= 2)
    value = op(value, shuffle_xor(value, step));
  if constexpr (THREADS > 32) {
    constexpr int WARPS = THREADS / 32;
    __shared__ T partial[WARPS];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    __syncthreads();  // the last call's partials have been read
    if (lane == 0) partial[warp] = value;
    __syncthreads();
    value = lane < WARPS ? partial[lane] : identity;
#pragma unroll
    for (int step = 16; step > 0; step /= 2) value = op(value, shuffle_xor(value, step));
  }
  return value;
}
template <int THREADS, class T> __device__ inline T sum_row(T v) { return reduce_row<THREADS>(v, add_op{}, T(0)); }
template <int THREADS> __device__ inline float max_row(float v) {
  return reduce_row<THREADS>(v, max_op{}, float_of(0xff800000u));
}
template <int THREADS> __device__ inline double max_row(double v) {
  return reduce_row<THREADS>(v, max_op{}, double(float_of(0xff800000u)));
}

// One row held in registers: ITEMS packs of V elements a thread, columns interleaved over the threads.
template <class T, int THREADS, int V, int ITEMS> struct row_registers {
  using C = compute_t<T>;
  C value[ITEMS * V];
  __device__ static index_t column(int item) { return (index_t(item) * THREADS + threadIdx.x) * V; }
  __device__ static void fetch(pack<T, V> (&raw)[ITEMS], const T* p, index_t cols) {
#pragma unroll
    for (int i = 0; i < ITEMS; ++i)
      if (column(i) < cols) raw[i] = load_pack<V, true>(p + column(i));
  }
  __device__ void take(const pack<T, V> (&raw)[ITEMS], index_t cols, C fill) {
#pragma unroll
    for (int i = 0; i < ITEMS; ++i)
#pragma unroll
      for (int v = 0; v < V; ++v) value[i * V + v] = column(i) < cols ? C(widen(raw[i].item[v])) : fill;
  }
  __device__ void load(const T* p, index_t cols, C fill) {
    pack<T, V> raw[ITEMS];
    fetch(raw, p, cols);
    take(raw, cols, fill);
  }
  __device__ void store(T* p, index_t cols) const {
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
      if (column(i) >= cols) continue;
      pack<T, V> out;
#pragma unroll
      for (int v = 0; v < V; ++v) out.item[v] = narrow<T>(value[i * V + v]);
      store_pack<V, true>(p + column(i), out);
    }
  }
};
