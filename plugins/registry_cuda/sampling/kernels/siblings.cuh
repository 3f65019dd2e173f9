// What the CLUSTER thread blocks of a row do together: memory that siblings can reach, and meetings of all their threads.

// This block's variables, in shared memory.
template <typename State> __device__ State &block_state() {
  __shared__ State state;
  return state;
}

// This block's dynamic shared memory.
__device__ inline void *block_room() {
  extern __shared__ uint4 room[];
  return room;
}

// What block `rank` of the cluster has where this block has `own`.
template <typename Value> __device__ Value *at_sibling(Value *own, unsigned rank) {
#if CLUSTER > 1
  Value *theirs;
  asm("mapa.u64 %0, %1, %2;" : "=l"(theirs) : "l"(own), "r"(rank));
  return theirs;
#else
  return own;
#endif
}

// Siblings must have started before their memory is touched: said at a kernel's begin, awaited before the first touch.
__device__ inline void say_started() {
#if CLUSTER > 1
  cluster_arrive();
#endif
}
__device__ inline void await_siblings() {
#if CLUSTER > 1
  cluster_wait();
#endif
}

// All threads of the cluster: what one wrote before it, each may read after it.
__device__ inline void meet() {
#if CLUSTER > 1
  cluster_arrive();
  cluster_wait();
#else
  __syncthreads();
#endif
}
