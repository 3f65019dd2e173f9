// softmax of rows of COLS columns that are read once, by the copy engine: while a cluster of blocks computes one of its
// ROWS rows, the copy engine brings the next ones and takes the last one away. Each block of a cluster has a piece of a
// row in one of STAGES parts of its shared memory, and a thread has ITEMS chunks of 16 bytes of it in registers: as
// exp(x - the thread's own maximum), so that there is one exponential an element.
//
// Rows of a number of bytes that 16 does not divide begin anywhere in a chunk. Their first and last chunk hold elements
// of the rows beside them, which are left out, and written one by one.

constexpr int WARPS = THREADS / 32;
constexpr unsigned ALL_LANES = 0xffffffffu;
constexpr long long ROW_BYTES = (long long)COLS * sizeof(T);
constexpr bool WHOLE = ROW_BYTES % 16 == 0;
constexpr int CHUNKS = (int)((ROW_BYTES + (WHOLE ? 0 : 16 - (int)sizeof(T)) + 15) / 16);
constexpr int PIECE = (CHUNKS + CLUSTER - 1) / CLUSTER;
constexpr int ITEMS = (PIECE + THREADS - 1) / THREADS;
constexpr int AHEAD = STAGES > 1 ? STAGES - 1 : 1;  // rows on the way before the first is computed
#define LOWEST (-CUDART_INF_F)

struct Normaliser {
  float maximum = LOWEST, sum = 0.0f;  // of exp(x - maximum)

  // -inf - -inf is NaN, and a masked part of a row is no reason for one
  __device__ static float origin(float maximum) { return maximum == LOWEST ? 0.0f : maximum; }
  __device__ void merge(float other_maximum, float other_sum) {
    const float most = fmaxf(maximum, other_maximum), from = origin(most);
    sum = sum * exponential(maximum - from) + other_sum * exponential(other_maximum - from);
    maximum = most;
  }
  __device__ void merge_warp() {
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) {
      const float their_maximum = __shfl_xor_sync(ALL_LANES, maximum, distance);
      merge(their_maximum, __shfl_xor_sync(ALL_LANES, sum, distance));
    }
  }
};

// A block's piece of a row.
struct Piece {
  long long start;  // bytes from the tensor's begin to the row's first chunk
  int lead;         // elements of that chunk that belong to the row before
  int chunks;       // of the row
  int first, count; // chunks of this block

  __device__ Piece(long long row, int rank) {
    const long long begin = row * ROW_BYTES;
    lead = WHOLE ? 0 : (int)(begin % 16) / (int)sizeof(T);
    start = begin - lead * (int)sizeof(T);
    chunks = WHOLE ? CHUNKS : (int)((lead * (int)sizeof(T) + ROW_BYTES + 15) / 16);
    first = rank * PIECE;
    count = chunks - first < PIECE ? chunks - first : PIECE;
    if (count < 0) count = 0;
  }
  __device__ int column(int chunk, int k) const { return (first + chunk) * VEC + k - lead; }
  // a chunk that also has elements of another row
  __device__ bool shared_with_others(int chunk) const {
    return !WHOLE && (column(chunk, 0) < 0 || column(chunk, VEC - 1) >= COLS);
  }
  __device__ bool ends(int chunk) const { return first + chunk == chunks - 1; }
};

// Start to bring a piece. The chunk that the tensor ends in is left out if it is not whole: nothing beyond is read.
__device__ void bring_piece(Vector *stage, const T *x, const Piece &piece, bool last_row, Arrival *arrival) {
  const bool cut = last_row && piece.count > 0 && piece.ends(piece.count - 1) && piece.shared_with_others(piece.count - 1);
  const char *from = reinterpret_cast<const char *>(x) + piece.start + piece.first * 16ll;
  bring(stage, from, (piece.count - cut) * 16, arrival);
}

__device__ void send_piece(T *y, const Vector *stage, const Piece &piece) {
  const int begin = piece.count > 0 && piece.shared_with_others(0);
  const int end = piece.count - (piece.count > begin && piece.shared_with_others(piece.count - 1));
  char *to = reinterpret_cast<char *>(y) + piece.start + (piece.first + begin) * 16ll;
  send(to, stage + begin, end > begin ? (end - begin) * 16 : 0);
}

