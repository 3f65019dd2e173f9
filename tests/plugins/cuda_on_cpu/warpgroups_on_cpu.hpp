#pragma once
// What kernels/tensor_map.cuh, tensor_core.cuh and warpgroup.cuh have, for a CPU: one thread block after another, each
// CUDA thread a fiber that runs until it must wait for others. Copies of tiles, and products of a warpgroup, happen when
// they are asked for or, if late, when somebody waits for them: a kernel that waits too little, or gives a tile back too
// early, is wrong in one of the two, or where products alone are late and others run whenever one of them arrives at a
// barrier. Products and the copy engine see what threads wrote to shared memory from a fence on.
// Waits that never end, products without a fence before them, and addresses outside of shared memory, are faults. Included
// in place of those files, before a kernel's text.
#include <algorithm>
#include <functional>
#include <map>
#include <vector>

#include "cuda_bf16.h"
#include "cuda_fp16.h"
#include "cuda_on_cpu.hpp"
#include "fibers_on_cpu.hpp"
#include "math_constants.h"

#define __grid_constant__
using std::max;
using std::min;

struct alignas(16) Words { unsigned word[4]; };
struct alignas(16) Floats { float part[4]; };
struct __half2 { __half x, y; };
struct __nv_bfloat162 { __nv_bfloat16 x, y; };
inline __half2 __floats2half2_rn(float one, float other) { return {__float2half_rn(one), __float2half_rn(other)}; }
inline __nv_bfloat162 __floats2bfloat162_rn(float one, float other) {
  return {__float2bfloat16_rn(one), __float2bfloat16_rn(other)};
}

// Halves of sizes[0] elements side by side, then of each dimension more, `strides` elements apart; tiles of 64 x height.
struct HeadMap {
  const unsigned short *data;
  long long sizes[4], strides[3];
  int height;
};
using Map = unsigned long long;
#define TENSOR_MAP(NAME) const HeadMap NAME

namespace cpu {
struct Barrier {
  unsigned count = 0, pending = 0, parity = 0;
  long long bytes = 0;
  std::vector<std::function<void()>> copies;  // that nobody has waited for

  void settle() {
    while (count && !pending && !bytes) pending = count, parity ^= 1, progress = true;
  }
};
struct Warp {
  Meeting meeting{32};
  unsigned lanes[2][32];
};
struct Turn {
  unsigned here = 0, round = 0;
};
struct Fiber : Resumable {
  bool fenced = false;                                     // since it last waited for products
  std::vector<std::function<void()>> open;                 // products that are not in a group
  std::vector<std::vector<std::function<void()>>> groups;  // that are not waited for
};
constexpr unsigned BASE = 16;  // where shared memory begins: not at a pattern's begin
static bool late_copies, late_products;
static unsigned passes;  // over all warps
static unsigned threads;
static std::vector<char> memory, shown;  // as threads have it, and as products and the copy engine do
static bool fresh;                       // no thread has shown its writes since the last product
static const char *watched[2];            // where bytes may be copied from, if that is known
static std::map<unsigned, Barrier> barriers;
static std::map<unsigned, Turn> turns;
static std::vector<Warp> warps;
static std::vector<Fiber> fibers;
static std::vector<char> stacks;
static const unsigned STACK = 1 << 16;
static Meeting block{0};

inline Fiber &own_fiber() { return *static_cast<Fiber *>(running); }
inline unsigned swizzle(unsigned address) { return address ^ (address >> 7 & 7) << 4; }
inline unsigned short *half_at(unsigned address) {
  static unsigned short nowhere;
  if (address < BASE || address + 2 > BASE + memory.size()) return refuse("an address outside of shared memory"), &nowhere;
  return (unsigned short *)&shown[address - BASE];
}
inline void copy_tile(const HeadMap &map, unsigned to, const int (&first)[4]) {
  for (int row = 0; row < map.height; ++row)
    for (int column = 0; column < 64; ++column) {
      const long long at[4] = {first[0] + column, first[1] + row, first[2], first[3]};
      bool inside = true;
      long long place = at[0];
      for (int k = 0; k < 4; ++k) inside = inside && at[k] >= 0 && at[k] < map.sizes[k];
      for (int k = 1; k < 4; ++k) place += at[k] * map.strides[k - 1];
      const unsigned there = swizzle(to + row * 128 + column * 2);
      const unsigned short half = inside ? map.data[place] : 0;
      *half_at(there) = half;
      std::memcpy(&memory[there - BASE], &half, 2);
    }
}
inline float value_of(__half number) { return __half2float(number); }
inline float value_of(__nv_bfloat16 number) { return __bfloat162float(number); }
inline double number_of(unsigned short bits) {
  ELEMENT number;
  std::memcpy(&number, &bits, 2);
  return value_of(number);
}

struct Operand {
  unsigned address, leading, stride;
  explicit Operand(unsigned long long word)
      : address((word & 0x3FFF) << 4), leading((word >> 16 & 0x3FFF) << 4), stride((word >> 32 & 0x3FFF) << 4) {
    if (word >> 62 != 1) refuse("an operand that is not swizzled by 128 bytes");
    if (!fresh) shown = memory, fresh = true;
  }
  // a row's k's are neighbours
  unsigned short of_row(unsigned row, unsigned k) const {
    return *half_at(swizzle(address + row / 8 * stride + row % 8 * 128 + k * 2));
  }
  // a k's columns are neighbours
  unsigned short of_k(unsigned k, unsigned column) const {
    return *half_at(swizzle(address + column / 64 * leading + k / 8 * stride + k % 8 * 128 + column % 64 * 2));
  }
};
inline void ask(std::function<void()> product) {
  if (!own_fiber().fenced) refuse("a product without a fence");
  if (late_products)
    own_fiber().open.push_back(std::move(product));
  else
    product();
}
// sum[] of this lane += A B, where left(half, k) has this lane's two rows. The products of an instruction are exact, and
// rounded where they are added.
template <int COUNT, typename Left, typename Right> void multiply(float (&sum)[COUNT], bool more, Left left, Right right) {
  const unsigned lane = threadIdx.x % 32;
  for (int place = 0; place < COUNT; ++place) {
    const unsigned half = place / 2 % 2, column = place / 4 * 8 + lane % 4 * 2 + place % 2;
    double products = 0;
    for (unsigned k = 0; k < 16; ++k) products += left(half, k) * right(k, column);
    sum[place] = (float)((more ? sum[place] : 0.0) + products);
  }
}
inline void let_others_run() {
  const unsigned now = passes;
  progress = true;
  while (passes == now) pause();
  progress = true;
}
inline unsigned exchanged(unsigned value, unsigned other) {
  Warp &warp = warps[threadIdx.x / 32];
  unsigned(&lanes)[32] = warp.lanes[warp.meeting.round % 2];
  lanes[threadIdx.x % 32] = value;
  warp.meeting.wait();
  return lanes[other];
}
inline void named_barrier(unsigned id, unsigned count, bool waits) {
  Turn &turn = turns[id];
  const unsigned mine = turn.round;
  if (++turn.here == count) turn.here = 0, ++turn.round, progress = true;
  while (waits && turn.round == mine) pause();
}
}  // namespace cpu

