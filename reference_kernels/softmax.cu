// Softmax and log-softmax. Inner dimension: the row in registers, in shared memory, or (long rows) online with a second
// read, which costs 1.5 times the bytes of one read and one write. Outer dimension: a tile of columns in shared memory,
// or (long columns) online with a second read. The forms in shared memory walk over rows or tiles: while the results of
// one leave, the next one comes in at the same places, so that reads and writes overlap with one block on an SM.
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
// The same for N values at a time: one rescaling for all of them. A NaN makes the maximum NaN, and with it the sum.
template <class C, int N> struct group {
  C item[N];
  __device__ void add_to(C& top, C& sum) const {
    C high = top;
#pragma unroll
    for (int n = 0; n < N; ++n) high = max_op{}(high, item[n]);
    if (high == C(float_of(0xff800000u))) return;
    sum *= exp(top - high);
#pragma unroll
    for (int n = 0; n < N; ++n) sum += exp(item[n] - high);
    top = high;
  }
};
template <class C> __device__ inline void merge_pairs(C& top, C& sum, C other_top, C other_sum) {
  const C high = max_op{}(top, other_top);
  if (high == C(float_of(0xff800000u))) return;
  sum = sum * exp(top - high) + other_sum * exp(other_top - high);
  top = high;
}
template <bool LOG, class C> __device__ inline C finish(C x, C top, C sum, C log_sum) {
  if constexpr (LOG) return x - top - log_sum;
  return exp(x - top) / sum;
}

