// y (cols, rows) = x (rows, cols) transposed and cast, through a padded tile of 64 x 64 in shared memory.
// V elements of x and W of y an access; cols is a multiple of V, rows of W. A thread reads the same columns of as many
// rows as fit in a word of y, so that shared memory is written and read in whole words without bank conflicts.
#include "vector_access.cuh"

template <class U, int N> union word { U item[N]; unsigned bits[sizeof(U) * N / 4]; };

template <class T, class U, int V, int W>
__global__ void __launch_bounds__(256) transpose_cast(const T* __restrict__ x, U* __restrict__ y, index_t rows,
                                                      index_t cols) {
  constexpr int TILE = 64, N = sizeof(U) < 4 ? 4 / sizeof(U) : 1, WORDS = TILE / N;
  constexpr int ACROSS = TILE / V, FEW = ACROSS < 8 ? ACROSS : 8;  // packs of a tile's row; of them in a warp
  constexpr int UNITS = ACROSS * WORDS, ROUNDS = UNITS / 256 < 1 ? 1 : UNITS / 256, BATCH = ROUNDS < 4 / N ? ROUNDS : 4 / N;
  using cell = word<U, N>;
  __shared__ cell tile[TILE][WORDS + 1];  // [column][row / N]
  const index_t tiles = (cols + TILE - 1) / TILE;
  const index_t row0 = index_t(blockIdx.x) / tiles * TILE, column0 = index_t(blockIdx.x) % tiles * TILE;
  for (int first = threadIdx.x; first < UNITS; first += 256 * BATCH) {
    pack<T, V> in[BATCH][N];
#pragma unroll
    for (int b = 0; b < BATCH; ++b) {
      const int i = first + 256 * b, group = i / (FEW * WORDS);
      const int c = (group * FEW + i % FEW) * V, r = i / FEW % WORDS * N;
#pragma unroll
      for (int n = 0; n < N; ++n)
        if (i < UNITS && row0 + r + n < rows && column0 + c < cols)
          in[b][n] = load_pack<V, true>(x + (row0 + r + n) * cols + column0 + c);
    }
#pragma unroll
    for (int b = 0; b < BATCH; ++b) {
      const int i = first + 256 * b, group = i / (FEW * WORDS);
      const int c = (group * FEW + i % FEW) * V, r = i / FEW % WORDS;
      if (i >= UNITS) continue;
#pragma unroll
      for (int v = 0; v < V; ++v) {
        cell out;
#pragma unroll
        for (int n = 0; n < N; ++n) out.item[n] = narrow<U>(widen(in[b][n].item[v]));
        tile[c + v][r] = out;
      }
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < TILE * TILE / W; i += 256) {
    const int c = i / (TILE / W), r = i % (TILE / W) * W;
    if (row0 + r >= rows || column0 + c >= cols) continue;
    pack<U, W> out;
    if constexpr (W >= N) {
#pragma unroll
      for (int w = 0; w < W / N; ++w) {
        const cell found = tile[c][r / N + w];
#pragma unroll
        for (int n = 0; n < N; ++n) out.item[w * N + n] = found.item[n];
      }
    } else {
#pragma unroll
      for (int w = 0; w < W; ++w) out.item[w] = tile[c][(r + w) / N].item[(r + w) % N];
    }
    store_pack<W, true>(y + (column0 + c) * rows + row0 + r, out);
  }
}
