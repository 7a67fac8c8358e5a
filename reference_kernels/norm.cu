// LayerNorm and RMSNorm (RMS = true: no mean, no bias), forward and backward, a row in registers.
#include "block_reduce.cuh"

template <class T, int THREADS, int V, int ITEMS, bool RMS>
__global__ void norm_forward(const T* __restrict__ x, const T* __restrict__ weight, const T* __restrict__ bias,
                             T* __restrict__ y, compute_t<T>* mean_out, compute_t<T>* rstd_out, index_t rows,
                             index_t cols, float eps) {
  using C = compute_t<T>;
  const index_t row = index_t(blockIdx.x) * blockDim.y + threadIdx.y;
  const index_t limit = row < rows ? cols : 0;
  row_registers<T, THREADS, V, ITEMS> r, w, b;
  r.load(x + row * cols, limit, C(0));
  C mean = C(0), square = C(0);
  if constexpr (!RMS) {
#pragma unroll
    for (int i = 0; i < ITEMS * V; ++i) mean += r.value[i];
    mean = sum_row<THREADS>(mean) / C(cols);
  }
#pragma unroll
  for (int i = 0; i < ITEMS * V; ++i) {
    C d = r.column(i / V) < limit ? r.value[i] - mean : C(0);
    square += d * d;
  }
  const C rstd = C(1) / sqrt(sum_row<THREADS>(square) / C(cols) + C(eps));
  w.load(weight, limit, C(0));
  if constexpr (!RMS) b.load(bias, limit, C(0));
#pragma unroll
  for (int i = 0; i < ITEMS * V; ++i) r.value[i] = (r.value[i] - mean) * rstd * w.value[i] + (RMS ? C(0) : b.value[i]);
  r.store(y + row * cols, limit);
  if (threadIdx.x == 0 && row < rows) {
    if constexpr (!RMS) mean_out[row] = mean;
    rstd_out[row] = rstd;
  }
}

// dx per row; each block walks over rows (the next one is on its way while one is reduced) and keeps its share of dweight and dbias in registers, written as one row of
// (gridDim.x * blockDim.y, cols) partials that sum_partials adds in a fixed order.
template <class T, int THREADS, int V, int ITEMS, bool RMS>
__global__ void __launch_bounds__(THREADS > 32 ? THREADS : 128, THREADS == 256 && sizeof(compute_t<T>) == 4 ? 2 : 1)
norm_backward(const T* __restrict__ dy, const T* __restrict__ x, const T* __restrict__ weight,
                              const compute_t<T>* __restrict__ mean_in, const compute_t<T>* __restrict__ rstd_in,
                              T* __restrict__ dx, compute_t<T>* __restrict__ dweight, compute_t<T>* __restrict__ dbias,
                              index_t rows, index_t cols) {
  using C = compute_t<T>;
  using row_t = row_registers<T, THREADS, V, ITEMS>;
  const index_t slot = index_t(blockIdx.x) * blockDim.y + threadIdx.y, slots = index_t(gridDim.x) * blockDim.y;
  C sum_w[ITEMS * V] = {}, sum_b[ITEMS * V] = {};
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
  constexpr bool BOTH = false;  // with both on their way NVRTC spills there (tests/data/reference/registers.json)
#else
  constexpr bool BOTH = true;
#endif
  pack<T, V> next_g[ITEMS], next_r[ITEMS];
  const auto fetch = [&](index_t row) {
    row_t::fetch(next_g, dy + row * cols, row < rows ? cols : 0);
    if constexpr (BOTH) row_t::fetch(next_r, x + row * cols, row < rows ? cols : 0);
  };
  fetch(slot);
  for (index_t first = index_t(blockIdx.x) * blockDim.y; first < rows; first += slots) {
    const index_t row = first + threadIdx.y;
    const index_t limit = row < rows ? cols : 0;
    row_t g, r;
    g.take(next_g, limit, C(0));
    if constexpr (!BOTH) row_t::fetch(next_r, x + row * cols, limit);
    r.take(next_r, limit, C(0));
    fetch(row + slots);
    const C mean = RMS || row >= rows ? C(0) : mean_in[row], rstd = row < rows ? rstd_in[row] : C(0);
    C dot = C(0), sum = C(0);
#pragma unroll
    for (int i = 0; i < ITEMS * V; ++i) {
      r.value[i] = (r.value[i] - mean) * rstd;
      sum_w[i] += g.value[i] * r.value[i];
      sum_b[i] += g.value[i];
    }
#pragma unroll
    for (int k = 0; k < ITEMS; ++k) {  // the weight again for each row, from L1: its registers hold the next row
      if (row_t::column(k) >= limit) continue;
      const pack<T, V> w = load_pack<V, true>(weight + row_t::column(k));
#pragma unroll
      for (int v = 0; v < V; ++v) {
        const int i = k * V + v;
        g.value[i] *= C(widen(w.item[v]));
        dot += g.value[i] * r.value[i];
        sum += g.value[i];
      }
    }
    if constexpr (RMS) {
      dot = sum_row<THREADS>(dot) / C(cols);
      sum = C(0);
    } else {
      const pair<C> both = reduce_row<THREADS>(pair<C>{dot, sum}, add_op{}, pair<C>{C(0), C(0)});
      dot = both.a / C(cols);
      sum = both.b / C(cols);
    }
#pragma unroll
    for (int i = 0; i < ITEMS * V; ++i) r.value[i] = (g.value[i] - sum - r.value[i] * dot) * rstd;
    r.store(dx + row * cols, limit);
  }
#pragma unroll
  for (int i = 0; i < ITEMS * V; ++i) {
    const index_t column = row_t::column(i / V) + i % V;
    if (row_t::column(i / V) >= cols) continue;
    dweight[slot * cols + column] = sum_w[i];
    if constexpr (!RMS) dbias[slot * cols + column] = sum_b[i];
  }
}

// out[c] = sum over slots of partial[slot][c]; blockDim = (32 columns, SLICES).
template <class T, int SLICES>
__global__ void sum_partials(const compute_t<T>* __restrict__ partial, T* __restrict__ out, index_t slots, index_t cols) {
  using C = compute_t<T>;
  __shared__ C kept[SLICES][32];
  const index_t column = index_t(blockIdx.x) * 32 + threadIdx.x;
  C sum = C(0);
  if (column < cols)
    for (index_t s = threadIdx.y; s < slots; s += SLICES) sum += partial[s * cols + column];
  kept[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y == 0 && column < cols) {
    for (int s = 1; s < SLICES; ++s) sum += kept[s][threadIdx.x];
    out[column] = narrow<T>(sum);
  }
}
