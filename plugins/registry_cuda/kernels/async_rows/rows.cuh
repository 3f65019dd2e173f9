// Rows of COLS elements, of each of which a cluster of CLUSTER blocks holds INPUTS tensors' in shared memory, read from there as
// often as need be. A row may begin anywhere: its window begins with the line of 128 bytes that has its first element, and what
// the window has of its neighbours is replaced. A thread copies what it will read itself, asynchronously, so that no barrier is
// needed before it does. Parts of a row begin with a line, too: a warp's copies that straddle lines took 4% more time on an H200.

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
    extern __shared__ uint4 dynamic[];
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

// Where the warps of all blocks bring their part of a row's result together: each stores its own in a slot of every block, and
// waits until all slots have been stored to. (On an H200 an mbarrier that counts them took 2% more of softmax's time over 1024
// rows of 128256, 1% less over 256; a release by all threads 2% more.) Partial has COUNT (1 or 2) floats `part`, merge(other),
// and a default that merges to nothing.
template <typename Partial> struct Meeting {
  using Bits = unsigned long long;
  static constexpr int SLOTS = CLUSTER * WARPS;
  static constexpr Bits EMPTY = 0xffe5c3a1ffd2b497ull;  // NaN with payloads that no arithmetic makes
  Bits *slots;

  // Before anything is waited for. The last warp, which has least to copy, empties the slots and alone releases them.
  __device__ Meeting() {
    __shared__ Bits memory[SLOTS];
    slots = memory;
#if CLUSTER > 1
    if (threadIdx.x >= THREADS - 32) {
      for (int slot = lane(); slot < SLOTS; slot += 32) slots[slot] = EMPTY;
      asm volatile("fence.acq_rel.cluster;" ::: "memory");
    }
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#endif
  }

  // While copies are on their way: the siblings have started, and their slots are empty.
  __device__ void greet() const {
#if CLUSTER > 1
    cluster_wait();
#endif
  }

  // All threads of all blocks get the same total.
  __device__ Partial reduce(Partial mine, const Part &part) const {
    mine = reduce_warp(mine);
    const float2 pair = {mine.part[0], mine.part[Partial::COUNT - 1]};
    const Bits told = reinterpret_cast<const Bits &>(pair);
#if CLUSTER > 1
    if (lane() < CLUSTER) store_in(lane(), slots + part.rank * WARPS + threadIdx.x / 32, told);
#else
    if (lane() == 0) slots[threadIdx.x / 32] = told;
    __syncthreads();
#endif
    Partial total;
    for (int slot = lane(); slot < SLOTS; slot += 32) {
      const Bits bits = stored(slot);
      const float2 theirs = reinterpret_cast<const float2 &>(bits);
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
  // In block `rank`, where this block has `place`.
  __device__ void store_in(unsigned rank, const Bits *place, Bits value) const {
    unsigned there;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(shared(place)), "r"(rank));
    asm volatile("st.relaxed.cluster.shared::cluster.b64 [%0], %1;" ::"r"(there), "l"(value) : "memory");
  }
  // A block leaves when all of its slots have been stored to, so that none is stored to later.
  __device__ Bits stored(int slot) const {
    Bits found;
    do asm volatile("ld.relaxed.cluster.shared::cta.b64 %0, [%1];" : "=l"(found) : "r"(shared(slots + slot)) : "memory");
    while (found == EMPTY);
    return found;
  }
#else
  __device__ Bits stored(int slot) const { return slots[slot]; }
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
