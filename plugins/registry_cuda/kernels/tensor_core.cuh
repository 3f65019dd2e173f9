// Instructions without a name in CUDA C++: the tensor cores' m16n8k16, loads that say how they use the caches, and a
// 16-byte store into a sibling's shared memory.

struct alignas(16) Words { unsigned word[4]; };
struct alignas(8) HalfWords { unsigned word[2]; };
struct alignas(16) Floats { float part[4]; };

// Each load happens only where it is `wanted`, and else leaves what was there: a branch around it would cost a copy.

// What no other warp reads: past L1, so that the activations stay there.
__device__ inline void load_once(Words &into, const Words *from, bool wanted) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %5, 0;\n"
               "@p ld.global.L1::no_allocate.L2::256B.v4.u32 {%0, %1, %2, %3}, [%4];\n}"
               : "+r"(into.word[0]), "+r"(into.word[1]), "+r"(into.word[2]), "+r"(into.word[3])
               : "l"(from), "r"((int)wanted));
}
__device__ inline void load_once(HalfWords &into, const HalfWords *from, bool wanted) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %3, 0;\n"
               "@p ld.global.L1::no_allocate.v2.u32 {%0, %1}, [%2];\n}"
               : "+r"(into.word[0]), "+r"(into.word[1])
               : "l"(from), "r"((int)wanted));
}

// What the block's other warps read too.
__device__ inline void load_often(Words &into, const void *from, bool wanted) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %5, 0;\n@p ld.global.v4.u32 {%0, %1, %2, %3}, [%4];\n}"
               : "+r"(into.word[0]), "+r"(into.word[1]), "+r"(into.word[2]), "+r"(into.word[3])
               : "l"(from), "r"((int)wanted));
}

// Loads written before it are issued before it: ptxas keeps the order of loads that are not .nc around a barrier, and
// would else put some of them where their registers are first needed, a whole latency later.
__device__ inline void issue_loads() { __syncwarp(); }

// (word & mask) | set, in one instruction.
__device__ inline unsigned mask_and_set(unsigned word, unsigned mask, unsigned set) {
  unsigned made;
  asm("lop3.b32 %0, %1, %2, %3, 0xEA;" : "=r"(made) : "r"(word), "r"(mask), "r"(set));
  return made;
}

// sum = A * B + C over the warp: A 16 x 16, B 16 x 8, C 16 x 8, spread over the lanes as PTX has them.
__device__ inline void multiply_add(float (&sum)[4], const unsigned (&a)[4], unsigned b0, unsigned b1, const float (&c)[4],
                                    __half) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
               "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};"
               : "=f"(sum[0]), "=f"(sum[1]), "=f"(sum[2]), "=f"(sum[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(c[0]), "f"(c[1]), "f"(c[2]), "f"(c[3]));
}
__device__ inline void multiply_add(float (&sum)[4], const unsigned (&a)[4], unsigned b0, unsigned b1, const float (&c)[4],
                                    __nv_bfloat16) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
               "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};"
               : "=f"(sum[0]), "=f"(sum[1]), "=f"(sum[2]), "=f"(sum[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(c[0]), "f"(c[1]), "f"(c[2]), "f"(c[3]));
}

__device__ inline Floats *dynamic_shared() {
  extern __shared__ Floats memory[];
  return memory;
}

// Blocks of a cluster send each other vectors, and each waits for those that it gets: no fence and no barrier over the
// cluster behind the stores. Slot 0 of the dynamic shared memory is the barrier that counts their bytes.
__device__ inline unsigned shared_address(const void *place) { return (unsigned)__cvta_generic_to_shared(place); }

// By every thread of every block, at the begin. `bytes` will arrive here.
__device__ inline void expect_vectors(unsigned bytes) {
  const unsigned barrier = shared_address(dynamic_shared());
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barrier) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
  }
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}

// By every thread, before the first vector is sent: the siblings have started.
__device__ inline void meet_siblings() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }

// Put value where block `rank` of the cluster has what this block has at `place` (shared memory).
__device__ inline void send_vector(Floats *place, unsigned rank, const Floats &value) {
  unsigned there, barrier;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(shared_address(place)), "r"(rank));
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(barrier) : "r"(shared_address(dynamic_shared())), "r"(rank));
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(there),
               "f"(value.part[0]), "f"(value.part[1]), "f"(value.part[2]), "f"(value.part[3]), "r"(barrier)
               : "memory");
}

// By every thread: until all the expected bytes are here.
__device__ inline void await_vectors() {
  const unsigned barrier = shared_address(dynamic_shared());
  unsigned done = 0;
  while (!done)
    asm volatile(
        "{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], 0;\nselp.u32 %0, 1, 0, p;\n}"
        : "=r"(done)
        : "r"(barrier)
        : "memory");
}