template <int COUNT> void multiply_keys(float (&sum)[COUNT], unsigned long long a, unsigned long long b, bool more) {
  const unsigned row = threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
  cpu::ask([=, &sum] {
    const cpu::Operand left(a), right(b);
    cpu::multiply(
        sum, more, [&](unsigned half, unsigned k) { return cpu::number_of(left.of_row(row + half * 8, k)); },
        [&](unsigned k, unsigned column) { return cpu::number_of(right.of_row(column, k)); });
  });
}
// The left operand's words are exchanged when the product is asked for, and must be the same when it is waited for.
template <int COUNT> void multiply_values(float (&sum)[COUNT], const unsigned (&a)[4], unsigned long long b, bool more) {
  unsigned words[4][4];  // of the four lanes of a row
  for (unsigned word = 0; word < 4; ++word)
    for (unsigned lane = 0; lane < 4; ++lane)
      words[lane][word] = cpu::exchanged(a[word], threadIdx.x % 32 / 4 * 4 + lane);
  const unsigned own[4] = {a[0], a[1], a[2], a[3]};
  cpu::ask([=, &sum, &a] {
    if (!std::equal(own, own + 4, a)) cpu::refuse("registers written while a product reads them");
    const cpu::Operand right(b);
    cpu::multiply(
        sum, more,
        [&](unsigned half, unsigned k) {
          const unsigned word = words[k % 8 / 2][half + k / 8 * 2];
          return cpu::number_of((unsigned short)(word >> 16 * (k % 2)));
        },
        [&](unsigned k, unsigned column) { return cpu::number_of(right.of_k(k, column)); });
  });
}
inline void begin_products() { cpu::own_fiber().fenced = true; }
inline void close_products() {
  cpu::own_fiber().groups.push_back(std::move(cpu::own_fiber().open));
  cpu::own_fiber().open.clear();
}
template <int PENDING> void await_products() {
  auto &groups = cpu::own_fiber().groups;
  cpu::own_fiber().fenced = false;
  for (; groups.size() > PENDING; groups.erase(groups.begin()))
    for (auto &product : groups.front()) product();
}
template <typename Values> void settle(Values &) {}

