// Rows of COLS elements, of each of which a cluster of CLUSTER blocks holds INPUTS tensors' in shared memory, read from there as
// often as need be. A row may begin anywhere: its window begins with the line of 128 bytes that has its first element, and what
// the window has of its neighbours is replaced. A thread copies what it will read itself, asynchronously, so that no barrier is
// needed before it does. Parts of a row begin with a line, in shared memory, too: on an H200 softmax took 4% more time where a
// warp's copies straddled lines of memory, 4 to 8% where they straddled those of shared memory.

constexpr int WARPS = THREADS / 32;
constexpr unsigned ALL_LANES = 0xffffffffu;
constexpr int LINE = 128 / sizeof(T);
constexpr bool RAGGED = COLS % LINE != 0;
constexpr int TILES = (SLICE + THREADS * ITEMS - 1) / (THREADS * ITEMS);  // SLICE: vectors of a block
static_assert(VEC * sizeof(T) == 16 && TILES <= 8, "vectors of 16 bytes, and as many tiles as await_tile can tell apart");
static_assert(SLICE * VEC % LINE == 0 && (CLUSTER - 1) * SLICE < COLS / VEC && CLUSTER * SLICE >= (COLS + VEC - 1) / VEC,
              "parts begin with a line, and each block has one");

// A block's part of its row.
struct Part {
  unsigned rank;     // which of the cluster's blocks
  long long origin;  // where the window begins in a tensor
  int lead;          // elements of the window before the row
  int vectors;       // of the window
  int first, end;    // this block's
  int last_bytes;    // of the window's last vector, which may reach beyond the tensor

  __device__ explicit Part(long long rows) {
    const long long row = blockIdx.x / CLUSTER, start = row * COLS;
    rank = blockIdx.x % CLUSTER;
    lead = RAGGED ? (int)(start % LINE) : 0;
    origin = start - lead;
    vectors = (lead + COLS + VEC - 1) / VEC;
    first = rank * SLICE;
    end = min(first + SLICE, vectors);
    last_bytes = COLS % VEC != 0 && row + 1 == rows ? (lead + COLS - (vectors - 1) * VEC) * (int)sizeof(T) : 16;
  }
  __device__ int vector(int tile, int item) const { return first + (tile * ITEMS + item) * THREADS + (int)threadIdx.x; }
  __device__ long long place(int vector) const { return origin + (long long)vector * VEC; }
  __device__ bool whole(int vector) const { return !RAGGED || (vector * VEC >= lead && (vector + 1) * VEC <= lead + COLS); }
  __device__ bool has(int vector, int k) const { return (unsigned)(vector * VEC + k - lead) < (unsigned)COLS; }

  __device__ void store(T *tensor, int vector, const Vector &value) const {
    if (whole(vector)) {
      *reinterpret_cast<Vector *>(tensor + place(vector)) = value;
      return;
    }
#pragma unroll
    for (int k = 0; k < VEC; ++k)
      if (has(vector, k)) tensor[place(vector) + k] = from_float<T>(value.get(k));
  }
};

struct Tile {
  Vector held[ITEMS];

  // function(element) for each element
  template <typename Function> __device__ void each(Function function) {
#pragma unroll
    for (int item = 0; item < ITEMS; ++item) {
#pragma unroll
      for (int k = 0; k < VEC; ++k) function(held[item].get(k));
      held[item].stay_packed();
    }
  }
};

