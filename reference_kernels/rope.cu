// Rotary embedding, rotate-half form: x (positions, heads, 2 * half), cosine and sine (positions, half) in fp32.
// Each thread turns V pairs: column c of the first half with column c of the second.
#include "vector_access.cuh"

template <class T, int V, class P>
__global__ void __launch_bounds__(256) rope(const T* __restrict__ x, const float* __restrict__ cosine,
                                            const float* __restrict__ sine, T* __restrict__ y, index_t packs,
                                            index_t heads, index_t half) {
  using C = compute_t<T>;
  for (index_t p = global_thread(); p < packs; p += global_threads()) {
    const P pair = P(p * V), row = pair / P(half), column = pair % P(half);
    const index_t angle = index_t(row / P(heads)) * half + index_t(column);
    const index_t place = index_t(row) * 2 * half + index_t(column);
    const pack<T, V> a = load_pack<V, true>(x + place), b = load_pack<V, true>(x + place + half);
    const pack<float, V> c = load_pack<V, true>(cosine + angle), s = load_pack<V, true>(sine + angle);
    pack<T, V> first, second;
#pragma unroll
    for (int v = 0; v < V; ++v) {
      const C l = C(widen(a.item[v])), r = C(widen(b.item[v]));
      first.item[v] = narrow<T>(l * C(c.item[v]) - r * C(s.item[v]));
      second.item[v] = narrow<T>(r * C(c.item[v]) + l * C(s.item[v]));
    }
    store_pack<V, true>(y + place, first);
    store_pack<V, true>(y + place + half, second);
  }
}
