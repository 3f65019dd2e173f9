// y = a @ W, W[k, n] = (q[k, n] - zero) * scale, for tens to thousands of rows of a ("tokens"): the weight, expanded in
// registers, is the 64-row operand of a warpgroup's product, and the tokens in shared memory are the other.
//
// A stripe is 32 columns of W, a chunk 32 of its rows, a unit the chunks that have one scale, as in gemm_int4.cu, whose
// prepared weight this kernel reads: lane 4 * g + t has columns 4 * g .. 4 * g + 3 of each stripe and k = 8 * t .. 8 * t + 7
// of each chunk. token_tiles.cu has brought the tokens into the order of K that follows from it.
//
// A block has COPIERS warps that ask the copy engine for what STAGES steps of 64 k's need, and warpgroups that multiply:
// GROUPS side by side, 128 columns each, and ALONG_K for each of these, which take the chunks of a step in turn. It goes from
// tile to tile, so that the next tile is on the way while one ends. K is split over the blocks of a CLUSTER, too. The sums of
// all parts of K are added in a fixed order.

constexpr int LANES = 32, WARPS = 4, STRIPE = 32, CHUNK = 32, WIDEST = 128;
constexpr int STEP_CHUNKS = 2;
constexpr int UNIT_CHUNKS = UNIT / CHUNK;
constexpr int UNITS = (K + UNIT - 1) / UNIT;
constexpr int CHUNKS = UNITS * UNIT_CHUNKS;
constexpr int STRIPES = (N + WIDEST - 1) / WIDEST * (WIDEST / STRIPE);
constexpr int PART = CHUNKS / CLUSTER;  // chunks of a block
constexpr int STEPS = PART / STEP_CHUNKS;
constexpr int UNROLLED = 4;
constexpr int TURNS = UNROLLED / ALONG_K;  // chunks that a warpgroup takes of so many
constexpr int STEP_UNITS = UNIT_CHUNKS < STEP_CHUNKS ? STEP_CHUNKS / UNIT_CHUNKS : 1;
constexpr int COLUMNS = GROUPS * WIDEST;
constexpr int TILES_N = (N + COLUMNS - 1) / COLUMNS;
constexpr int WARPGROUPS = GROUPS * ALONG_K;
constexpr int MULTIPLIERS = WARPGROUPS * WARPS * LANES;
constexpr bool SPLIT = CLUSTER * ALONG_K > 1;
// Warps that ask for copies: one alone takes longer to ask for a step than the step takes. A whole warpgroup of them can
// give registers to those that multiply.
constexpr int COPIERS = RESIDENT == 1 ? 4 : 2;
constexpr bool GIVES = WARPGROUPS == 2 && RESIDENT == 1;
constexpr int THREADS = MULTIPLIERS + COPIERS * LANES;
static_assert(PART * CLUSTER == CHUNKS && PART % UNROLLED == 0, "a block's part of K is a whole number of steps and units");
static_assert(ALONG_K <= STEP_CHUNKS && UNROLLED % UNIT_CHUNKS == 0, "each warpgroup has a chunk of each step");

#if SYMMETRIC
using Factors = HalfWords;
#else
using Factors = Words;
#endif

// A stage: the tokens of a step, a group's weight [stripe, chunk, lane], and a group's factors [unit, stripe, 8].
constexpr int NEXT_K = TOKENS * 16;
constexpr int TOKEN_BYTES = 8 * NEXT_K;
constexpr int STRIPE_BYTES = STEP_CHUNKS * LANES * sizeof(Words);
constexpr int UNIT_BYTES = WARPS * 8 * sizeof(Factors);
constexpr int GROUP_BYTES = WARPS * STRIPE_BYTES + STEP_UNITS * UNIT_BYTES;
constexpr int STAGE_BYTES = TOKEN_BYTES + GROUPS * GROUP_BYTES;
constexpr int BARRIER_BYTES = 128;
constexpr int VECTORS = TOKENS / 4;  // of four neighbouring columns of one token, of a thread
static_assert(CLUSTER == 1 || VECTORS % CLUSTER == 0, "the blocks of a cluster add equal shares");

constexpr unsigned MAGIC = HALF ? 0x64006400u : 0x43004300u;  // 1024 or 128 in each half
constexpr unsigned MIDDLE = HALF ? 0x64086408u : 0x43084308u;  // and 8 more: the zero point of symmetric weights

