#pragma once
// Enough of CUDA for one thread block after another to run on a CPU, each of its threads a fiber that runs until it must
// wait for others at a barrier or a shuffle. Real threads, and the headers for them, took three times as long. Included
// before a kernel's text.
#include <cstdlib>
#include <ucontext.h>

#include "cuda_on_cpu.hpp"

namespace cpu {
struct Fiber {
  ucontext_t context;
  void *stack;
  bool done;
};
struct Meeting {
  unsigned size, here, round;
};
static const size_t stack_bytes = 1 << 16;
static Fiber fibers[1024];
static Meeting block, warps[32];
static float lanes[1024];
static ucontext_t scheduler;
static bool progress;
static void (*body)(const void *);
static const void *bound;

inline void pass(Meeting &meeting) { meeting.here = 0, ++meeting.round, progress = true; }

inline void wait(Meeting &meeting) {
  const unsigned round = meeting.round;
  if (++meeting.here == meeting.size) {
    pass(meeting);
    return;
  }
  const unsigned thread = threadIdx.x;
  while (meeting.round == round) swapcontext(&fibers[thread].context, &scheduler);
}

// a thread that leaves early must not keep the others waiting
inline void leave(Meeting &meeting) {
  --meeting.size;
  if (meeting.size && meeting.here == meeting.size) pass(meeting);
}

inline void enter() {
  const unsigned thread = threadIdx.x;
  body(bound);
  leave(block);
  fibers[thread].done = progress = true;
}

// fibers that all wait for others, which never come, are a kernel's fault
inline void run_block(unsigned threads) {
  block = {threads, 0, 0};
  for (unsigned warp = 0; warp < (threads + 31) / 32; ++warp) warps[warp] = {32, 0, 0};
  for (unsigned thread = 0; thread < threads; ++thread) {
    Fiber &fiber = fibers[thread];
    if (!fiber.stack) fiber.stack = std::malloc(stack_bytes);
    fiber.done = false;
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack;
    fiber.context.uc_stack.ss_size = stack_bytes;
    fiber.context.uc_link = &scheduler;
    makecontext(&fiber.context, enter, 0);
  }
  for (progress = true; progress;) {
    progress = false;
    for (unsigned thread = 0; thread < threads; ++thread)
      if (!fibers[thread].done) {
        threadIdx.x = thread;
        swapcontext(&scheduler, &fibers[thread].context);
      }
  }
  for (unsigned thread = 0; thread < threads; ++thread)
    if (!fibers[thread].done) std::abort();
}
}  // namespace cpu

inline void __syncthreads() { cpu::wait(cpu::block); }

inline float __shfl_xor_sync(unsigned, float value, int distance) {
  const unsigned thread = threadIdx.x;
  cpu::lanes[thread] = value;
  cpu::wait(cpu::warps[thread / 32]);
  const float theirs = cpu::lanes[thread ^ distance];
  cpu::wait(cpu::warps[thread / 32]);
  return theirs;
}

template <typename Kernel, typename... Args> void run_grid(unsigned grid, unsigned threads, Kernel kernel, Args... args) {
  const auto call = [=] { kernel(args...); };
  cpu::body = [](const void *what) { (*static_cast<decltype(&call)>(what))(); };
  cpu::bound = &call;
  gridDim.x = grid;
  for (unsigned number = 0; number < grid; ++number) {
    blockIdx.x = number;
    cpu::run_block(threads);
  }
}
