// Many small tasks (one row each: y = x / sum(|x|)). QUEUE: blocks that stay on the GPU take the next task from a
// counter until none is left; otherwise each launch does the one task that it is given.
#include "block_reduce.cuh"

template <class T, int THREADS> __device__ inline void normalise(const T* x, T* y, index_t cols) {
  using C = compute_t<T>;
  C sum = C(0);
  for (index_t c = threadIdx.x; c < cols; c += THREADS) { const C a = widen(x[c]); sum += a < C(0) ? -a : a; }
  sum = sum_row<THREADS>(sum);
  for (index_t c = threadIdx.x; c < cols; c += THREADS) y[c] = narrow<T>(C(widen(x[c])) / sum);
}

template <class T, int THREADS, bool QUEUE>
__global__ void __launch_bounds__(THREADS) work_queue(const T* __restrict__ x, T* __restrict__ y, index_t first,
                                                      index_t tasks, index_t cols, int* queue) {
  if constexpr (!QUEUE) {
    normalise<T, THREADS>(x + first * cols, y + first * cols, cols);
  } else {
    __shared__ index_t next;
    while (true) {
      __syncthreads();  // all have read the last task's number
      if (threadIdx.x == 0) next = atomicAdd(queue, 1);
      __syncthreads();
      const index_t task = next;
      if (task >= tasks) break;
      normalise<T, THREADS>(x + task * cols, y + task * cols, cols);
    }
    if (threadIdx.x == 0 && atomicAdd(queue + 1, 1) == int(gridDim.x) - 1) {
      queue[0] = 0;  // the last block to leave puts the counters back
      queue[1] = 0;
    }
  }
}
