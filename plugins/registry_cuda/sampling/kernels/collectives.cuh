// Reductions and scans over a warp, over a thread block, and what each block tells its siblings.

constexpr int WARPS = THREADS / 32;
constexpr unsigned ALL_LANES = 0xffffffffu;

struct Sum {
  template <typename Value> __device__ Value operator()(Value one, Value other) const { return one + other; }
};
struct Least {
  template <typename Value> __device__ Value operator()(Value one, Value other) const { return one < other ? one : other; }
};
// `other`, if one of them is NaN
struct Greatest {
  template <typename Value> __device__ Value operator()(Value one, Value other) const { return one > other ? one : other; }
};

// Over each group of LANES neighbouring lanes; every lane gets the result.
template <int LANES = 32, typename Value, typename Merge> __device__ Value over_warp(Value value, Merge merge) {
#pragma unroll
  for (int distance = LANES / 2; distance > 0; distance /= 2)
    value = merge(value, __shfl_xor_sync(ALL_LANES, value, distance));
  return value;
}

template <typename Value> __device__ Value scan_warp(Value value) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const Value behind = __shfl_up_sync(ALL_LANES, value, distance);
    if (lane >= distance) value += behind;
  }
  return value;
}

// `parts` are WARPS values in shared memory, each that of a warp; what is before and in all, for this thread's warp.
template <typename Value> struct Places { Value before, all; };
template <typename Value> __device__ Places<Value> places_of(const Value *parts) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const Value part = lane < WARPS ? parts[lane] : Value(0);
  return {over_warp(lane < warp ? part : Value(0), Sum()), over_warp(part, Sum())};
}

// The sum over the block; `parts` are free again after the next barrier.
template <typename Value> __device__ Value sum_block(Value value, Value *parts) {
  value = over_warp(value, Sum());
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = value;
  __syncthreads();
  return places_of(parts).all;
}

// Put a value that all threads of this block have into `slots[own rank]` of every block of the cluster.
template <typename Value> __device__ void tell_siblings(Value *slots, const Value &value) {
  if (threadIdx.x < CLUSTER) *at_sibling(slots + blockIdx.x % CLUSTER, threadIdx.x) = value;
}
