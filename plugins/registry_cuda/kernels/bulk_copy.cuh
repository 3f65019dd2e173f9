// Copies of many bytes between global and shared memory that the copy engine makes (compute capability 9.0), barriers in
// shared memory that count threads and bytes, and what teams of a block's warps need to meet. Addresses and sizes of
// copies are multiples of 16.

struct alignas(8) Arrival { unsigned long long state; };

__device__ inline unsigned shared_address(const void *place) { return (unsigned)__cvta_generic_to_shared(place); }

template <typename Item> __device__ inline Item *dynamic_shared() {
  extern __shared__ __align__(128) unsigned char shared_bytes[];
  return reinterpret_cast<Item *>(shared_bytes);
}

// So many arrivals complete a phase, and the bytes that these expect.
__device__ inline void init_arrival(Arrival *arrival, unsigned count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(arrival)), "r"(count) : "memory");
}
// What was initialised can be used by copies, and by the cluster's other blocks after they have met.
__device__ inline void publish_arrivals() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
__device__ inline void arrive(Arrival *arrival) {
  asm volatile("mbarrier.arrive.release.cta.shared::cta.b64 _, [%0];" ::"r"(shared_address(arrival)) : "memory");
}
__device__ inline void arrive_expecting(Arrival *arrival, unsigned bytes) {
  asm volatile("mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(arrival)), "r"(bytes)
               : "memory");
}
__device__ inline void await_arrival(Arrival *arrival, unsigned parity) {
  asm volatile("{\n.reg .pred p;\nAGAIN:\nmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%0], %1;\n"
               "@p bra.uni DONE;\nbra.uni AGAIN;\nDONE:\n}" ::"r"(shared_address(arrival)), "r"(parity)
               : "memory");
}

// Arrive, and start a copy to shared memory that the phase waits for.
__device__ inline void bring(void *to, const void *from, unsigned bytes, Arrival *arrival) {
  arrive_expecting(arrival, bytes);
  if (bytes == 0) return;
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   shared_address(to)),
               "l"(from), "r"(bytes), "r"(shared_address(arrival))
               : "memory");
}

// What this thread has written to shared memory can be read by copies that start after it has arrived.
__device__ inline void publish() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Start a copy from shared memory. `await_read`: until its source can be written to; `await_sent`: until it is made.
__device__ inline void send(void *to, const void *from, unsigned bytes) {
  if (bytes > 0)
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(shared_address(from)), "r"(bytes)
                 : "memory");
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
__device__ inline void await_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }
__device__ inline void await_sent() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

// Two floats to where block `rank` of the cluster has what this one has at `place`: 8 bytes for the arrival there.
__device__ inline void send_pair(float *place, unsigned rank, float one, float other, Arrival *arrival) {
  unsigned there, barrier;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(shared_address(place)), "r"(rank));
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(barrier) : "r"(shared_address(arrival)), "r"(rank));
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];" ::"r"(there), "f"(one),
               "f"(other), "r"(barrier)
               : "memory");
}

// The threads of one team wait for each other.
__device__ inline void meet_team(int team, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(team + 1), "r"(threads) : "memory");
}
