// Enough of CUDA C++ to run one block after the other on CPU threads: tests check kernels where there is no GPU.
#include <math.h>
#include <atomic>
#include <barrier>
#include <cstdio>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>
#define HOST_EMULATION
#define __device__
#define __global__
#define __shared__ static
#define __launch_bounds__(...)
#define __align__(n) alignas(n)
struct dim3 { unsigned x = 1, y = 1, z = 1; };
static thread_local dim3 threadIdx, blockIdx;
static dim3 blockDim, gridDim;
static std::unique_ptr<std::barrier<>> block_barrier;
static std::vector<std::unique_ptr<std::barrier<>>> warp_barriers;
static std::recursive_mutex atomics;
static unsigned linear_thread() { return threadIdx.x + blockDim.x * threadIdx.y; }
static void __syncthreads() { block_barrier->arrive_and_wait(); }
static void __syncwarp(unsigned = 0xffffffffu) { warp_barriers[linear_thread() / 32]->arrive_and_wait(); }
static void __threadfence() {}
template <class T> T __shfl_xor_sync(unsigned, T value, int step) {
  static T slot[1024];
  slot[linear_thread()] = value;
  __syncwarp();
  T out = slot[linear_thread() ^ step];
  __syncwarp();
  return out;
}
template <class T> T __shfl_sync(unsigned, T value, int lane) {
  static T slot[1024];
  slot[linear_thread()] = value;
  __syncwarp();
  T out = slot[linear_thread() / 32 * 32 + lane];
  __syncwarp();
  return out;
}
template <class T, class U> T atomicAdd(T* p, U v) { std::lock_guard g(atomics); T old = *p; *p += v; return old; }
template <class T, class U> T atomicMax(T* p, U v) { std::lock_guard g(atomics); T old = *p; if (T(v) > old) *p = v; return old; }
template <class T, class U> T atomicExch(T* p, U v) { std::lock_guard g(atomics); T old = *p; *p = v; return old; }
static float rsqrtf(float a) { return 1.f / sqrtf(a); }
static unsigned __umulhi(unsigned a, unsigned b) { return unsigned((unsigned long long)a * b >> 32); }
namespace cub {
template <class T, int THREADS> struct BlockReduce {
  struct TempStorage { T item[THREADS]; };
  TempStorage& storage;
  explicit BlockReduce(TempStorage& s) : storage(s) {}
  T Sum(T v) {
    __syncthreads();
    storage.item[threadIdx.x] = v;
    __syncthreads();
    T sum = T(0);
    for (int i = 0; i < THREADS; ++i) sum += storage.item[i];
    __syncthreads();
    return sum;
  }
};
}  // namespace cub
template <class... A, std::size_t... I>
static void call_kernel(void (*kernel)(A...), void** args, std::index_sequence<I...>) {
  kernel(*reinterpret_cast<std::remove_cv_t<A>*>(args[I])...);
}
template <class... A> static void run_kernel(void (*kernel)(A...), void** args, const unsigned* grid, const unsigned* block) {
  gridDim = {grid[0], grid[1], grid[2]};
  blockDim = {block[0], block[1], block[2]};
  const unsigned threads = block[0] * block[1];
  block_barrier = std::make_unique<std::barrier<>>(threads);
  warp_barriers.clear();
  for (unsigned first = 0; first < threads; first += 32)
    warp_barriers.push_back(std::make_unique<std::barrier<>>(threads - first < 32 ? threads - first : 32));
  auto work = [&](unsigned t) {
    threadIdx = {t % block[0], t / block[0], 0};
    for (unsigned y = 0; y < grid[1]; ++y)
      for (unsigned x = 0; x < grid[0]; ++x) {
        blockIdx = {x, y, 0};
        call_kernel(kernel, args, std::index_sequence_for<A...>{});
        if (threads > 1) block_barrier->arrive_and_wait();
      }
  };
  if (threads == 1) return work(0);
  std::vector<std::thread> pool;
  for (unsigned t = 0; t < threads; ++t) pool.emplace_back(work, t);
  for (auto& t : pool) t.join();
}
