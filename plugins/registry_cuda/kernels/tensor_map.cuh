// Tiles of a matrix between global and shared memory by the copy engine, as a tensor map describes them: 128 bytes wide,
// swizzled, and zeros beyond the matrix.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

// A tensor map takes 16 parameters of a kernel: the matrix's address, and 15 numbers behind it.
using Aligned = unsigned long long __attribute__((aligned(64)));
#define TENSOR_MAP(NAME)                                                                                                 \
  const __grid_constant__ Aligned NAME, const long long NAME##1, const long long NAME##2, const long long NAME##3,       \
      const long long NAME##4, const long long NAME##5, const long long NAME##6, const long long NAME##7,                \
      const long long NAME##8, const long long NAME##9, const long long NAME##10, const long long NAME##11,              \
      const long long NAME##12, const long long NAME##13, const long long NAME##14, const long long NAME##15

using Map = unsigned long long;  // a tensor map's address

__device__ inline void prefetch_map(Map map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}
// `column` counts elements. Bytes arrive at `barrier`.
__device__ inline void load_tile(unsigned to, Map map, int column, int row, unsigned barrier) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(
                   to),
               "l"(map), "r"(column), "r"(row), "r"(barrier)
               : "memory");
}
// To the same place in the shared memory of every block in `mask`, and at the same barrier of each.
__device__ inline void load_tile_for(unsigned short mask, unsigned to, Map map, int column, int row, unsigned barrier) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
               "[%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to),
               "l"(map), "r"(column), "r"(row), "r"(barrier), "h"(mask)
               : "memory");
}
__device__ inline void store_tile(Map map, int column, int row, unsigned from) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];" ::"l"(map), "r"(column), "r"(row),
               "r"(from)
               : "memory");
}
__device__ inline void close_stores() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// Until all but the last `PENDING` groups of stores of this thread have read what they store.
template <int PENDING> __device__ inline void await_reads() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(PENDING) : "memory");
}
__device__ inline void await_stores() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }
// Let the copy engine see what this thread has written to shared memory.
__device__ inline void show_writes() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// A swizzled operand of a product, K contiguous: rows of 128 bytes, of which 8 make a pattern of 1024.
__device__ inline unsigned long long swizzled_operand(unsigned address) {
  return (address & 0x3FFFF) >> 4 | 1ull << 16 | (unsigned long long)(1024 >> 4) << 32 | 1ull << 62;
}
// Where a row's 16 bytes number `vector` lie behind the begin of its tile.
__device__ inline unsigned swizzled(int row, int vector) { return row * 128 + ((vector ^ row % 8) << 4); }

__device__ inline unsigned rank_in_cluster() {
  unsigned rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
// Arrive at the barrier of block `rank` of the cluster that lies where this block has `barrier`. It orders the block's own
// writes at most: a release for the whole cluster is a fence for the whole GPU, and products have read what they read.
__device__ inline void arrive_at(unsigned barrier, unsigned rank) {
  asm volatile("{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\n"
               "mbarrier.arrive.shared::cluster.b64 _, [there];\n}" ::"r"(barrier),
               "r"(rank)
               : "memory");
}
