// Softmax and log-softmax. Inner dimension: the row in registers, in shared memory, or (long rows) online with a second
// read, which costs 1.5 times the bytes of one read and one write. Outer dimension: online, one column a thread; it
// reads twice too, since a block's columns do not fit on chip.
#include "block_reduce.cuh"

// Running maximum and sum of exp(x - maximum).
template <class C> struct online {
  C top, sum;
  __device__ void add(C x) {
    C m = x > top ? x : top;
    if (x != x) { sum = x; return; }
    if (m > C(float_of(0xff800000u))) sum = sum * exp(top - m) + exp(x - m);
    top = m;
  }
  __device__ void merge(C other_top, C other_sum) {
    C m = other_top > top ? other_top : top;
    if (m > C(float_of(0xff800000u))) sum = sum * exp(top - m) + other_sum * exp(other_top - m);
    top = m;
  }
};
template <bool LOG, class C> __device__ inline C finish(C x, C top, C sum, C log_sum) {
  if constexpr (LOG) return x - top - log_sum;
  return exp(x - top) / sum;
}

template <class T, int THREADS, int V, int ITEMS, bool LOG>
__global__ void softmax_registers(const T* __restrict__ x, T* __restrict__ y, index_t rows, index_t cols) {
  using C = compute_t<T>;
  const C low = C(float_of(0xff800000u));
  const index_t row = index_t(blockIdx.x) * blockDim.y + threadIdx.y;
  const index_t limit = row < rows ? cols : 0;  // no early return: the shuffles need whole warps
  row_registers<T, THREADS, V, ITEMS> r;
  r.load(x + row * cols, limit, low);
  C top = low, sum = C(0);
#pragma unroll
  for (int i = 0; i < ITEMS * V; ++i) top = max_op{}(top, r.value[i]);
  top = max_row<THREADS>(top);
  C e[ITEMS * V];
#pragma unroll
  for (int i = 0; i < ITEMS * V; ++i) {
    e[i] = r.column(i / V) < limit ? exp(r.value[i] - top) : C(0);
    sum += e[i];
  }
  sum = sum_row<THREADS>(sum);
  const C scale = C(1) / sum, shift = top + log(sum);
#pragma unroll
  for (int i = 0; i < ITEMS * V; ++i) r.value[i] = LOG ? r.value[i] - shift : e[i] * scale;
  r.store(y + row * cols, limit);
}

extern __shared__ __align__(16) unsigned char dynamic_shared[];

template <class T, int THREADS, int V, bool LOG>
__global__ void softmax_shared(const T* __restrict__ x, T* __restrict__ y, index_t rows, index_t cols) {
  using C = compute_t<T>;
  T* kept = reinterpret_cast<T*>(dynamic_shared);
  const index_t base = index_t(blockIdx.x) * cols;
  C top = C(float_of(0xff800000u)), sum = C(0);
  for (index_t c = index_t(threadIdx.x) * V; c < cols; c += THREADS * V) {
    pack<T, V> raw = load_pack<V, true>(x + base + c);
    store_pack<V, true>(kept + c, raw);
#pragma unroll
    for (int v = 0; v < V; ++v) top = max_op{}(top, C(widen(raw.item[v])));
  }
  top = max_row<THREADS>(top);  // each thread reads back only what it wrote: no barrier needed for kept
  for (index_t c = index_t(threadIdx.x) * V; c < cols; c += THREADS * V)
#pragma unroll
    for (int v = 0; v < V; ++v) sum += exp(C(widen(kept[c + v])) - top);
  sum = sum_row<THREADS>(sum);
  const C log_sum = log(sum);
  for (index_t c = index_t(threadIdx.x) * V; c < cols; c += THREADS * V) {
    pack<T, V> out;
#pragma unroll
    for (int v = 0; v < V; ++v) out.item[v] = narrow<T>(finish<LOG>(C(widen(kept[c + v])), top, sum, log_sum));
    store_pack<V, true>(y + base + c, out);
  }
}

template <class T, int THREADS, int V, bool LOG>
__global__ void softmax_online(const T* __restrict__ x, T* __restrict__ y, index_t rows, index_t cols) {
  using C = compute_t<T>;
  const index_t base = index_t(blockIdx.x) * cols;
  online<C> o{C(float_of(0xff800000u)), C(0)};
  for (index_t c = index_t(threadIdx.x) * V; c < cols; c += THREADS * V) {
    pack<T, V> raw = load_pack<V, true>(x + base + c);
#pragma unroll
    for (int v = 0; v < V; ++v) o.add(C(widen(raw.item[v])));
  }
  const C top = max_row<THREADS>(o.top);
  const C sum = sum_row<THREADS>(o.sum * (o.top == top ? C(1) : exp(o.top - top)));
  const C log_sum = log(sum);
  for (index_t c = index_t(threadIdx.x) * V; c < cols; c += THREADS * V) {
    pack<T, V> raw = load_pack<V, true>(x + base + c), out;
#pragma unroll
    for (int v = 0; v < V; ++v) out.item[v] = narrow<T>(finish<LOG>(C(widen(raw.item[v])), top, sum, log_sum));
    store_pack<V, true>(y + base + c, out);
  }
}

// x is (outer, length, inner); blockDim = (32 columns of V, SLICES of the length); inner is a multiple of V.
template <class T, int SLICES, int V, bool LOG>
__global__ void softmax_outer(const T* __restrict__ x, T* __restrict__ y, index_t length, index_t inner) {
  using C = compute_t<T>;
  __shared__ C tops[SLICES][32 * V], sums[SLICES][32 * V];
  const index_t tiles = (inner + 32 * V - 1) / (32 * V);
  const index_t column = (index_t(blockIdx.x) % tiles * 32 + threadIdx.x) * V;
  const index_t base = index_t(blockIdx.x) / tiles * length * inner + column;
  const bool inside = column < inner;
  online<C> o[V];
#pragma unroll
  for (int v = 0; v < V; ++v) o[v] = online<C>{C(float_of(0xff800000u)), C(0)};
  if (inside)
    for (index_t l = threadIdx.y; l < length; l += SLICES) {
      pack<T, V> raw = load_pack<V, true>(x + base + l * inner);
#pragma unroll
      for (int v = 0; v < V; ++v) o[v].add(C(widen(raw.item[v])));
    }
#pragma unroll
  for (int v = 0; v < V; ++v) {
    tops[threadIdx.y][threadIdx.x * V + v] = o[v].top;
    sums[threadIdx.y][threadIdx.x * V + v] = o[v].sum;
  }
  __syncthreads();
  if (!inside) return;
  C log_sum[V];
#pragma unroll
  for (int v = 0; v < V; ++v) {
    o[v] = online<C>{C(float_of(0xff800000u)), C(0)};
    for (int s = 0; s < SLICES; ++s) o[v].merge(tops[s][threadIdx.x * V + v], sums[s][threadIdx.x * V + v]);
    log_sum[v] = log(o[v].sum);
  }
  for (index_t l = threadIdx.y; l < length; l += SLICES) {
    pack<T, V> raw = load_pack<V, true>(x + base + l * inner), out;
#pragma unroll
    for (int v = 0; v < V; ++v)
      out.item[v] = narrow<T>(finish<LOG>(C(widen(raw.item[v])), o[v].top, o[v].sum, log_sum[v]));
    store_pack<V, true>(y + base + l * inner, out);
  }
}