// A thread's elements as floats; -inf where there is none.
__device__ void take(float (&held)[ITEMS][VEC], const Vector *stage, const T *row, const Piece &piece) {
#pragma unroll
  for (int item = 0; item < ITEMS; ++item) {
    const int chunk = item * THREADS + threadIdx.x;
    if (chunk >= piece.count) {
#pragma unroll
      for (int k = 0; k < VEC; ++k) held[item][k] = LOWEST;
    } else if (piece.shared_with_others(chunk)) {
      for (int k = 0; k < VEC; ++k) {
        const int column = piece.column(chunk, k);
        held[item][k] = column >= 0 && column < COLS ? to_float(row[column]) : LOWEST;
      }
    } else {
      const Vector vector = stage[chunk];
#pragma unroll
      for (int k = 0; k < VEC; ++k) held[item][k] = vector.get(k);
    }
  }
}

// Elements become exp(element - the thread's maximum).
__device__ Normaliser normalise(float (&held)[ITEMS][VEC]) {
  Normaliser mine;
#pragma unroll
  for (int item = 0; item < ITEMS; ++item)
#pragma unroll
    for (int k = 0; k < VEC; ++k) mine.maximum = fmaxf(mine.maximum, held[item][k]);
  const float origin = Normaliser::origin(mine.maximum);
#pragma unroll
  for (int item = 0; item < ITEMS; ++item)
#pragma unroll
    for (int k = 0; k < VEC; ++k) mine.sum += held[item][k] = exponential(held[item][k] - origin);
  return mine;
}

// The row's normaliser of all threads' own. Two rows in turn have their own slots, so that one barrier a row suffices.
__device__ Normaliser merge_row(Normaliser mine, int turn, int rank) {
  __shared__ float slots[2][CLUSTER * WARPS][2];
  mine.merge_warp();
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  float *slot = slots[turn % 2][rank * WARPS + warp];
#if CLUSTER > 1
  if (lane < CLUSTER) {
    cluster_store(slot, lane, mine.maximum);
    cluster_store(slot + 1, lane, mine.sum);
  }
  cluster_arrive();
  cluster_wait();
#else
  if (lane == 0) slot[0] = mine.maximum, slot[1] = mine.sum;
  __syncthreads();
#endif
  Normaliser total;
  for (int other = lane; other < CLUSTER * WARPS; other += 32) {
    const float *theirs = slots[turn % 2][other];
    total.merge(theirs[0], theirs[1]);
  }
  total.merge_warp();
  return total;
}

// The results, in place of the elements; those of chunks that other rows share, directly.
__device__ void give(const float (&held)[ITEMS][VEC], float factor, Vector *stage, T *row, const Piece &piece) {
#pragma unroll
  for (int item = 0; item < ITEMS; ++item) {
    const int chunk = item * THREADS + threadIdx.x;
    if (chunk >= piece.count) continue;
    if (piece.shared_with_others(chunk)) {
      for (int k = 0; k < VEC; ++k) {
        const int column = piece.column(chunk, k);
        if (column >= 0 && column < COLS) row[column] = from_float<T>(held[item][k] * factor);
      }
    } else {
      Vector vector;
      vector.transform([&](int k, float) { return held[item][k] * factor; });
      stage[chunk] = vector;
    }
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) softmax_pipelined(T *__restrict__ y, const T *__restrict__ x, long long rows) {
  __shared__ Arrival arrivals[STAGES];
  Vector *stages = dynamic_shared<Vector>();
  const int rank = blockIdx.x % CLUSTER;
  const long long first = (long long)(blockIdx.x / CLUSTER) * ROWS;
  const int count = rows - first < ROWS ? (int)(rows - first) : ROWS;
  const auto bring_row = [&](int number) {
    const Piece piece(first + number, rank);
    bring_piece(stages + number % STAGES * PIECE, x, piece, first + number == rows - 1, &arrivals[number % STAGES]);
  };
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < STAGES; ++stage) init_arrival(&arrivals[stage]);
    for (int number = 0; number < AHEAD && number < count; ++number) bring_row(number);
  }
  __syncthreads();
#if CLUSTER > 1
  // siblings must have started before they are written to
  cluster_arrive();
  cluster_wait();
#endif
  for (int number = 0; number < count; ++number) {
    const Piece piece(first + number, rank);
    Vector *stage = stages + number % STAGES * PIECE;
    await_arrival(&arrivals[number % STAGES], number / STAGES % 2);
    float held[ITEMS][VEC];
    take(held, stage, x + (first + number) * COLS, piece);
    const Normaliser mine = normalise(held), total = merge_row(mine, number, rank);
    give(held, exponential(mine.maximum - total.maximum) / total.sum, stage, y + (first + number) * COLS, piece);
    publish();
    __syncthreads();
    if (threadIdx.x == 0) {
      send_piece(y, stage, piece);
      if (number + AHEAD < count) {
        // the next row goes where the row before this one was
        await_read<AHEAD == STAGES ? 0 : 1>();
        bring_row(number + AHEAD);
      }
    }
  }
  if (threadIdx.x == 0) await_sent();
}
