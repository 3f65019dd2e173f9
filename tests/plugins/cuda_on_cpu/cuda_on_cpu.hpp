#pragma once
// Enough of CUDA for one thread block after another to run on a CPU, a thread for each of its threads: barriers and
// shuffles are real ones. Included before a kernel's text, so that the very source that NVRTC gets is what runs.
#include <barrier>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#define __global__
#define __device__
#define __host__
#define __shared__ static
#define __launch_bounds__(...)

struct Extent {
  unsigned x = 0, y = 0, z = 0;
};
static thread_local Extent threadIdx;
static Extent blockIdx, gridDim;

namespace cpu {
static std::unique_ptr<std::barrier<>> block;
static std::vector<std::unique_ptr<std::barrier<>>> warps;
static std::vector<float> lanes;
}  // namespace cpu

inline void __syncthreads() { cpu::block->arrive_and_wait(); }

inline float __shfl_xor_sync(unsigned, float value, int distance) {
  const unsigned thread = threadIdx.x;
  std::barrier<> &warp = *cpu::warps[thread / 32];
  cpu::lanes[thread] = value;
  warp.arrive_and_wait();
  const float theirs = cpu::lanes[thread ^ distance];
  warp.arrive_and_wait();
  return theirs;
}

inline unsigned __float_as_uint(float value) {
  unsigned bits;
  std::memcpy(&bits, &value, 4);
  return bits;
}
inline float __uint_as_float(unsigned bits) {
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}
inline float __int_as_float(int bits) { return __uint_as_float((unsigned)bits); }
inline float __expf(float value) { return std::exp(value); }
inline float __fdividef(float one, float other) { return one / other; }
inline unsigned __cvta_generic_to_shared(const void *) { return 0; }

template <typename Kernel, typename... Args> void run_grid(unsigned grid, unsigned threads, Kernel kernel, Args... args) {
  gridDim.x = grid;
  for (unsigned number = 0; number < grid; ++number) {
    blockIdx.x = number;
    cpu::block = std::make_unique<std::barrier<>>(threads);
    cpu::lanes.assign(threads, 0.0f);
    cpu::warps.clear();
    for (unsigned warp = 0; warp < (threads + 31) / 32; ++warp) cpu::warps.push_back(std::make_unique<std::barrier<>>(32));
    std::vector<std::thread> running;
    for (unsigned thread = 0; thread < threads; ++thread)
      running.emplace_back([=] {
        threadIdx.x = thread;
        kernel(args...);
        // a thread that leaves early must not keep the others waiting
        cpu::block->arrive_and_drop();
      });
    for (std::thread &thread : running) thread.join();
  }
}
