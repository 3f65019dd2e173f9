// Instructions of Hopper's warpgroups without a name in CUDA C++: barriers that count arrivals, copies that a thread does
// not wait for, products of a warpgroup, blocks of a cluster that read each other's shared memory.

__device__ inline void init_barrier(unsigned barrier, unsigned arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
__device__ inline void arrive(unsigned barrier) {
  asm volatile("mbarrier.arrive.release.cta.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
__device__ inline void await(unsigned barrier, unsigned parity) {
  asm volatile("{\n.reg .pred p;\nAGAIN:\nmbarrier.try_wait.parity.acquire.cta.shared::cta.b64 p, [%0], %1;\n"
               "@p bra.uni DONE;\nbra.uni AGAIN;\nDONE:\n}" ::"r"(barrier), "r"(parity)
               : "memory");
}

// 4 bytes from global to shared memory, or zeros where they are not `wanted`.
__device__ inline void copy_word(unsigned to, const void *from, bool wanted) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(wanted ? 4 : 0) : "memory");
}
__device__ inline void close_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// All but the latest PENDING closed groups have arrived, where the tensor cores see them.
template <int PENDING> __device__ inline void await_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

__device__ inline void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void close_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int PENDING> __device__ inline void await_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}
// The compiler keeps to registers what a product writes: it may neither read it earlier nor move it.
template <int COUNT> __device__ inline void settle(float (&sum)[COUNT]) {
#pragma unroll
  for (int k = 0; k < COUNT; ++k) asm volatile("" : "+f"(sum[k])::"memory");
}

// An operand in shared memory, K contiguous and not swizzled: 8 rows of 16 bytes lie side by side, `next_k` bytes from
// those of the next 8 k's, 128 from those of the next 8 rows.
__device__ inline unsigned long long operand(unsigned address, unsigned next_k) {
  return (address & 0x3FFFF) >> 4 | (unsigned long long)(next_k >> 4) << 16 | (unsigned long long)(128 >> 4) << 32;
}

template <int COUNT> __device__ inline void take_registers() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT)); }
template <int COUNT> __device__ inline void give_registers() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT)); }

// By every thread of every block of the cluster: what each has written to its shared memory can be read by all.
__device__ inline void meet_cluster() {
  asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}
__device__ inline Floats load_of(unsigned address, unsigned rank) {
  Floats value;
  unsigned there;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(value.part[0]), "=f"(value.part[1]), "=f"(value.part[2]), "=f"(value.part[3])
               : "r"(there)
               : "memory");
  return value;
}
