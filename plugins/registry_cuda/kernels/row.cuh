// Rows of COLS columns. A row belongs to THREADS threads in each of CLUSTER thread blocks; a block holds ROWS rows at
// once (one when CLUSTER > 1). Each of the CLUSTER blocks has SLICE neighbouring columns, read in tiles of
// THREADS * ITEMS vectors.

constexpr int WARPS = THREADS / 32;
constexpr int SLICE = (COLS / VEC + CLUSTER - 1) / CLUSTER * VEC;
constexpr int TILE = THREADS * ITEMS * VEC;
constexpr int TILES = (SLICE + TILE - 1) / TILE;
constexpr unsigned ALL_LANES = 0xffffffffu;

// ptxas takes as many registers as it may, so ask for 1024 threads on a multiprocessor: 64 registers each. Only a part
// that fills more than half of those gets 128.
constexpr int REGISTERS = ITEMS * Vector::WORDS <= 32 ? 64 : 128;
constexpr int BLOCKS = 65536 / REGISTERS / (THREADS * ROWS) > 0 ? 65536 / REGISTERS / (THREADS * ROWS) : 1;

struct Position {
  int group;        // which of the block's rows
  int thread;       // within the row's threads of this block
  unsigned rank;    // which of the cluster's blocks
  int first, end;   // this block's columns
  long long row;

  __device__ Position() {
    group = threadIdx.x / THREADS;
    thread = threadIdx.x % THREADS;
    rank = blockIdx.x % CLUSTER;
    first = rank * SLICE;
    end = first + SLICE < COLS ? first + SLICE : COLS;
    row = (long long)(blockIdx.x / CLUSTER) * ROWS + group;
  }
  __device__ int column(int tile, int item) const { return first + tile * TILE + (item * THREADS + thread) * VEC; }
};

struct Tile {
  Vector held[ITEMS];

  // All loads first: they are in flight together. What lies beyond the row becomes `padding`.
  __device__ void load(const T *row, const Position &position, int tile, float padding) {
#pragma unroll
    for (int item = 0; item < ITEMS; ++item) {
      const int column = position.column(tile, item);
      if (column < position.end) {
        held[item] = *reinterpret_cast<const Vector *>(row + column);
      } else {
        held[item].fill(padding);
      }
    }
  }

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

// Merge one partial result of each thread over the whole row; every thread gets the same total. Partial has
// COUNT floats `part`, merge(other), and a default that merges to nothing.
template <typename Partial> __device__ Partial reduce_warp(Partial mine) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    Partial other;
#pragma unroll
    for (int k = 0; k < Partial::COUNT; ++k) other.part[k] = __shfl_xor_sync(ALL_LANES, mine.part[k], distance);
    mine.merge(other);
  }
  return mine;
}

template <typename Partial> __device__ Partial reduce_row(Partial mine, const Position &position) {
  mine = reduce_warp(mine);
  if constexpr (CLUSTER * WARPS == 1) return mine;
  __shared__ float slots[ROWS][CLUSTER * WARPS][Partial::COUNT];
  const int warp = position.thread / 32, lane = position.thread % 32;
  float *slot = slots[position.group][position.rank * WARPS + warp];
#if CLUSTER > 1
  // siblings must have started before they are written to (arrival: at the kernel's begin)
  cluster_wait();
  if (lane < CLUSTER)
    for (int k = 0; k < Partial::COUNT; ++k) cluster_store(slot + k, lane, mine.part[k]);
  cluster_arrive();
  cluster_wait();
#else
  if (lane == 0)
    for (int k = 0; k < Partial::COUNT; ++k) slot[k] = mine.part[k];
  __syncthreads();
#endif
  Partial total;
  for (int other = lane; other < CLUSTER * WARPS; other += 32) {
    Partial theirs;
    for (int k = 0; k < Partial::COUNT; ++k) theirs.part[k] = slots[position.group][other][k];
    total.merge(theirs);
  }
  return reduce_warp(total);
}
