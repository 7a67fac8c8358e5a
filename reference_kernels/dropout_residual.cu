// y = keep(x) / (1 - p) + residual with Philox4x32-10: element e takes word e % 4 of counter e / 4 under the seed, so
// the mask does not depend on the launch geometry.
#include "philox.cuh"

// V is 4 or 8; the last pack may be cut short.
template <class T, int V, bool ALIGNED>
__global__ void __launch_bounds__(256) dropout_residual(const T* __restrict__ x, const T* __restrict__ residual,
                                                        T* __restrict__ y, index_t n, index_t seed, index_t threshold,
                                                        float scale) {
  using C = compute_t<T>;
  for (index_t p = global_thread(); p * V < n; p += global_threads()) {
    const bool whole = p * V + V <= n;
    pack<T, V> a, r, out;
    if (whole) {
      a = load_pack<V, ALIGNED>(x + p * V);
      r = load_pack<V, ALIGNED>(residual + p * V);
    }
    words bits[V / 4];
#pragma unroll
    for (int q = 0; q < V / 4; ++q) bits[q] = philox((unsigned long long)(p * (V / 4) + q), (unsigned long long)seed);
#pragma unroll
    for (int v = 0; v < V; ++v) {
      const index_t e = p * V + v;
      if (!whole && e >= n) continue;
      const C value = C(widen(whole ? a.item[v] : x[e])), add = C(widen(whole ? r.item[v] : residual[e]));
      out.item[v] = narrow<T>((index_t(bits[v / 4].item[v % 4]) < threshold ? value * C(scale) : C(0)) + add);
      if (!whole) y[e] = out.item[v];
    }
    if (whole) store_pack<V, ALIGNED>(y + p * V, out);
  }
}
