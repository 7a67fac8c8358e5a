// SwiGLU: y = silu(gate) * up; gate and up are the halves of each row of x (rows, 2 * cols).
#include "elementwise_functions.cuh"

template <class T, int V, int UNROLL, class P>
__global__ void __launch_bounds__(256) swiglu(const T* __restrict__ x, T* __restrict__ y, index_t packs, index_t cols) {
  using C = compute_t<T>;
  const index_t step = global_threads();
  for (index_t first = global_thread(); first < packs; first += UNROLL * step) {
    pack<T, V> gate[UNROLL], up[UNROLL];
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
      const index_t p = first + u * step;
      if (p >= packs) continue;
      const index_t row = index_t(P(p * V) / P(cols)), place = p * V + row * cols;
      gate[u] = load_pack<V, true>(x + place);
      up[u] = load_pack<V, true>(x + place + cols);
    }
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
      const index_t p = first + u * step;
      if (p >= packs) continue;
      pack<T, V> out;
#pragma unroll
      for (int v = 0; v < V; ++v)
        out.item[v] = narrow<T>(f_silu(C(widen(gate[u].item[v]))) * C(widen(up[u].item[v])));
      store_pack<V, true>(y + p * V, out);
    }
  }
}