#if HALF
using Pair = __half2;
#else
using Pair = __nv_bfloat162;
#endif
__device__ inline unsigned minus(unsigned one, unsigned other) {
  const Pair difference = __hsub2(reinterpret_cast<Pair &>(one), reinterpret_cast<Pair &>(other));
  return reinterpret_cast<const unsigned &>(difference);
}
__device__ inline unsigned plus(unsigned one, unsigned other) {
  const Pair sum = __hadd2(reinterpret_cast<Pair &>(one), reinterpret_cast<Pair &>(other));
  return reinterpret_cast<const unsigned &>(sum);
}
__device__ inline unsigned times(unsigned one, unsigned other) {
  const Pair product = __hmul2(reinterpret_cast<Pair &>(one), reinterpret_cast<Pair &>(other));
  return reinterpret_cast<const unsigned &>(product);
}

// Scales and zero points of a lane's four columns of its stripe, each in both halves. If all zero points are WHOLE, they have
// room for what MAGIC adds to the numbers, and one difference is exact; else a number is first itself again.
template <bool WHOLE> struct Unit {
  unsigned scale[4], zero[4];

  __device__ void set(const Factors &factors) {
#pragma unroll
    for (int column = 0; column < 4; ++column) {
      const unsigned selector = column % 2 ? 0x3232 : 0x1010;
      scale[column] = __byte_perm(factors.word[column / 2], 0, selector);
#if !SYMMETRIC
      zero[column] = __byte_perm(factors.word[2 + column / 2], 0, selector);
      if constexpr (WHOLE) zero[column] = plus(zero[column], MAGIC);
#endif
    }
  }

  // A word as four registers of the 64-row operand.
  __device__ void expand(unsigned (&a)[4], unsigned word, int tile) const {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const unsigned number = mask_and_set(word >> (4 * k), 0x000F000Fu, MAGIC);
      const int column = tile * 2 + k % 2;
#if SYMMETRIC
      a[k] = times(minus(number, MIDDLE), scale[column]);
#else
      a[k] = times(minus(WHOLE ? number : minus(number, MAGIC), zero[column]), scale[column]);
#endif
    }
  }
};

// The tiles of a block: those of its cluster, one after another. Tokens come first, so that the blocks that run at once
// share weights.
struct Tile {
  int index, along_m;

  __device__ explicit Tile(long long m) : index(blockIdx.x / CLUSTER), along_m((int)((m + TOKENS - 1) / TOKENS)) {}
  __device__ bool exists() const { return index < along_m * TILES_N; }
  __device__ void advance() { index += gridDim.x / CLUSTER; }
  __device__ long long token() const { return (long long)(index % along_m) * TOKENS; }
  __device__ int group() const { return index / along_m * GROUPS; }  // the first of 128 columns
};

// What lies behind the last 128 columns is read from the last ones, and not stored.
__device__ inline int existing(int group) { return group < STRIPES / WARPS ? group : STRIPES / WARPS - 1; }

struct Ring {
  unsigned base;
  int stage = 0;
  unsigned parity = 0;

  __device__ explicit Ring(unsigned base) : base(base) {}
  __device__ void advance() {
    if (++stage == STAGES) stage = 0, parity ^= 1;
  }
  __device__ int before() const { return (stage == 0 ? STAGES : stage) - 1; }
  __device__ unsigned full(int stage) const { return base + 8 * stage; }
  __device__ unsigned empty(int stage) const { return base + 8 * (STAGES + stage); }
  __device__ unsigned tokens() const { return base + BARRIER_BYTES + stage * STAGE_BYTES; }
  __device__ unsigned weight(int group) const { return tokens() + TOKEN_BYTES + group * GROUP_BYTES; }
  __device__ unsigned factors(int group) const { return weight(group) + WARPS * STRIPE_BYTES; }
};
static_assert(16 * STAGES <= BARRIER_BYTES, "two barriers a stage");

__device__ inline void announce(unsigned barrier) {
  __syncwarp();
  if (threadIdx.x % LANES == 0) arrive(barrier);
}

// By one lane of each copying warp: where its stripes of a tile begin, and what it asks for in a step.
struct Copier {
  static constexpr int OWN = GROUPS * WARPS / COPIERS;  // stripes
  const Words *weight[OWN];
  const Words *tokens;
  const Factors *factors;
  int warp;

  __device__ explicit Copier(const Tile &tile, const Words *all_tokens, const Words *packed, const Factors *all_factors)
      : warp((threadIdx.x - MULTIPLIERS) / LANES) {
    const int first = (int)(blockIdx.x % CLUSTER) * PART;
#pragma unroll
    for (int k = 0; k < OWN; ++k) {
      const int place = k * COPIERS + warp, stripe = existing(tile.group() + place / WARPS) * WARPS + place % WARPS;
      weight[k] = packed + ((long long)stripe * CHUNKS + first) * LANES;
    }
    tokens = all_tokens + ((long long)(tile.index % tile.along_m) * CHUNKS + first) * 4 * TOKENS;
    // the factors of a group are asked for by a warp of their own
    factors = all_factors + existing(tile.group() + warp % GROUPS) * WARPS * 8;
    if (!PER_COLUMN) factors += (long long)(first / UNIT_CHUNKS) * STRIPES * 8;
  }

