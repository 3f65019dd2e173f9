// softmax of rows of COLS columns that are read once, by the copy engine. Each block of a CLUSTER has a piece of every row
// of the cluster, in STAGES parts of its shared memory; TEAMS of THREADS take turns, so that one computes while another
// waits for the cluster's other blocks. One more warp asks for rows and sends results. A thread holds ITEMS chunks of 16
// bytes of a piece in registers.
//
// Rows of a number of bytes that 16 does not divide begin anywhere in a chunk. Their first and last chunk hold elements
// of the rows beside them, which are left out, and written one by one.

constexpr int WARPS = THREADS / 32;
constexpr unsigned ALL_LANES = 0xffffffffu;
constexpr float LOG2E = 1.4426950408889634f;
constexpr long long ROW_BYTES = (long long)COLS * sizeof(T);
constexpr bool WHOLE = ROW_BYTES % 16 == 0;
constexpr int CHUNKS = (int)((ROW_BYTES + (WHOLE ? 0 : 16 - (int)sizeof(T)) + 15) / 16);
constexpr int PIECE = (CHUNKS + CLUSTER - 1) / CLUSTER;
constexpr int ITEMS = (PIECE + THREADS - 1) / THREADS;
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

// Halves fold the division into the exponent. float cannot: log2(sum) errs by 2**-22 there.
struct Weight {
  float maximum, scale;

  __device__ explicit Weight(const Normaliser &total) {
    maximum = total.maximum;
    scale = FAST ? -log2f(total.sum) : 1.0f / total.sum;
  }
  __device__ float operator()(float x) const {
    return FAST ? exp2f(fmaf(x - maximum, LOG2E, scale)) : expf(x - maximum) * scale;
  }
};

// What a warp sends of its normaliser.
struct alignas(8) Part { float maximum, sum; };

