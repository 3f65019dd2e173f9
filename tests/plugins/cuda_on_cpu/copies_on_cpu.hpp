#pragma once
// What kernels/bulk_copy.cuh has, for a CPU: a copy is made when it is asked for. Copies that are not aligned, or outside
// of the watched tensor, and waits for bytes that nobody asks for end the process. Included in place of that file, after
// blocks_on_cpu.hpp.
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace cpu {
static const char *watched_begin, *watched_end;

inline void demand(bool held, const char *what) {
  if (held) return;
  std::fprintf(stderr, "%s\n", what);
  std::abort();
}
inline void demand_aligned(const void *to, const void *from, unsigned bytes) {
  demand(((size_t)to | (size_t)from | bytes) % 16 == 0, "a copy that is not aligned");
}
}  // namespace cpu

extern "C" void watch(const char *begin, long long bytes) {
  cpu::watched_begin = begin, cpu::watched_end = begin + bytes;
}

struct Arrival { unsigned needed, here, phases; };

template <typename Item> Item *dynamic_shared() {
  alignas(128) static unsigned char bytes[1 << 18];
  return reinterpret_cast<Item *>(bytes);
}
inline void init_arrival(Arrival *arrival, unsigned count) { *arrival = {count, 0, 0}; }
inline void publish_arrivals() {}
inline void arrive(Arrival *arrival) {
  if (++arrival->here < arrival->needed) return;
  arrival->here = 0, ++arrival->phases, cpu::progress = true;
}
inline void await_arrival(Arrival *arrival, unsigned parity) {
  const unsigned thread = threadIdx.x;
  while (arrival->phases == 0 || (arrival->phases - 1) % 2 != parity)
    swapcontext(&cpu::fibers[thread].context, &cpu::scheduler);
}
inline void bring(void *to, const void *from, unsigned bytes, Arrival *arrival) {
  cpu::demand_aligned(to, from, bytes);
  const char *begin = static_cast<const char *>(from);
  cpu::demand(!bytes || (begin >= cpu::watched_begin && begin + bytes <= cpu::watched_end), "a read beyond the tensor");
  std::memcpy(to, from, bytes);
  arrive(arrival);
}
inline void publish() {}
inline void send(void *to, const void *from, unsigned bytes) {
  cpu::demand_aligned(to, from, bytes);
  std::memcpy(to, from, bytes);
}
inline void await_read() {}
inline void await_sent() {}
inline void meet_team(int team, int threads) {
  static cpu::Meeting teams[16];
  teams[team].size = threads;
  cpu::wait(teams[team]);
}
