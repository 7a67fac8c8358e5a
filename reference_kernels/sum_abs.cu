// sum(|x|) of all elements: the elementwise producer lives in the reduction's loop, x is read once.
// FINISH 0: each block adds its partial to *out with an atomic (zero it first; order of additions varies).
// FINISH 1: partials go to memory and the last block sums them in a fixed order: same bits on every run.
#include <cub/block/block_reduce.cuh>
#include "vector_access.cuh"

template <class T, int FINISH> struct result { using type = T; };
template <class T> struct result<T, 0> { using type = compute_t<T>; };

template <class T, int THREADS, int V, int UNROLL, int FINISH>
__global__ void __launch_bounds__(THREADS) sum_abs(const T* __restrict__ x, typename result<T, FINISH>::type* out,
                                                   compute_t<T>* partial, unsigned* ticket, index_t n) {
  using C = compute_t<T>;
  using Reduce = cub::BlockReduce<C, THREADS>;
  __shared__ typename Reduce::TempStorage storage;
  C sum[UNROLL] = {};
  const index_t packs = n / V, stride = global_threads();
  index_t i = global_thread();
  for (; i + (UNROLL - 1) * stride < packs; i += UNROLL * stride) {
    pack<T, V> raw[UNROLL];
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) raw[u] = load_pack<V, true>(x + (i + u * stride) * V);
#pragma unroll
    for (int u = 0; u < UNROLL; ++u)
#pragma unroll
      for (int v = 0; v < V; ++v) { C a = widen(raw[u].item[v]); sum[u] += a < C(0) ? -a : a; }
  }
  for (; i < packs; i += stride) {
    pack<T, V> raw = load_pack<V, true>(x + i * V);
#pragma unroll
    for (int v = 0; v < V; ++v) { C a = widen(raw.item[v]); sum[0] += a < C(0) ? -a : a; }
  }
  for (index_t t = packs * V + global_thread(); t < n; t += stride) { C a = widen(x[t]); sum[0] += a < C(0) ? -a : a; }
#pragma unroll
  for (int u = 1; u < UNROLL; ++u) sum[0] += sum[u];
  C block = Reduce(storage).Sum(sum[0]);
  if constexpr (FINISH == 0) {
    if (threadIdx.x == 0) atomicAdd(out, block);
  } else {
    __shared__ bool last;
    if (threadIdx.x == 0) {
      partial[blockIdx.x] = block;
      __threadfence();
      last = atomicAdd(ticket, 1u) == gridDim.x - 1;
    }
    __syncthreads();
    if (!last) return;
    __threadfence();
    C total = C(0);
    for (unsigned b = threadIdx.x; b < gridDim.x; b += THREADS) total += *(volatile C*)(partial + b);
    total = Reduce(storage).Sum(total);
    if (threadIdx.x == 0) { *out = narrow<T>(total); *ticket = 0; }
  }
}
