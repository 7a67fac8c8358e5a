// y[j][i] = x[j][i] - mean over j, for COUNT rows j: fused, all COUNT values of a column are alive at once. With two
// blocks of 1024 threads on an SM the compiler has 32 registers a thread and spills; with five of 128 (96 registers) not.
#include "vector_access.cuh"

template <class T, int COUNT, int THREADS, int BLOCKS>
__global__ void __launch_bounds__(THREADS, BLOCKS) centre_columns(const T* __restrict__ x, T* __restrict__ y, index_t n) {
  using C = compute_t<T>;
  for (index_t i = global_thread(); i < n; i += global_threads()) {
    C kept[COUNT], sum = C(0);
#pragma unroll
    for (int j = 0; j < COUNT; ++j) kept[j] = C(widen(x[index_t(j) * n + i]));
#pragma unroll
    for (int j = 0; j < COUNT; ++j) sum += kept[j];
#pragma unroll
    for (int j = 0; j < COUNT; ++j) y[index_t(j) * n + i] = narrow<T>(kept[j] - sum / C(COUNT));
  }
}
