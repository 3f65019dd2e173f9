#pragma once
// What kernels/tensor_core.cuh has, for a CPU: clusters of thread blocks, each CUDA thread a fiber that runs until it
// must wait for others. Reads outside of the watched tensors, vectors sent too early or astray, and waits that never
// end are faults. Included in place of that file, before a kernel's text.
#include <ucontext.h>

#include <vector>

#include "cuda_bf16.h"
#include "cuda_fp16.h"
#include "cuda_on_cpu.hpp"
#include "meeting_on_cpu.hpp"

struct alignas(16) Words { unsigned word[4]; };
struct alignas(8) HalfWords { unsigned word[2]; };
struct alignas(16) Floats { float part[4]; };

namespace cpu {
struct Operands { unsigned a[4], b[2]; };
struct Warp {
  Meeting meeting{32};
  Operands lanes[2][32];
};
struct Block {
  Meeting meeting;
  std::vector<Warp> warps;
  std::vector<Floats> shared;
  unsigned expected = 0, received = 0;
};
struct Watched {
  const char *begin;
  size_t size;
};
struct Fiber {
  ucontext_t context;
  std::vector<char> stack = std::vector<char>(1 << 15);
  unsigned thread, block;
  bool done = false;
};
static std::vector<Block> blocks;  // of the cluster that runs
static unsigned started, threads, first_block;
static Fiber *running;
static ucontext_t scheduler;
static std::vector<Watched> watched;

inline void pause() { swapcontext(&running->context, &scheduler); }
inline void refuse(const char *what) { fault = fault ? fault : what; }
inline Block &own_block() { return blocks[running->block]; }
inline void watch(const void *from, long long bytes) { watched.push_back({(const char *)from, (size_t)bytes}); }

inline void read(void *into, const void *from, size_t bytes) {
  if ((size_t)from % bytes) refuse("a load that is not aligned");
  for (const auto &[begin, size] : watched)
    if ((const char *)from >= begin && (const char *)from + bytes <= begin + size) {
      std::memcpy(into, from, bytes);
      return;
    }
  refuse("a load outside of every tensor");
}
}  // namespace cpu

#define __syncthreads() cpu::own_block().meeting.wait()

inline void load_once(Words &into, const Words *from, bool wanted) {
  if (wanted) cpu::read(&into, from, sizeof into);
}
inline void load_once(HalfWords &into, const HalfWords *from, bool wanted) {
  if (wanted) cpu::read(&into, from, sizeof into);
}
inline void load_often(Words &into, const void *from, bool wanted) {
  if (wanted) cpu::read(&into, from, sizeof into);
}
inline void issue_loads() {}
inline unsigned mask_and_set(unsigned word, unsigned mask, unsigned set) { return (word & mask) | set; }

// Element (row, k) of A is in lane row % 8 * 4 + k % 8 / 2, register row / 8 + k / 8 * 2, half k % 2; (k, column) of B in
// lane column * 4 + k % 8 / 2, register k / 8, half k % 2; (row, column) of C in lane row % 8 * 4 + column / 2,
// register row / 8 * 2 + column % 2.
template <typename Number>
void multiply_add(float (&sum)[4], const unsigned (&a)[4], unsigned b0, unsigned b1, const float (&c)[4], Number) {
  const unsigned lane = threadIdx.x % 32;
  cpu::Warp &warp = cpu::own_block().warps[threadIdx.x / 32];
  cpu::Operands(&lanes)[32] = warp.lanes[warp.meeting.round % 2];
  lanes[lane] = {{a[0], a[1], a[2], a[3]}, {b0, b1}};
  warp.meeting.wait();
  const auto half = [](unsigned word, unsigned place) {
    Number number;
    const unsigned short bits = (unsigned short)(word >> (16 * place));
    std::memcpy(&number, &bits, 2);
    return (double)to_float(number);
  };
  for (unsigned place = 0; place < 4; ++place) {
    const unsigned row = lane / 4, upper = place / 2, column = lane % 4 * 2 + place % 2;
    double products = 0.0;
    for (unsigned k = 0; k < 16; ++k)
      products += half(lanes[row * 4 + k % 8 / 2].a[upper + k / 8 * 2], k % 2) *
                  half(lanes[column * 4 + k % 8 / 2].b[k / 8], k % 2);
    sum[place] = (float)(c[place] + products);
  }
}

inline Floats *dynamic_shared() { return cpu::own_block().shared.data(); }

inline void expect_vectors(unsigned bytes) {
  if (threadIdx.x == 0) cpu::own_block().expected = bytes;
  ++cpu::started;
}
inline void meet_siblings() {
  while (cpu::started < cpu::threads * cpu::blocks.size()) cpu::pause();
}
inline void send_vector(Floats *place, unsigned rank, const Floats &value) {
  const size_t slot = place - dynamic_shared();
  if (cpu::started < cpu::threads * cpu::blocks.size()) cpu::refuse("a vector sent before its receiver has started");
  if (rank >= cpu::blocks.size() || slot >= cpu::blocks[rank].shared.size()) return cpu::refuse("a vector sent astray");
  cpu::blocks[rank].shared[slot] = value;
  cpu::blocks[rank].received += sizeof value;
  cpu::progress = true;
}
inline void await_vectors() {
  while (cpu::own_block().received < cpu::own_block().expected) cpu::pause();
}

namespace cpu {
template <typename Work> void run_cluster(unsigned cluster, unsigned slots, Work &work) {
  const Floats poison = {NAN, NAN, NAN, NAN};
  blocks.clear();
  for (unsigned rank = 0; rank < cluster; ++rank) {
    blocks.push_back({{threads}});
    blocks.back().warps.resize(threads / 32);
    blocks.back().shared.assign(slots, poison);
  }
  started = 0;
  std::vector<Fiber> fibers(cluster * threads);
  for (unsigned number = 0; number < fibers.size(); ++number) {
    Fiber &fiber = fibers[number];
    fiber.thread = number % threads, fiber.block = number / threads;
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack.data(), fiber.context.uc_stack.ss_size = fiber.stack.size();
    fiber.context.uc_link = &scheduler;
    static Work *current;
    current = &work;
    makecontext(&fiber.context, (void (*)())(+[] { (*current)(), running->done = progress = true; }), 0);
  }
  for (progress = true; progress;) {
    progress = false;
    for (Fiber &fiber : fibers) {
      if (fiber.done) continue;
      running = &fiber, threadIdx.x = fiber.thread, blockIdx.x = first_block + fiber.block;
      swapcontext(&scheduler, &fiber.context);
    }
  }
  for (const Fiber &fiber : fibers)
    if (!fiber.done) refuse("threads that wait for ever");
  for (const Block &block : blocks)
    if (block.received != block.expected) refuse("more vectors than are expected");
}

// The first fault, or null. Blocks of a cluster have consecutive x.
template <typename Kernel, typename... Args>
const char *run_grid(unsigned x, unsigned y, unsigned cluster, unsigned count, unsigned bytes, Kernel kernel, Args... args) {
  auto work = [&] { kernel(args...); };
  threads = count, gridDim.x = x, fault = nullptr;
  for (blockIdx.y = 0; blockIdx.y < y; ++blockIdx.y)
    for (first_block = 0; first_block < x && !fault; first_block += cluster) run_cluster(cluster, bytes / 16, work);
  return fault;
}
}  // namespace cpu
