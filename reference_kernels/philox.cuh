// Philox4x32-10: random words as a function of a seed and a position alone, whatever the launch geometry.
#pragma once
#include "vector_access.cuh"

struct words { unsigned item[4]; };

__device__ inline words philox(unsigned long long counter, unsigned long long seed) {
  unsigned c0 = unsigned(counter), c1 = unsigned(counter >> 32), c2 = 0, c3 = 0;
  unsigned k0 = unsigned(seed), k1 = unsigned(seed >> 32);
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const unsigned h0 = __umulhi(0xD2511F53u, c0), l0 = 0xD2511F53u * c0;
    const unsigned h1 = __umulhi(0xCD9E8D57u, c2), l1 = 0xCD9E8D57u * c2;
    c0 = h1 ^ c1 ^ k0; c1 = l1; c2 = h0 ^ c3 ^ k1; c3 = l0;
    k0 += 0x9E3779B9u; k1 += 0xBB67AE85u;
  }
  return words{{c0, c1, c2, c3}};
}

__device__ inline float uniform_of(unsigned word) { return float(word >> 8) * 5.9604644775390625e-8f; }  // [0, 1), 2^-24

// Reads like a float array of uniform numbers that is nowhere in memory: element e is word e % 4 of counter e / 4.
template <unsigned SEED> struct draws {
  index_t base;
  __device__ draws operator+(index_t offset) const { return draws{base + offset}; }
  __device__ float operator[](index_t offset) const {
    const unsigned long long e = (unsigned long long)(base + offset);
    return uniform_of(philox(e / 4, SEED).item[e % 4]);
  }
};

template <int V, bool ALIGNED, unsigned SEED> __device__ inline pack<float, V> load_pack(draws<SEED> d) {
  pack<float, V> out;
  if constexpr (ALIGNED && V % 4 == 0) {  // one counter for four elements
#pragma unroll
    for (int q = 0; q < V / 4; ++q) {
      const words four = philox((unsigned long long)d.base / 4 + q, SEED);
#pragma unroll
      for (int v = 0; v < 4; ++v) out.item[4 * q + v] = uniform_of(four.item[v]);
    }
  } else {
#pragma unroll
    for (int v = 0; v < V; ++v) out.item[v] = d[v];
  }
  return out;
}