// The same with what a row needs once: its logarithm, or a product in place of a division for each element.
template <bool LOG, class C> __device__ inline C last_of(C sum) {
  if constexpr (LOG) return log(sum);
  return C(1) / sum;
}
template <bool LOG, class C> __device__ inline C finish_with(C x, C top, C last) {
  if constexpr (LOG) return x - top - last;
  return exp(x - top) * last;
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

// Packs of one thread at places first, first + step, ...: UNROLL of them are on their way while the ones before are used.
template <class T, int V, int UNROLL> __device__ inline void fetch(pack<T, V>* out, const T* from, index_t place,
                                                                   index_t end, index_t step, index_t stride) {
#pragma unroll
  for (int u = 0; u < UNROLL; ++u)
    if (place + u * step < end) out[u] = load_pack<V, true>(from + (place + u * step) * stride);
}

// Every thread reads back only what it wrote to shared memory: no barrier is needed for it.
template <class T, int THREADS, int V, bool LOG>
__global__ void __launch_bounds__(THREADS) softmax_shared(const T* __restrict__ x, T* __restrict__ y, index_t rows,
                                                          index_t cols) {
  using C = compute_t<T>;
  constexpr int UNROLL = 2;
  const C low = C(float_of(0xff800000u));
  T* kept = reinterpret_cast<T*>(dynamic_shared);
  const index_t first = index_t(threadIdx.x) * V, step = THREADS * V;
  pack<T, V> raw[UNROLL], now[UNROLL];
  fetch<T, V, UNROLL>(raw, x + blockIdx.x * cols, first, cols, step, 1);
  C row_top = low, row_last = C(0);
  for (index_t row = blockIdx.x;; row += gridDim.x) {
    const bool coming = row < rows, leaving = row >= gridDim.x;
    C top = low, sum = C(0);
    for (index_t c = first; c < cols; c += UNROLL * step) {
#pragma unroll
      for (int u = 0; u < UNROLL; ++u) now[u] = raw[u];
      const bool more = c + UNROLL * step < cols;
      const index_t next = more ? row : row + gridDim.x;
      if (next < rows) fetch<T, V, UNROLL>(raw, x + next * cols, more ? c + UNROLL * step : first, cols, step, 1);
#pragma unroll
      for (int u = 0; u < UNROLL; ++u) {
        const index_t place = c + u * step;
        if (place >= cols) continue;
        if (leaving) {
          const pack<T, V> old = load_pack<V, true>(kept + place);
          pack<T, V> out;
#pragma unroll
          for (int v = 0; v < V; ++v)
            out.item[v] = narrow<T>(finish_with<LOG>(C(widen(old.item[v])), row_top, row_last));
          store_pack<V, true>(y + (row - gridDim.x) * cols + place, out);
        }
        if (!coming) continue;
        store_pack<V, true>(kept + place, now[u]);
        group<C, V> values;
#pragma unroll
        for (int v = 0; v < V; ++v) values.item[v] = C(widen(now[u].item[v]));
        values.add_to(top, sum);
      }
    }
    if (!coming) break;
    row_top = max_row<THREADS>(top);
    row_last = last_of<LOG>(sum_row<THREADS>(sum * (top == row_top ? C(1) : exp(top - row_top))));
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

// The same with a tile of 64 bytes of columns and the whole length in shared memory; V columns a thread, blockDim =
// THREADS, of which COLUMNS / V lie beside each other. inner is a multiple of V; tiles = outer * ceil(inner / COLUMNS).
template <class T, int THREADS, int V, bool LOG>
__global__ void __launch_bounds__(THREADS) softmax_outer_shared(const T* __restrict__ x, T* __restrict__ y,
                                                                index_t tiles, index_t length, index_t inner) {
  using C = compute_t<T>;
  constexpr int UNROLL = sizeof(T) == 4 ? 4 : 2, COLUMNS = 64 / sizeof(T);
  constexpr int ACROSS = COLUMNS / V, SLICES = THREADS / ACROSS;
  constexpr int PARTS = THREADS / 32;
  static_assert(ACROSS <= 32 && PARTS <= 32, "a warp holds whole rows of the tile and sums up all warps");
  __shared__ C tops[PARTS][COLUMNS], sums[PARTS][COLUMNS];
  const C low = C(float_of(0xff800000u));
  T* kept = reinterpret_cast<T*>(dynamic_shared);
  const int across = threadIdx.x % ACROSS, slice = threadIdx.x / ACROSS;
  const index_t per_outer = (inner + COLUMNS - 1) / COLUMNS;
  pack<T, V> raw[UNROLL], now[UNROLL];
  C all_top[V], all_last[V];
  const auto column_of = [&](index_t tile) { return tile % per_outer * COLUMNS + across * V; };
  const auto base_of = [&](index_t tile) { return tile / per_outer * length * inner + column_of(tile); };
  const auto end_of = [&](index_t tile) { return tile < tiles && column_of(tile) < inner ? length : 0; };
  fetch<T, V, UNROLL>(raw, x + base_of(blockIdx.x), slice, end_of(blockIdx.x), SLICES, inner);
  for (index_t tile = blockIdx.x;; tile += gridDim.x) {
    const index_t last = tile - gridDim.x, next = tile + gridDim.x;
    const index_t coming = end_of(tile), leaving = last >= 0 ? end_of(last) : 0;
    const index_t from = base_of(tile), from_next = base_of(next), to = last >= 0 ? base_of(last) : 0;
    C top[V], sum[V];
#pragma unroll
    for (int v = 0; v < V; ++v) { top[v] = low; sum[v] = C(0); }
    for (index_t l = slice; l < length; l += UNROLL * SLICES) {
#pragma unroll
      for (int u = 0; u < UNROLL; ++u) now[u] = raw[u];
      if (l + UNROLL * SLICES < length)
        fetch<T, V, UNROLL>(raw, x + from, l + UNROLL * SLICES, coming, SLICES, inner);
      else
        fetch<T, V, UNROLL>(raw, x + from_next, slice, end_of(next), SLICES, inner);
      group<C, UNROLL> values[V];
#pragma unroll
      for (int u = 0; u < UNROLL; ++u) {
        const index_t place = l + u * SLICES;
        T* const own = kept + place * COLUMNS + across * V;
        if (place < leaving) {
          const pack<T, V> old = load_pack<V, true>(own);
          pack<T, V> out;
#pragma unroll
          for (int v = 0; v < V; ++v)
            out.item[v] = narrow<T>(finish_with<LOG>(C(widen(old.item[v])), all_top[v], all_last[v]));
          store_pack<V, true>(y + to + place * inner, out);
        }
        if (place < coming) store_pack<V, true>(own, now[u]);
#pragma unroll
        for (int v = 0; v < V; ++v) values[v].item[u] = place < coming ? C(widen(now[u].item[v])) : low;
      }
#pragma unroll
      for (int v = 0; v < V; ++v) values[v].add_to(top[v], sum[v]);
    }
    if (tile >= tiles) break;
#pragma unroll
    for (int v = 0; v < V; ++v)
#pragma unroll
      for (int step = 16; step >= ACROSS; step /= 2) {
        const C other = __shfl_xor_sync(0xffffffffu, top[v], step);
        merge_pairs(top[v], sum[v], other, __shfl_xor_sync(0xffffffffu, sum[v], step));
      }
    __syncthreads();  // the last tile's partials have been read
    if (threadIdx.x % 32 < ACROSS)
#pragma unroll
      for (int v = 0; v < V; ++v) {
        tops[threadIdx.x / 32][across * V + v] = top[v];
        sums[threadIdx.x / 32][across * V + v] = sum[v];
      }
    __syncthreads();
    for (int c = threadIdx.x / 32; c < COLUMNS; c += THREADS / 32) {  // a warp a column
      C one = threadIdx.x % 32 < PARTS ? tops[threadIdx.x % 32][c] : low;
      C part = threadIdx.x % 32 < PARTS ? sums[threadIdx.x % 32][c] : C(0);
#pragma unroll
      for (int step = 16; step > 0; step /= 2) {
        const C other = __shfl_xor_sync(0xffffffffu, one, step);
        merge_pairs(one, part, other, __shfl_xor_sync(0xffffffffu, part, step));
      }
      if (threadIdx.x % 32 == 0) { tops[0][c] = one; sums[0][c] = part; }
    }
    __syncthreads();
#pragma unroll
    for (int v = 0; v < V; ++v) {
      all_top[v] = tops[0][across * V + v];
      all_last[v] = last_of<LOG>(sums[0][across * V + v]);
    }
  }
}