  __device__ void ask(const Ring &ring, bool begins) {
    const unsigned barrier = ring.full(ring.stage);
    if (warp == 0) {
      arrive_expecting(barrier, TOKEN_BYTES + GROUPS * (WARPS * STRIPE_BYTES + (begins ? STEP_UNITS * UNIT_BYTES : 0)));
      copy_bytes(ring.tokens(), tokens, TOKEN_BYTES, barrier);
      tokens += STEP_CHUNKS * 4 * TOKENS;
    }
#pragma unroll
    for (int k = 0; k < OWN; ++k) {
      const int place = k * COPIERS + warp;
      copy_bytes(ring.weight(place / WARPS) + place % WARPS * STRIPE_BYTES, weight[k], STRIPE_BYTES, barrier);
      weight[k] += STEP_CHUNKS * LANES;
    }
    if (begins && warp >= COPIERS - GROUPS)
#pragma unroll
      for (int unit = 0; unit < STEP_UNITS; ++unit) {
        copy_bytes(ring.factors(warp % GROUPS) + unit * UNIT_BYTES, factors, UNIT_BYTES, barrier);
        if (!PER_COLUMN) factors += STRIPES * 8;
      }
  }
};

// By those that do not multiply: one lane of a warp asks, all meet.
__device__ inline void copy_all(const Words *tokens, const Words *packed, const Factors *factors, long long m, Ring ring) {
  for (Tile tile(m); tile.exists(); tile.advance()) {
    if (threadIdx.x % LANES == 0) {
      Copier copier(tile, tokens, packed, factors);
#pragma unroll 1
      for (int chunk = 0; chunk < PART; chunk += STEP_CHUNKS, ring.advance()) {
        await(ring.empty(ring.stage), ring.parity ^ 1);
        copier.ask(ring, chunk % UNIT_CHUNKS == 0);
      }
    }
#if CLUSTER > 1
    __syncwarp();
    meet_cluster();
    meet_cluster();
#endif
  }
}

__device__ inline void store(T *y, const Floats &value, int vector, const Tile &tile, int group, long long m) {
  const int lane = threadIdx.x % LANES, warp = threadIdx.x % (WARPS * LANES) / LANES;
  const int column = group * WIDEST + warp * STRIPE + lane / 4 * 4;
  const long long token = tile.token() + vector / 2 * 8 + lane % 4 * 2 + vector % 2;
  if (token >= m) return;
  T *place = y + token * N + column;
  if (N % 4 == 0) {
    if (column >= N) return;
    Vector rounded;
    rounded.transform([&](int k, float) { return value.part[k]; });
    *reinterpret_cast<Vector *>(place) = rounded;
  } else {
#pragma unroll
    for (int k = 0; k < 4; ++k)
      if (column + k < N) place[k] = from_float<T>(value.part[k]);
  }
}

// By a warpgroup that multiplies: 128 columns.
struct Multiplier {
  float sum[2][TOKENS / 2];  // of the first and the second two of a lane's four columns
  int group, part, lane, warp;  // part: of K, within a step

  __device__ Multiplier()
      : group(threadIdx.x / (WARPS * LANES) % GROUPS), part(threadIdx.x / (WARPS * LANES) / GROUPS),
        lane(threadIdx.x % LANES), warp(threadIdx.x % (WARPS * LANES) / LANES) {}

  __device__ Floats columns(int vector) const {
    const int at = vector / 2 * 4 + vector % 2;
    return {sum[0][at], sum[0][at + 2], sum[1][at], sum[1][at + 2]};
  }

  template <bool WHOLE> __device__ void run(T *y, long long m, Ring ring) {
    for (Tile tile(m); tile.exists(); tile.advance()) {
      multiply<WHOLE>(ring);
      finish(y, tile, m, ring);
    }
  }