template <int PENDING> __device__ inline void await_groups() { asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory"); }

struct Stage {
  Vector *memory;

  __device__ Stage() {
    extern __shared__ __align__(128) uint4 dynamic[];
    memory = reinterpret_cast<Vector *>(dynamic);
  }
  __device__ Vector *place(int input, int vector, const Part &part) const { return memory + input * SLICE + (vector - part.first); }

  __device__ void copy(const T *const (&tensors)[INPUTS], const Part &part) const {
#pragma unroll
    for (int tile = 0; tile < TILES; ++tile) {
#pragma unroll
      for (int item = 0; item < ITEMS; ++item) {
        const int vector = part.vector(tile, item);
        if (vector >= part.end) break;
        const int bytes = vector + 1 == part.vectors ? part.last_bytes : 16;
#pragma unroll
        for (int input = 0; input < INPUTS; ++input)
          asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"((unsigned)__cvta_generic_to_shared(
                           place(input, vector, part))),
                       "l"(tensors[input] + part.place(vector)), "r"(bytes)
                       : "memory");
      }
      asm volatile("cp.async.commit_group;" ::: "memory");
    }
  }

  // `tile` is a constant where the loop around it is unrolled.
  __device__ void await_tile(int tile) const {
    switch (TILES - 1 - tile) {
    case 0: return await_groups<0>();
    case 1: return await_groups<1>();
    case 2: return await_groups<2>();
    case 3: return await_groups<3>();
    case 4: return await_groups<4>();
    case 5: return await_groups<5>();
    case 6: return await_groups<6>();
    default: return await_groups<7>();
    }
  }

  // What is not of the row becomes `padding`.
  __device__ void load(Tile &into, int input, int tile, const Part &part, float padding) const {
#pragma unroll
    for (int item = 0; item < ITEMS; ++item) {
      const int vector = part.vector(tile, item);
      if (vector < part.end) {
        into.held[item] = *place(input, vector, part);
        if (!part.whole(vector))
          into.held[item].transform([&](int k, float value) { return part.has(vector, k) ? value : padding; });
      } else {
        into.held[item].fill(padding);
      }
    }
  }
};

// Where the warps of all blocks bring their part of a row's result together: each stores its own in a slot of every block, whose
// barrier counts the bytes. (Slots that are polled instead took 1 to 8% more of softmax's time on an H200.) Partial has COUNT (1 or
// 2) floats `part`, merge(other), and a default that merges to nothing.
template <typename Partial> struct Meeting {
  static constexpr int SLOTS = CLUSTER * WARPS;
  float2 *slots;
#if CLUSTER > 1
  unsigned barrier;
#endif

  // Before anything is waited for. The last warp has least to copy.
  __device__ Meeting() {
    __shared__ float2 memory[SLOTS];
    slots = memory;
#if CLUSTER > 1
    __shared__ unsigned long long arrived;
    barrier = shared(&arrived);
    if (threadIdx.x == THREADS - 32) {
      asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barrier) : "memory");
      asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
      asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"((int)sizeof(memory)) : "memory");
    }
    // the fence has released the barrier: a release by every thread here took up to 2% of softmax's time on an H200
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#endif
  }

  // While copies are on their way: the siblings have started, and their barriers can be counted on.
  __device__ void greet() const {
#if CLUSTER > 1
    cluster_wait();
#endif
  }

  // All threads of all blocks get the same total.
  __device__ Partial reduce(Partial mine, const Part &part) const {
    mine = reduce_warp(mine);
    float2 *slot = slots + part.rank * WARPS + threadIdx.x / 32;
    const float2 told = {mine.part[0], mine.part[Partial::COUNT - 1]};
#if CLUSTER > 1
    if (lane() < CLUSTER) push(slot, lane(), told);
    await_all();
#else
    if (lane() == 0) *slot = told;
    __syncthreads();
#endif
    Partial total;
    for (int other = lane(); other < SLOTS; other += 32) {
      const float2 theirs = slots[other];
      Partial one;
      one.part[0] = theirs.x;
      if constexpr (Partial::COUNT > 1) one.part[1] = theirs.y;
      total.merge(one);
    }
    return reduce_warp(total);
  }

private:
  __device__ static int lane() { return threadIdx.x % 32; }
  __device__ static unsigned shared(const void *place) { return (unsigned)__cvta_generic_to_shared(place); }

#if CLUSTER > 1
  // In block `rank`, where this block has `slot`. A block leaves when all of its slots have been stored to, so that none is later.
  __device__ void push(const float2 *slot, unsigned rank, float2 value) const {
    unsigned there, counted;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(shared(slot)), "r"(rank));
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(counted) : "r"(barrier), "r"(rank));
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];" ::"r"(there), "f"(value.x),
                 "f"(value.y), "r"(counted)
                 : "memory");
  }
  __device__ void await_all() const {
    asm volatile("{\n.reg .pred p;\nAGAIN:\nmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%0], 0;\n"
                 "@!p bra AGAIN;\n}" ::"r"(barrier)
                 : "memory");
  }
#endif

  __device__ static Partial reduce_warp(Partial mine) {
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) {
      Partial other;
#pragma unroll
      for (int k = 0; k < Partial::COUNT; ++k) other.part[k] = __shfl_xor_sync(ALL_LANES, mine.part[k], distance);
      mine.merge(other);
    }
    return mine;
  }
};
