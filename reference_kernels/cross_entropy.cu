// loss[row] = logsumexp(logits[row]) - logits[row][target[row]]: the logits are read once, however long the row.
#include "block_reduce.cuh"

template <class T, int THREADS, int V>
__global__ void __launch_bounds__(THREADS) cross_entropy(const T* __restrict__ logits,
                                                         const long long* __restrict__ target,
                                                         compute_t<T>* __restrict__ loss, index_t cols) {
  using C = compute_t<T>;
  constexpr int UNROLL = 4;
  const index_t base = index_t(blockIdx.x) * cols, step = THREADS * V;
  C top = C(float_of(0xff800000u)), sum = C(0);
  for (index_t c = index_t(threadIdx.x) * V; c < cols; c += UNROLL * step) {
    pack<T, V> raw[UNROLL];
    C high = top;
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
      if (c + u * step >= cols) continue;
      raw[u] = load_pack<V, true>(logits + base + c + u * step);
    }
#pragma unroll
    for (int u = 0; u < UNROLL; ++u)
      if (c + u * step < cols)
#pragma unroll
        for (int v = 0; v < V; ++v) high = max_op{}(high, C(widen(raw[u].item[v])));
    if (!(high > C(float_of(0xff800000u))) && high == high) continue;
    sum *= exp(top - high);
#pragma unroll
    for (int u = 0; u < UNROLL; ++u)
      if (c + u * step < cols)
#pragma unroll
        for (int v = 0; v < V; ++v) sum += exp(C(widen(raw[u].item[v])) - high);
    top = high;
  }
  const C row_top = max_row<THREADS>(top);
  sum = sum_row<THREADS>(sum * (top == row_top ? C(1) : exp(top - row_top)));
  if (threadIdx.x == 0) loss[blockIdx.x] = row_top + log(sum) - C(widen(logits[base + target[blockIdx.x]]));
}
