// Copies of many bytes between global and shared memory that the copy engine makes (compute capability 9.0), and barriers
// in shared memory that count the bytes that have come. Addresses and sizes are multiples of 16.

struct alignas(8) Arrival { unsigned long long state; };

__device__ inline unsigned shared_address(const void *place) { return (unsigned)__cvta_generic_to_shared(place); }

template <typename Item> __device__ inline Item *dynamic_shared() {
  extern __shared__ __align__(128) unsigned char shared_bytes[];
  return reinterpret_cast<Item *>(shared_bytes);
}

// One thread arrives in each phase, and the bytes that it expects.
__device__ inline void init_arrival(Arrival *arrival) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(arrival)) : "memory");
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ inline void await_arrival(Arrival *arrival, unsigned parity) {
  asm volatile("{\n.reg .pred p;\nAGAIN:\nmbarrier.try_wait.parity.acquire.cta.shared::cta.b64 p, [%0], %1;\n"
               "@p bra.uni DONE;\nbra.uni AGAIN;\nDONE:\n}" ::"r"(shared_address(arrival)), "r"(parity)
               : "memory");
}

// Start a copy to shared memory, for which the arrival's phase waits.
__device__ inline void bring(void *to, const void *from, unsigned bytes, Arrival *arrival) {
  const unsigned barrier = shared_address(arrival);
  asm volatile("mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
  if (bytes == 0) return;
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   shared_address(to)),
               "l"(from), "r"(bytes), "r"(barrier)
               : "memory");
}

// What this thread has written to shared memory, for copies that start after a barrier of the block.
__device__ inline void publish() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Start a copy from shared memory. `await_read<n>`: until all but the last n have read what they copy.
__device__ inline void send(void *to, const void *from, unsigned bytes) {
  if (bytes > 0)
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(shared_address(from)), "r"(bytes)
                 : "memory");
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
template <int PENDING> __device__ inline void await_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(PENDING) : "memory");
}
__device__ inline void await_sent() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }
