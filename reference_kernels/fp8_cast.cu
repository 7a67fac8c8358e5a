// y = fp8(x * scale), saturating, and amax = max |x| in the same read; the last block finishes the maximum.
#include "block_reduce.cuh"

template <class T, int THREADS, int V, int UNROLL>
__global__ void __launch_bounds__(THREADS) fp8_cast(const T* __restrict__ x, const float* __restrict__ scale,
                                                    float8_e4m3* __restrict__ y, float* __restrict__ amax,
                                                    float* partial, unsigned* ticket, index_t n) {
  const index_t step = global_threads(), packs = n / V;
  const float factor = *scale;
  float top = 0.f;
  for (index_t first = global_thread(); first < packs; first += UNROLL * step) {
    pack<T, V> raw[UNROLL];
#pragma unroll
    for (int u = 0; u < UNROLL; ++u)
      if (first + u * step < packs) raw[u] = load_pack<V, true>(x + (first + u * step) * V);
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
      if (first + u * step >= packs) continue;
      pack<float8_e4m3, V> out;
#pragma unroll
      for (int v = 0; v < V; ++v) {
        const float value = widen(raw[u].item[v]);
        top = max_op{}(top, fabsf(value));
        out.item[v] = narrow<float8_e4m3>(value * factor);
      }
      store_pack<V, true>(y + (first + u * step) * V, out);
    }
  }
  for (index_t e = packs * V + global_thread(); e < n; e += step) {
    const float value = widen(x[e]);
    top = max_op{}(top, fabsf(value));
    y[e] = narrow<float8_e4m3>(value * factor);
  }
  top = max_row<THREADS>(top);
  __shared__ bool last;
  if (threadIdx.x == 0) {
    partial[blockIdx.x] = top;
    __threadfence();
    last = atomicAdd(ticket, 1u) == gridDim.x - 1;
  }
  __syncthreads();
  if (!last) return;
  __threadfence();
  top = 0.f;
  for (unsigned b = threadIdx.x; b < gridDim.x; b += THREADS) top = max_op{}(top, *(volatile float*)(partial + b));
  top = max_row<THREADS>(top);
  if (threadIdx.x == 0) { *amax = top; *ticket = 0; }
}
