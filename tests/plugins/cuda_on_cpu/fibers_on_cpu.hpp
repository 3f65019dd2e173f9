#pragma once
// Fibers that stand for CUDA threads: begun by a context and resumed by a jump, since a switch of contexts is a call of
// the system.
#include <csetjmp>
#include <cstddef>
#include <ucontext.h>

#include "meeting_on_cpu.hpp"

namespace cpu {
struct Resumable {
  ucontext_t context;
  jmp_buf place;
  unsigned thread;
  bool begun, done;
};
static Resumable *running;
static jmp_buf scheduler;

inline void pause() {
  if (!_setjmp(running->place)) _longjmp(scheduler, 1);
}
inline void resume(Resumable &fiber) {
  running = &fiber;
  if (_setjmp(scheduler)) return;
  if (fiber.begun) _longjmp(fiber.place, 1);
  fiber.begun = true;
  setcontext(&fiber.context);
}
// By the fiber that runs, at its end.
[[noreturn]] inline void leave() {
  running->done = progress = true;
  _longjmp(scheduler, 1);
}
inline void make(Resumable &fiber, unsigned thread, char *stack, size_t bytes, void (*body)()) {
  fiber.thread = thread, fiber.begun = fiber.done = false;
  getcontext(&fiber.context);
  fiber.context.uc_stack.ss_sp = stack, fiber.context.uc_stack.ss_size = bytes;
  fiber.context.uc_link = nullptr;
  makecontext(&fiber.context, body, 0);
}
inline void refuse(const char *what) { fault = fault ? fault : what; }
}  // namespace cpu
