// AdamW over many tensors in one launch, in place. table: 4 rows of addresses (parameter, gradient, exp_avg,
// exp_avg_sq), one column a tensor; chunks: for each block its tensor and its first element, CHUNK apart.
#include "vector_access.cuh"

template <class T, int V, int CHUNK>
__global__ void __launch_bounds__(512) adamw(const index_t* __restrict__ table, const index_t* __restrict__ sizes,
                                             const index_t* __restrict__ chunks, index_t tensors, float rate,
                                             float beta1, float beta2, float eps, float decay, float correction1,
                                             float root_correction2) {
  const index_t tensor = chunks[2 * index_t(blockIdx.x)], first = chunks[2 * index_t(blockIdx.x) + 1];
  T* p = reinterpret_cast<T*>(table[tensor]) + first;
  const T* g = reinterpret_cast<const T*>(table[tensors + tensor]) + first;
  float* m = reinterpret_cast<float*>(table[2 * tensors + tensor]) + first;
  float* s = reinterpret_cast<float*>(table[3 * tensors + tensor]) + first;
  const index_t left = sizes[tensor] - first, count = left < CHUNK ? left : CHUNK;
  auto update = [&](T& parameter, T gradient, float& average, float& square) {
    const float d = widen(gradient);
    float w = widen(parameter) * (1.f - rate * decay);
    average = average + (1.f - beta1) * (d - average);
    square = beta2 * square + (1.f - beta2) * d * d;
    w -= rate / correction1 * average / (sqrtf(square) / root_correction2 + eps);
    parameter = narrow<T>(w);
  };
  const index_t addresses = table[tensor] | table[tensors + tensor] | table[2 * tensors + tensor] | table[3 * tensors + tensor];
  const bool aligned = addresses % 16 == 0;
  const index_t whole = aligned ? count / V * V : 0;
  for (index_t i = index_t(threadIdx.x) * V; i < whole; i += index_t(blockDim.x) * V) {
    pack<T, V> a = load_pack<V, true>(p + i), b = load_pack<V, true>(g + i);
    pack<float, V> c = load_pack<V, true>(m + i), d = load_pack<V, true>(s + i);
#pragma unroll
    for (int v = 0; v < V; ++v) update(a.item[v], b.item[v], c.item[v], d.item[v]);
    store_pack<V, true>(p + i, a);
    store_pack<V, true>(m + i, c);
    store_pack<V, true>(s + i, d);
  }
  for (index_t i = whole + threadIdx.x; i < count; i += blockDim.x) update(p[i], g[i], m[i], s[i]);
}