inline Floats *dynamic_shared() { return (Floats *)cpu::memory.data(); }
inline unsigned shared_address(const void *) { return cpu::BASE; }
inline void init_barrier(unsigned barrier, unsigned arrivals) { cpu::barriers[barrier] = {arrivals, arrivals}; }
inline cpu::Barrier &barrier_at(unsigned barrier) {
  if (!cpu::barriers.count(barrier)) cpu::refuse("a barrier that was not made");
  return cpu::barriers[barrier];
}
inline void arrive_expecting(unsigned barrier, unsigned bytes) {
  cpu::Barrier &found = barrier_at(barrier);
  if (!found.pending) cpu::refuse("more arrivals than a barrier expects");
  --found.pending, found.bytes += bytes;
  found.settle();
}
inline void arrive(unsigned barrier) {
  arrive_expecting(barrier, 0);
  if (cpu::late_products && !cpu::late_copies) cpu::let_others_run();
}
inline void await(unsigned barrier, unsigned parity) {
  while (barrier_at(barrier).parity == (parity & 1)) {
    cpu::Barrier &found = barrier_at(barrier);
    const auto copies = std::move(found.copies);
    found.copies.clear();
    for (const auto &copy : copies) copy();
    if (copies.empty()) cpu::pause();
  }
}
// A thread that asks for a copy may have ended when it happens.
template <typename Copy> void ask_for_copy(Copy copy, unsigned bytes, unsigned barrier) {
  const auto whole = [=] {
    copy();
    cpu::Barrier &found = barrier_at(barrier);
    found.bytes -= bytes;
    found.settle();
  };
  cpu::progress = true;
  if (cpu::late_copies)
    barrier_at(barrier).copies.push_back(whole);
  else
    whole();
}
inline void load_head_tile(unsigned to, Map map, int column, int row, int head, int batch, unsigned barrier) {
  const auto copy = [=, tiles = *(const HeadMap *)map] { cpu::copy_tile(tiles, to, {column, row, head, batch}); };
  ask_for_copy(copy, ((const HeadMap *)map)->height * 128, barrier);
}
inline void copy_bytes(unsigned to, const void *from, unsigned bytes, unsigned barrier) {
  const char *begin = (const char *)from;
  if ((to | bytes | (unsigned long long)begin) % 16) return cpu::refuse("a copy that is not aligned");
  if (to < cpu::BASE || to + bytes > cpu::BASE + cpu::memory.size()) return cpu::refuse("a copy outside of shared memory");
  if (cpu::watched[0] && (begin < cpu::watched[0] || begin + bytes > cpu::watched[1]))
    return cpu::refuse("a copy from outside of its tensor");
  const auto copy = [=] {
    std::memcpy(&cpu::memory[to - cpu::BASE], begin, bytes);
    std::memcpy(&cpu::shown[to - cpu::BASE], begin, bytes);
  };
  ask_for_copy(copy, bytes, barrier);
}
inline void prefetch_map(Map) {}
inline void show_writes() { cpu::fresh = false; }
template <int COUNT> void take_registers() {}
template <int COUNT> void give_registers() {}
inline void __syncthreads() { cpu::block.wait(); }
inline int __syncthreads_count(int wanted) {
  static int counts[2];
  int &count = counts[cpu::block.round % 2];
  count += wanted != 0;
  cpu::block.wait();
  const int found = count;
  cpu::block.wait();
  count = 0;
  return found;
}
inline void __syncwarp() { cpu::exchanged(0, 0); }
inline int __shfl_sync(unsigned, int value, int lane) { return (int)cpu::exchanged((unsigned)value, lane); }
inline unsigned __shfl_xor_sync(unsigned, unsigned value, int apart) {
  return cpu::exchanged(value, threadIdx.x % 32 ^ apart);
}
inline float __shfl_xor_sync(unsigned, float value, int apart) {
  return __uint_as_float(cpu::exchanged(__float_as_uint(value), threadIdx.x % 32 ^ apart));
}

namespace cpu {
// A parameter that is a pointer of whatever type the kernel says.
struct Pointer {
  void *to;
  template <typename Element> operator Element *() const { return (Element *)to; }
};
template <typename Work> void run_block(unsigned bytes, Work &work) {
  memory.assign(bytes, (char)0xff);  // halves that are not a number
  shown = memory, fresh = true;
  barriers.clear(), turns.clear();
  warps.assign(threads / 32, {});
  block = {threads};
  fibers.assign(threads, {});
  stacks.resize((size_t)threads * STACK);
  static Work *current;
  current = &work;
  for (unsigned number = 0; number < threads; ++number)
    make(fibers[number], number, stacks.data() + (size_t)number * STACK, STACK, +[] {
      (*current)();
      leave();
    });
  // a warp runs as far as it can before the next one does: whoever has to wait for other warps, and does not, is ahead
  for (bool any = true; any && !fault;) {
    any = false, ++passes;
    for (unsigned first = 0; first < threads; first += 32)
      for (progress = true; progress && !fault; any = any || progress) {
        progress = false;
        for (unsigned number = first; number < first + 32; ++number) {
          if (fibers[number].done) continue;
          threadIdx.x = number;
          resume(fibers[number]);
        }
      }
  }
  for (const Fiber &fiber : fibers)
    if (!fiber.done) refuse("threads that wait for ever");
}

enum class Late : unsigned { NONE, ALL, PRODUCTS };

// The first fault, or null.
template <typename Kernel, typename... Args>
const char *run_grid(unsigned grid, unsigned count, unsigned bytes, Late late, Kernel kernel, Args... args) {
  auto work = [&] { kernel(args...); };
  threads = count, gridDim.x = grid, fault = nullptr;
  late_copies = late == Late::ALL, late_products = late != Late::NONE;
  for (blockIdx.x = 0; blockIdx.x < grid && !fault; ++blockIdx.x) run_block(bytes, work);
  return fault;
}
}  // namespace cpu
