// y (cols, rows) = x (rows, cols) transposed and cast, through a padded tile of 64 x 64 in shared memory.
// V elements of x and W of y an access; cols is a multiple of V, rows of W.
#include "vector_access.cuh"

template <class T, class U, int V, int W>
__global__ void __launch_bounds__(256) transpose_cast(const T* __restrict__ x, U* __restrict__ y, index_t rows,
                                                      index_t cols) {
  constexpr int TILE = 64;
  __shared__ U tile[TILE][TILE + (sizeof(U) == 2 ? 2 : 1)];  // [column][row]
  const index_t tiles = (cols + TILE - 1) / TILE;
  const index_t row0 = index_t(blockIdx.x) / tiles * TILE, column0 = index_t(blockIdx.x) % tiles * TILE;
  for (int i = threadIdx.x; i < TILE * TILE / V; i += 256) {
    const int r = i / (TILE / V), c = i % (TILE / V) * V;
    if (row0 + r >= rows || column0 + c >= cols) continue;
    const pack<T, V> in = load_pack<V, true>(x + (row0 + r) * cols + column0 + c);
#pragma unroll
    for (int v = 0; v < V; ++v) tile[c + v][r] = narrow<U>(widen(in.item[v]));
  }
  __syncthreads();
  for (int i = threadIdx.x; i < TILE * TILE / W; i += 256) {
    const int c = i / (TILE / W), r = i % (TILE / W) * W;
    if (row0 + r >= rows || column0 + c >= cols) continue;
    pack<U, W> out;
#pragma unroll
    for (int w = 0; w < W; ++w) out.item[w] = tile[c][r + w];
    store_pack<W, true>(y + (column0 + c) * rows + row0 + r, out);
  }
}
