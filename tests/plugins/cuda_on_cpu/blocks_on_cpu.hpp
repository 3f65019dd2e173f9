#pragma once
// Enough of CUDA for one thread block after another to run on a CPU, a thread for each of its threads: barriers and
// shuffles are real ones. Included before a kernel's text.
#include <barrier>
#include <memory>
#include <thread>
#include <vector>

#include "cuda_on_cpu.hpp"

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
