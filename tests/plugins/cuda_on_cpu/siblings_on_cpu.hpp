#pragma once
// What sampling/kernels/siblings.cuh has, for a CPU: clusters of thread blocks with memory that siblings reach, each CUDA
// thread a fiber that runs until it must wait for others. Memory that is touched before its block has started or after
// it has left, writes behind the end of dynamic memory, and waits that never end are faults. Included before a kernel's
// text, in place of that file.
#include <vector>

#include "cuda_on_cpu.hpp"
#include "fibers_on_cpu.hpp"

struct alignas(16) uint4 { unsigned x, y, z, w; };

namespace cpu {
struct Warp {
  Meeting meeting{32};
  unsigned long long lanes[2][32];
};
struct Block {
  Meeting meeting;
  std::vector<Warp> warps;
  unsigned left = 0;
};
struct Fiber : Resumable {
  unsigned block;
};
constexpr unsigned STATE_BYTES = 1 << 16;
static const unsigned char UNTOUCHED = 0xcd;
static std::vector<Block> blocks;  // of the cluster that runs
static std::vector<uint4> memory;  // of each block the variables, then the dynamic memory and a margin
static unsigned stride, dynamic, threads, first_block, begun, backwards;
static Meeting all;
static std::vector<Fiber> fibers;
static const unsigned STACK = 1 << 15;
static std::vector<char> stacks;

inline unsigned own_rank() { return static_cast<Fiber *>(running)->block; }
inline Block &own_block() { return blocks[own_rank()]; }
inline char *memory_of(unsigned block) { return (char *)memory.data() + (size_t)block * stride; }
}  // namespace cpu

#define __syncthreads() cpu::own_block().meeting.wait()

template <typename State> State &block_state() {
  static_assert(sizeof(State) <= cpu::STATE_BYTES);
  return *(State *)cpu::memory_of(cpu::own_rank());
}
inline void *block_room() { return cpu::memory_of(cpu::own_rank()) + cpu::STATE_BYTES; }

template <typename Value> Value *at_sibling(Value *own, unsigned rank) {
  const long long offset = (char *)own - cpu::memory_of(cpu::own_rank());
  if (offset < 0 || offset >= cpu::stride) cpu::refuse("a sibling's place of what is in no block's memory");
  if (rank >= cpu::blocks.size()) return cpu::refuse("a sibling that does not exist"), own;
  if (cpu::begun < cpu::threads * cpu::blocks.size()) cpu::refuse("memory of a block that has not started");
  if (cpu::blocks[rank].left) cpu::refuse("memory of a block that has left");
  return (Value *)(cpu::memory_of(rank) + offset);
}
inline void say_started() { ++cpu::begun, cpu::progress = true; }
inline void await_siblings() {
  while (cpu::begun < cpu::threads * cpu::blocks.size()) cpu::pause();
}
inline void meet() { cpu::all.wait(); }

// every lane's value, before any of them can have sent the next but one
template <typename Value> const unsigned long long *lanes_of_warp(Value value) {
  static_assert(sizeof(Value) <= 8);
  cpu::Warp &warp = cpu::own_block().warps[threadIdx.x / 32];
  unsigned long long(&lanes)[32] = warp.lanes[warp.meeting.round % 2];
  std::memcpy(&lanes[threadIdx.x % 32], &value, sizeof value);
  warp.meeting.wait();
  return lanes;
}
template <typename Value> Value lane_of_warp(Value value, unsigned lane) {
  const unsigned long long *lanes = lanes_of_warp(value);
  std::memcpy(&value, &lanes[lane], sizeof value);
  return value;
}
template <typename Value> Value __shfl_xor_sync(unsigned, Value value, int distance) {
  return lane_of_warp(value, threadIdx.x % 32 ^ distance);
}
template <typename Value> Value __shfl_up_sync(unsigned, Value value, int distance) {
  const unsigned lane = threadIdx.x % 32;
  return lane_of_warp(value, lane < (unsigned)distance ? lane : lane - distance);
}
template <typename Value> Value __shfl_sync(unsigned, Value value, int lane) { return lane_of_warp(value, lane); }

template <typename Value> Value atomicAdd(Value *place, Value value) {
  const Value before = *place;
  *place += value;
  return before;
}
template <typename Value> void atomicMin(Value *place, Value value) { *place = value < *place ? value : *place; }
template <typename Value> void atomicMax(Value *place, Value value) { *place = value > *place ? value : *place; }
inline unsigned long long __float2ull_rn(float value) { return (unsigned long long)std::llrint(value); }

namespace cpu {
template <typename Work> void run_cluster(unsigned cluster, Work &work) {
  blocks.clear();
  for (unsigned rank = 0; rank < cluster; ++rank) {
    blocks.push_back({{threads}});
    blocks.back().warps.resize(threads / 32);
  }
  std::memset(memory.data(), UNTOUCHED, memory.size() * sizeof(uint4));
  all = {cluster * threads}, begun = 0;
  fibers.resize(cluster * threads), stacks.resize((size_t)fibers.size() * STACK);
  static Work *current;
  current = &work;
  for (unsigned number = 0; number < fibers.size(); ++number) {
    Fiber &fiber = fibers[number];
    fiber.block = number / threads;
    make(fiber, number % threads, stacks.data() + (size_t)number * STACK, STACK, +[] {
      (*current)();
      ++own_block().left;
      leave();
    });
  }
  for (progress = true; progress;) {
    progress = false;
    for (unsigned turn = 0; turn < fibers.size(); ++turn) {
      Fiber &fiber = fibers[backwards ? fibers.size() - 1 - turn : turn];
      if (fiber.done) continue;
      threadIdx.x = fiber.thread, blockIdx.x = first_block + fiber.block;
      resume(fiber);
    }
  }
  for (const Fiber &fiber : fibers)
    if (!fiber.done) refuse("threads that wait for ever");
  for (unsigned rank = 0; rank < cluster; ++rank)
    for (const char *byte = memory_of(rank) + STATE_BYTES + dynamic; byte < memory_of(rank) + stride; ++byte)
      if (*(const unsigned char *)byte != UNTOUCHED) refuse("a write behind the dynamic memory");
}

// The first fault, or null. Blocks of a cluster have consecutive x; `reversed`: their last thread runs first.
template <typename Kernel, typename... Args>
const char *run_grid(unsigned x, unsigned cluster, unsigned count, unsigned bytes, bool reversed, Kernel kernel, Args... args) {
  auto work = [&] { kernel(args...); };
  threads = count, dynamic = bytes, backwards = reversed, gridDim.x = x, fault = nullptr;
  stride = STATE_BYTES + (bytes + 15) / 16 * 16 + 64;
  memory.resize((size_t)stride * cluster / sizeof(uint4));
  for (first_block = 0; first_block < x && !fault; first_block += cluster) run_cluster(cluster, work);
  return fault;
}
}  // namespace cpu
