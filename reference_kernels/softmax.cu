// Softmax and log-softmax. Inner dimension: the row in registers, in shared memory, or (long rows) online with a second
// read, which costs 1.5 times the bytes of one read and one write. The form in shared memory walks over rows: while the
// results of one leave, the next one comes in at the same places, so that reads and writes overlap with one block on an
// SM. Outer dimension: online, with the second read from the L2 cache.
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

// How long the L2 cache should keep what an access touches: as usual, until it is read again, or not at all.
enum cached { USUAL, AGAIN, LAST };
template <int V, cached USE, class T> __device__ inline pack<T, V> load_cached(const T* p) {
#ifndef HOST_EMULATION
  if constexpr (USE != USUAL && sizeof(T) * V == 16) {
    pack<T, V> out;
    unsigned* o = reinterpret_cast<unsigned*>(&out);
    if constexpr (USE == AGAIN) {
      unsigned long long policy;
      asm volatile("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
      asm volatile("ld.global.L1::no_allocate.L2::cache_hint.v4.b32 {%0, %1, %2, %3}, [%4], %5;"
                   : "=r"(o[0]), "=r"(o[1]), "=r"(o[2]), "=r"(o[3]) : "l"(p), "l"(policy));
    } else {
      asm volatile("ld.global.cs.v4.b32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(o[0]), "=r"(o[1]), "=r"(o[2]), "=r"(o[3]) : "l"(p));
    }
    return out;
  }
#endif
  return load_pack<V, true>(p);
}
template <int V, class T> __device__ inline void store_last(T* p, const pack<T, V>& in) {
#ifndef HOST_EMULATION
  if constexpr (sizeof(T) * V == 16) {
    const unsigned* i = reinterpret_cast<const unsigned*>(&in);
    asm volatile("st.global.cs.v4.b32 [%0], {%1, %2, %3, %4};" :: "l"(p), "r"(i[0]), "r"(i[1]), "r"(i[2]), "r"(i[3])
                 : "memory");
    return;
  }
#endif
  store_pack<V, true>(p, in);
}

// Packs of one thread at places first, first + step, ...: UNROLL of them are on their way while the ones before are used.
template <class T, int V, int UNROLL, cached USE = USUAL>
__device__ inline void fetch(pack<T, V>* out, const T* from, index_t place, index_t end, index_t step, index_t stride) {
#pragma unroll
  for (int u = 0; u < UNROLL; ++u)
    if (place + u * step < end) out[u] = load_cached<V, USE>(from + (place + u * step) * stride);
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

// Outer dimension: a block takes ACROSS * V columns (x) of one part of the length (y). It reads them twice, the second
// time from the L2 cache: the columns of all blocks at work fit there. PHASE 1 leaves the maximum and sum of each part
// and column, PHASE 2 puts the parts together and writes; PHASE 0 does both in one launch, with one part. V divides inner.
template <class T, int ACROSS, int SLICES, int V, bool LOG, int PHASE>
__global__ void __launch_bounds__(ACROSS * SLICES) softmax_outer(const T* __restrict__ x, T* __restrict__ y,
                                                                 index_t length, index_t inner, compute_t<T>* part_tops,
                                                                 compute_t<T>* part_sums) {
  using C = compute_t<T>;
  constexpr int UNROLL = V * sizeof(C) < 32 ? 4 : 2, COLUMNS = ACROSS * V;
  constexpr int WARPS = ACROSS * SLICES / 32;
  static_assert(ACROSS <= 32 && WARPS >= 1 && WARPS <= 32, "a warp holds whole rows of the tile and sums up all warps");
  __shared__ C tops[WARPS][COLUMNS], sums[WARPS][COLUMNS];
  const C low = C(float_of(0xff800000u));
  const int across = threadIdx.x % ACROSS, slice = threadIdx.x / ACROSS, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const index_t tiles = (inner + COLUMNS - 1) / COLUMNS, outer = blockIdx.x / tiles, outers = gridDim.x / tiles;
  const index_t column = blockIdx.x % tiles * COLUMNS + across * V, base = outer * length * inner + column;
  const index_t per_part = (length + gridDim.y - 1) / gridDim.y, begin = blockIdx.y * per_part;
  const index_t last = begin + per_part < length ? begin + per_part : length, end = column < inner ? last : 0;
  C top[V], sum[V];
#pragma unroll
  for (int v = 0; v < V; ++v) { top[v] = low; sum[v] = C(0); }
  if constexpr (PHASE == 2) {
    if (column < inner)
      for (index_t part = slice; part < gridDim.y; part += SLICES)
#pragma unroll
        for (int v = 0; v < V; ++v) {
          const index_t place = (part * outers + outer) * inner + column + v;
          merge_pairs(top[v], sum[v], part_tops[place], part_sums[place]);
        }
  } else {
    for (index_t l = begin + slice; l < end; l += UNROLL * SLICES) {
      pack<T, V> raw[UNROLL];
      fetch<T, V, UNROLL, AGAIN>(raw, x + base, l, end, SLICES, inner);
#pragma unroll
      for (int v = 0; v < V; ++v) {
        group<C, UNROLL> values;
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) values.item[u] = l + u * SLICES < end ? C(widen(raw[u].item[v])) : low;
        values.add_to(top[v], sum[v]);
      }
    }
  }
#pragma unroll
  for (int v = 0; v < V; ++v)
#pragma unroll
    for (int step = 16; step >= ACROSS; step /= 2) {
      const C other = __shfl_xor_sync(0xffffffffu, top[v], step);
      merge_pairs(top[v], sum[v], other, __shfl_xor_sync(0xffffffffu, sum[v], step));
    }
  if (lane < ACROSS)
#pragma unroll
    for (int v = 0; v < V; ++v) { tops[warp][across * V + v] = top[v]; sums[warp][across * V + v] = sum[v]; }
  __syncthreads();
  for (int c = warp; c < COLUMNS; c += WARPS) {  // a warp a column
    C one = lane < WARPS ? tops[lane][c] : low, all = lane < WARPS ? sums[lane][c] : C(0);
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
      const C other = __shfl_xor_sync(0xffffffffu, one, step);
      merge_pairs(one, all, other, __shfl_xor_sync(0xffffffffu, all, step));
    }
    if (lane == 0) { tops[0][c] = one; sums[0][c] = all; }
  }
  __syncthreads();
#pragma unroll
  for (int v = 0; v < V; ++v) { top[v] = tops[0][across * V + v]; sum[v] = sums[0][across * V + v]; }
  if constexpr (PHASE == 1) {
    if (slice == 0 && column < inner)
#pragma unroll
      for (int v = 0; v < V; ++v) {
        const index_t place = (index_t(blockIdx.y) * outers + outer) * inner + column + v;
        part_tops[place] = top[v];
        part_sums[place] = sum[v];
      }
    return;
  }
#pragma unroll
  for (int v = 0; v < V; ++v) sum[v] = last_of<LOG>(sum[v]);
  for (index_t l = begin + slice; l < end; l += UNROLL * SLICES) {
    pack<T, V> raw[UNROLL];
    fetch<T, V, UNROLL, LAST>(raw, x + base, l, end, SLICES, inner);
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
      if (l + u * SLICES >= end) continue;
      pack<T, V> out;
#pragma unroll
      for (int v = 0; v < V; ++v) out.item[v] = narrow<T>(finish_with<LOG>(C(widen(raw[u].item[v])), top[v], sum[v]));
      store_last<V>(y + base + (l + u * SLICES) * inner, out);
    }
  }
}
