// y = activation(x * scale + bias) + residual over (rows, cols); scale, bias: one value a column; residual like x.
// Null scale or residual: left out. ACTIVATION 0: ReLU, 1: GELU (erf), 2: GELU (tanh), 3: SiLU.
#include "elementwise_functions.cuh"

template <int ACTIVATION, class C> __device__ inline C activation(C a) {
  if constexpr (ACTIVATION == 0) return f_relu(a);
  if constexpr (ACTIVATION == 1) return f_gelu(a);
  if constexpr (ACTIVATION == 2) return f_gelu_tanh(a);
  return f_silu(a);
}

template <class T, int V, int UNROLL, int ACTIVATION, bool SCALE, bool RESIDUAL, class P>
__global__ void __launch_bounds__(256) bias_activation(const T* __restrict__ x, const T* __restrict__ scale,
                                                       const T* __restrict__ bias, const T* __restrict__ residual,
                                                       T* __restrict__ y, index_t packs, index_t cols) {
  using C = compute_t<T>;
  const index_t step = global_threads();
  for (index_t first = global_thread(); first < packs; first += UNROLL * step) {
    pack<T, V> a[UNROLL], s[UNROLL], b[UNROLL], r[UNROLL];
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
      const index_t p = first + u * step;
      if (p >= packs) continue;
      const index_t column = index_t(P(p * V) % P(cols));
      a[u] = load_pack<V, true>(x + p * V);
      if constexpr (SCALE) s[u] = load_pack<V, true>(scale + column);
      b[u] = load_pack<V, true>(bias + column);
      if constexpr (RESIDUAL) r[u] = load_pack<V, true>(residual + p * V);
    }
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
      const index_t p = first + u * step;
      if (p >= packs) continue;
      pack<T, V> out;
#pragma unroll
      for (int v = 0; v < V; ++v) {
        C value = C(widen(a[u].item[v]));
        if constexpr (SCALE) value *= C(widen(s[u].item[v]));
        value = activation<ACTIVATION>(value + C(widen(b[u].item[v])));
        if constexpr (RESIDUAL) value += C(widen(r[u].item[v]));
        out.item[v] = narrow<T>(value);
      }
      store_pack<V, true>(y + p * V, out);
    }
  }
}
