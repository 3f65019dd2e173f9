// Instructions of Hopper without a name in CUDA C++: barriers that count arrivals and bytes, copies that no thread waits
// for, products of a warpgroup, blocks of a cluster that read each other's shared memory.

__device__ inline void init_barrier(unsigned barrier, unsigned arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
__device__ inline void arrive(unsigned barrier) {
  asm volatile("mbarrier.arrive.release.cta.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// Arrive, and let the barrier's phase wait for so many bytes of copies, too.
__device__ inline void arrive_expecting(unsigned barrier, unsigned bytes) {
  asm volatile("mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
__device__ inline void await(unsigned barrier, unsigned parity) {
  asm volatile("{\n.reg .pred p;\nAGAIN:\nmbarrier.try_wait.parity.acquire.cta.shared::cta.b64 p, [%0], %1;\n"
               "@p bra.uni DONE;\nbra.uni AGAIN;\nDONE:\n}" ::"r"(barrier), "r"(parity)
               : "memory");
}

// From global to shared memory by the copy engine: addresses and bytes are multiples of 16.
__device__ inline void copy_bytes(unsigned to, const void *from, unsigned bytes, unsigned barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to), "l"(from),
               "r"(bytes), "r"(barrier)
               : "memory");
}

template <typename Vector> __device__ inline Vector load_shared(unsigned address);
template <> __device__ inline Words load_shared<Words>(unsigned address) {
  Words value;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.word[0]), "=r"(value.word[1]), "=r"(value.word[2]), "=r"(value.word[3])
               : "r"(address)
               : "memory");
  return value;
}
template <> __device__ inline HalfWords load_shared<HalfWords>(unsigned address) {
  HalfWords value;
  asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(value.word[0]), "=r"(value.word[1]) : "r"(address) : "memory");
  return value;
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
