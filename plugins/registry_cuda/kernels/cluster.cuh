// Thread-block clusters (compute capability 9.0): a barrier over the cluster, and stores into a sibling's shared memory.

__device__ inline void cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
__device__ inline void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }

// Store value where block `rank` of the cluster has what this block has at `place` (shared memory).
__device__ inline void cluster_store(float *place, unsigned rank, float value) {
  unsigned here = (unsigned)__cvta_generic_to_shared(place), there;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(here), "r"(rank));
  asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(there), "f"(value) : "memory");
}