  template <bool WHOLE> __device__ void multiply(Ring &ring) {
    unsigned a[2][2][2][4];  // of a chunk in turn with the next: steps, pairs of columns, registers
    Unit<WHOLE> unit;
#pragma unroll 1
    for (int done = 0; done < PART; done += UNROLLED) {
#pragma unroll
      for (int turn = 0; turn < TURNS; ++turn) {
        const int chunk = ALONG_K == 1 ? turn % STEP_CHUNKS : part;  // of the step
        const bool first = ALONG_K > 1 || turn % STEP_CHUNKS == 0, last = ALONG_K > 1 || turn % STEP_CHUNKS == STEP_CHUNKS - 1;
        if (first) await(ring.full(ring.stage), ring.parity);
        if (UNIT_CHUNKS == 1 || turn * ALONG_K % UNIT_CHUNKS == 0)
          unit.set(load_shared<Factors>(ring.factors(group) + chunk / UNIT_CHUNKS * UNIT_BYTES +
                                        (warp * 8 + lane / 4) * sizeof(Factors)));
        const Words weight = load_shared<Words>(ring.weight(group) + warp * STRIPE_BYTES + (chunk * LANES + lane) * sizeof(Words));
#pragma unroll
        for (int step = 0; step < 2; ++step)
#pragma unroll
          for (int pair = 0; pair < 2; ++pair) unit.expand(a[turn % 2][step][pair], weight.word[pair * 2 + step], pair);
        const unsigned long long tokens = operand(ring.tokens() + chunk * 4 * NEXT_K, NEXT_K);
        begin_products();
#pragma unroll
        for (int step = 0; step < 2; ++step)
#pragma unroll
          for (int pair = 0; pair < 2; ++pair)
            multiply_tokens(sum[pair], a[turn % 2][step][pair], tokens + step * (2 * NEXT_K >> 4), done + turn + step > 0);
        close_products();
        await_products<1>();
        if (first && done + turn > 0) announce(ring.empty(ring.before()));
        if (last) ring.advance();
      }
    }
    await_products<0>();
    settle(sum[0]);
    settle(sum[1]);
    announce(ring.empty(ring.before()));
  }

  __device__ void finish(T *y, const Tile &tile, long long m, const Ring &ring) const {
    const int own = tile.group() + group;
    if constexpr (!SPLIT) {
#pragma unroll
      for (int vector = 0; vector < VECTORS; ++vector) store(y, columns(vector), vector, tile, own, m);
    } else {
      Floats *partial = dynamic_shared() + (BARRIER_BYTES + STAGES * STAGE_BYTES) / sizeof(Floats) + threadIdx.x;
#pragma unroll
      for (int vector = 0; vector < VECTORS; ++vector) partial[vector * MULTIPLIERS] = columns(vector);
      meet_parts();
      const int share = VECTORS / CLUSTER, first = (int)(blockIdx.x % CLUSTER) * share;
#pragma unroll 1
      for (int vector = first + part; vector < first + share; vector += ALONG_K)
        store(y, sum_of_parts(ring, vector), vector, tile, own, m);
      meet_parts();
    }
  }

  // Of four columns of one token: over the blocks of the cluster, and their warpgroups along K.
  __device__ Floats sum_of_parts(const Ring &ring, int vector) const {
    constexpr int ABREAST = GROUPS * WARPS * LANES;
    const unsigned place = ring.base + BARRIER_BYTES + STAGES * STAGE_BYTES +
                           (vector * MULTIPLIERS + threadIdx.x % ABREAST) * sizeof(Floats);
    Floats total = {};
#pragma unroll
    for (int rank = 0; rank < CLUSTER; ++rank)
#pragma unroll
      for (int k = 0; k < ALONG_K; ++k) {
        const Floats more = load_of(place + k * ABREAST * sizeof(Floats), rank);
#pragma unroll
        for (int column = 0; column < 4; ++column) total.part[column] += more.part[column];
      }
    return total;
  }

  // Those that add sums see what all have written, and none writes again before all have read.
  __device__ static void meet_parts() {
#if CLUSTER > 1
    meet_cluster();
#else
    asm volatile("bar.sync 1, %0;" ::"n"(MULTIPLIERS) : "memory");
#endif
  }
};

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
    gemm_int4_wgmma(T *__restrict__ y, const Words *__restrict__ tokens, const Words *__restrict__ packed,
                    const Factors *__restrict__ factors,
#if !SYMMETRIC
                    const int *__restrict__ whole,
#endif
                    long long m) {
  const Ring ring(shared_address(dynamic_shared()));
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < STAGES; ++stage) {
      init_barrier(ring.full(stage), 1);
      init_barrier(ring.empty(stage), WARPGROUPS * WARPS);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  if (threadIdx.x >= MULTIPLIERS) {
    if constexpr (GIVES) give_registers<40>();
    copy_all(tokens, packed, factors, m, ring);
  } else {
    if constexpr (GIVES) take_registers<232>();
#if SYMMETRIC
    Multiplier().run<true>(y, m, ring);
#else
    if (*whole)
      Multiplier().run<true>(y, m, ring);
    else
      Multiplier().run<false>(y, m, ring);
#endif
  }
}