// A block's piece of a row.
struct Piece {
  long long start;   // bytes from the tensor's begin to the row's first chunk
  int lead;          // elements of that chunk that belong to the row before
  int chunks;        // of the row
  int first, count;  // chunks of this block

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

// A thread's chunks; -inf where the row has no element.
__device__ void take(Vector (&held)[ITEMS], const Vector *stage, const T *row, const Piece &piece, int thread) {
#pragma unroll
  for (int item = 0; item < ITEMS; ++item) {
    const int chunk = item * THREADS + thread;
    if (chunk >= piece.count) {
      held[item].fill(LOWEST);
    } else if (piece.shared_with_others(chunk)) {
      held[item].fill(LOWEST);
      held[item].transform([&](int k, float) {
        const int column = piece.column(chunk, k);
        return column >= 0 && column < COLS ? to_float(row[column]) : LOWEST;
      });
    } else {
      held[item] = stage[chunk];
    }
  }
}

__device__ Normaliser normaliser_of(Vector (&held)[ITEMS]) {
  Normaliser mine;
#pragma unroll
  for (int item = 0; item < ITEMS; ++item) {
#pragma unroll
    for (int k = 0; k < VEC; ++k) mine.maximum = fmaxf(mine.maximum, held[item].get(k));
    held[item].stay_packed();
  }
  const float origin = Normaliser::origin(mine.maximum);
#pragma unroll
  for (int item = 0; item < ITEMS; ++item) {
#pragma unroll
    for (int k = 0; k < VEC; ++k) mine.sum += exponential(held[item].get(k) - origin);
    held[item].stay_packed();
  }
  return mine;
}

// The row's normaliser of all threads' own. Two rows of a team in turn have their own slots: nobody writes to a slot
// before all have sent their part of the next row, and so have read this one.
__device__ Normaliser merge_row(Normaliser mine, int team, int thread, int turn, int rank, Arrival *parts) {
  __shared__ Part slots[TEAMS][2][CLUSTER * WARPS];
  mine.merge_warp();
  const int warp = thread / 32, lane = thread % 32;
  Part *slot = &slots[team][turn % 2][rank * WARPS + warp];
#if CLUSTER > 1
  Arrival *met = parts + team * 2 + turn % 2;
  if (thread == 0) arrive_expecting(met, CLUSTER * WARPS * sizeof(Part));
  if (lane < CLUSTER) send_pair(&slot->maximum, lane, mine.maximum, mine.sum, met);
  await_arrival(met, turn / 2 % 2);
#else
  if (lane == 0) *slot = {mine.maximum, mine.sum};
  meet_team(team, THREADS);
#endif
  Normaliser total;
  for (int other = lane; other < CLUSTER * WARPS; other += 32) {
    const Part theirs = slots[team][turn % 2][other];
    total.merge(theirs.maximum, theirs.sum);
  }
  total.merge_warp();
  return total;
}

// The results, in place of the elements; those of chunks that other rows share, directly.
__device__ void give(Vector (&held)[ITEMS], const Weight &weight, Vector *stage, T *row, const Piece &piece, int thread) {
#pragma unroll
  for (int item = 0; item < ITEMS; ++item) {
    const int chunk = item * THREADS + thread;
    if (chunk >= piece.count) continue;
    if (piece.shared_with_others(chunk)) {
      for (int k = 0; k < VEC; ++k) {
        const int column = piece.column(chunk, k);
        if (column >= 0 && column < COLS) row[column] = from_float<T>(weight(held[item].get(k)));
      }
    } else {
      held[item].transform([&](int, float x) { return weight(x); });
      stage[chunk] = held[item];
    }
  }
}

// A cluster computes `each` rows one after another, the last one maybe fewer.
extern "C" __global__ void __launch_bounds__(THREADS *TEAMS + 32, 1)
softmax_pipelined(T *__restrict__ y, const T *__restrict__ x, long long rows, long long each) {
  __shared__ Arrival arrived[STAGES], done[STAGES], parts[TEAMS * 2];
  Vector *stages = dynamic_shared<Vector>();
  const int rank = blockIdx.x % CLUSTER;
  const long long first = blockIdx.x / CLUSTER * each;
  const int count = (int)(rows - first < each ? rows - first : each);
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < STAGES; ++stage) init_arrival(&arrived[stage], 1), init_arrival(&done[stage], THREADS);
    for (int part = 0; part < TEAMS * 2; ++part) init_arrival(&parts[part], 1);
    publish_arrivals();
  }
  __syncthreads();
#if CLUSTER > 1
  // siblings must have started before they are written to
  cluster_arrive();
  cluster_wait();
#endif
  if (threadIdx.x >= THREADS * TEAMS) {
    if (threadIdx.x > THREADS * TEAMS) return;
    const auto bring_row = [&](int number) {
      Vector *stage = stages + number % STAGES * PIECE;
      bring_piece(stage, x, Piece(first + number, rank), first + number == rows - 1, &arrived[number % STAGES]);
    };
    for (int number = 0; number < STAGES && number < count; ++number) bring_row(number);
    for (int number = 0; number < count; ++number) {
      await_arrival(&done[number % STAGES], number / STAGES % 2);
      send_piece(y, stages + number % STAGES * PIECE, Piece(first + number, rank));
      if (number + STAGES >= count) continue;
      await_read();
      bring_row(number + STAGES);
    }
    await_sent();
    return;
  }
  const int team = threadIdx.x / THREADS, thread = threadIdx.x % THREADS;
  for (int number = team, turn = 0; number < count; number += TEAMS, ++turn) {
    const Piece piece(first + number, rank);
    Vector *stage = stages + number % STAGES * PIECE;
    await_arrival(&arrived[number % STAGES], number / STAGES % 2);
    Vector held[ITEMS];
    take(held, stage, x + (first + number) * COLS, piece, thread);
    const Weight weight(merge_row(normaliser_of(held), team, thread, turn, rank, parts));
    give(held, weight, stage, y + (first + number) * COLS, piece, thread);
    publish();
    arrive(&done[number % STAGES]);
  }
}
