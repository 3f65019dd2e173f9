// y = a @ W, W[k, n] = (q[k, n] - zero) * scale, for tens to thousands of rows of a ("tokens"): the weight, expanded in
// registers, is the 64-row operand of a warpgroup's product, and the tokens in shared memory are the other.
//
// A stripe is 32 columns of W, a chunk 32 of its rows, a unit the chunks that have one scale, as in gemm_int4.cu, whose
// prepared weight this kernel reads: lane 4 * g + t has columns 4 * g .. 4 * g + 3 of each stripe and k = 8 * t .. 8 * t + 7
// of each chunk. A product's k of place 8 * h + 2 * t + e is therefore k = 8 * t + 4 * step + 2 * h + e of the chunk, and
// the copying warps put the tokens' words where that order wants them.
//
// A block has a warpgroup that copies tokens, a ring of STAGES steps ahead, and GROUPS that multiply, 128 columns each. It
// goes from tile to tile, so that copies and loads for the next one are on the way while one ends. K is split over the
// blocks of a CLUSTER, whose sums are added in a fixed order.

constexpr int LANES = 32, WARPS = 4, STRIPE = 32, CHUNK = 32, WIDEST = 128;
constexpr int STEP_CHUNKS = 2;
constexpr int STEP = STEP_CHUNKS * CHUNK;
constexpr int UNIT_CHUNKS = UNIT / CHUNK;
constexpr int UNITS = (K + UNIT - 1) / UNIT;
constexpr int CHUNKS = UNITS * UNIT_CHUNKS;
constexpr int STRIPES = (N + WIDEST - 1) / WIDEST * (WIDEST / STRIPE);
constexpr int PART = CHUNKS / CLUSTER;  // chunks of a block
constexpr int STEPS = PART / STEP_CHUNKS;
constexpr int SLOTS = AHEAD / UNIT_CHUNKS;
constexpr int COLUMNS = GROUPS * WIDEST;
constexpr int TILES_N = (N + COLUMNS - 1) / COLUMNS;
constexpr int MULTIPLIERS = GROUPS * WARPS * LANES;
constexpr int THREADS = MULTIPLIERS + WARPS * LANES;
static_assert(PART * CLUSTER == CHUNKS && PART % AHEAD == 0, "the ring of loads turns a whole number of times");
static_assert(AHEAD % UNIT_CHUNKS == 0 && AHEAD % STEP_CHUNKS == 0, "units and steps end where the ring does");

// Tokens of a step: 8 columns of 8 k's, each TOKENS rows of 16 bytes; one row more spreads them over the banks.
constexpr int NEXT_K = TOKENS * 16 + 16;
constexpr int STAGE_BYTES = 8 * NEXT_K;
constexpr int BARRIER_BYTES = 128;
constexpr int LAG = STAGES - 1;  // steps between the request of a copy and its announcement
constexpr int VECTORS = TOKENS / 4;  // of four neighbouring columns of one token, of a thread
static_assert(CLUSTER == 1 || VECTORS % CLUSTER == 0, "the blocks of a cluster add equal shares");

constexpr unsigned MAGIC = HALF ? 0x64006400u : 0x43004300u;  // 1024 or 128 in each half
constexpr unsigned MIDDLE = HALF ? 0x64086408u : 0x43084308u;  // and 8 more: the zero point of symmetric weights

#if SYMMETRIC
using Factors = HalfWords;
#else
using Factors = Words;
#endif

#if HALF
using Pair = __half2;
#else
using Pair = __nv_bfloat162;
#endif
__device__ inline unsigned minus(unsigned one, unsigned other) {
  const Pair difference = __hsub2(reinterpret_cast<Pair &>(one), reinterpret_cast<Pair &>(other));
  return reinterpret_cast<const unsigned &>(difference);
}
__device__ inline unsigned times(unsigned one, unsigned other) {
  const Pair product = __hmul2(reinterpret_cast<Pair &>(one), reinterpret_cast<Pair &>(other));
  return reinterpret_cast<const unsigned &>(product);
}

// Scales and zero points of a lane's four columns of its stripe, each in both halves.
struct Unit {
  unsigned scale[4], zero[4];

  __device__ void set(const Factors &factors) {
#pragma unroll
    for (int column = 0; column < 4; ++column) {
      const unsigned selector = column % 2 ? 0x3232 : 0x1010;
      scale[column] = __byte_perm(factors.word[column / 2], 0, selector);
#if !SYMMETRIC
      zero[column] = __byte_perm(factors.word[2 + column / 2], 0, selector);
#endif
    }
  }

  // A word as four registers of the 64-row operand. The differences are exact for whole zero points.
  __device__ void expand(unsigned (&a)[4], unsigned word, int tile) const {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const unsigned number = mask_and_set(word >> (4 * k), 0x000F000Fu, MAGIC);
      const int column = tile * 2 + k % 2;
#if SYMMETRIC
      a[k] = times(minus(number, MIDDLE), scale[column]);
#else
      a[k] = times(minus(minus(number, MAGIC), zero[column]), scale[column]);
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
};
static_assert(16 * STAGES <= BARRIER_BYTES, "two barriers a stage");

__device__ inline void announce(unsigned barrier) {
  __syncwarp();
  if (threadIdx.x % LANES == 0) arrive(barrier);
}

// By the copying warpgroup: a warp copies 64 k's of a row, a word a lane, into the places that the product wants.
__device__ inline void copy_tokens(const T *a, long long m, Ring ring) {
  const int lane = threadIdx.x % LANES, warp = threadIdx.x % (WARPS * LANES) / LANES;
  const int word = lane % 16, column = lane / 16 * 4 + word % 4;
  const unsigned place = column * NEXT_K + word / 4 * 4;
  const int first = (int)(blockIdx.x % CLUSTER) * PART * CHUNK + 2 * lane;
  Ring announced = ring;
  int pending = 0;
  for (Tile tile(m); tile.exists(); tile.advance()) {
    const long long token = tile.token();
    const int last = m - token < TOKENS ? (int)(m - token) - 1 : TOKENS - 1;
    const T *from = a + token * K + first;
#pragma unroll 1
    for (int step = 0; step < STEPS; ++step, from += STEP) {
      if (pending == LAG) {
        await_copies<LAG - 1>();
        announce(announced.full(announced.stage));
        announced.advance();
        --pending;
      }
      await(ring.empty(ring.stage), ring.parity ^ 1);
      const bool wanted = K % UNIT == 0 || first + step * STEP < K;
#pragma unroll 8
      for (int row = warp; row < TOKENS; row += WARPS)
        copy_word(ring.tokens() + place + row * 16, wanted ? from + (unsigned)(row < last ? row : last) * K : a, wanted);
      close_copies();
      ring.advance();
      ++pending;
    }
#if CLUSTER > 1
    await_copies<0>();
    for (; pending > 0; --pending, announced.advance()) announce(announced.full(announced.stage));
    meet_cluster();
    meet_cluster();
#endif
  }
  await_copies<0>();
  for (; pending > 0; --pending, announced.advance()) announce(announced.full(announced.stage));
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

// By a warpgroup that multiplies: 128 columns. Rings of registers keep AHEAD chunks of the weight on the way.
struct Multiplier {
  float sum[2][TOKENS / 2];  // of the first and the second two of a lane's four columns
  Words weight[AHEAD];
  Factors factors[SLOTS];
  int warpgroup, lane, stripe_in_group;

  __device__ Multiplier()
      : warpgroup(threadIdx.x / (WARPS * LANES)), lane(threadIdx.x % LANES),
        stripe_in_group(threadIdx.x % (WARPS * LANES) / LANES) {}

  // What lies behind the last stripe is read from the last ones, and not stored.
  __device__ int stripe(const Tile &tile) const {
    const int wanted = (tile.group() + warpgroup) * WARPS + stripe_in_group;
    return wanted < STRIPES ? wanted : STRIPES - WARPS + stripe_in_group;
  }
  __device__ const Words *words(const Words *packed, const Tile &tile) const {
    return packed + ((long long)stripe(tile) * CHUNKS + (int)(blockIdx.x % CLUSTER) * PART) * LANES + lane;
  }
  __device__ const Factors *scales(const Factors *all, const Tile &tile) const {
    const int unit = PER_COLUMN ? 0 : (int)(blockIdx.x % CLUSTER) * (PART / UNIT_CHUNKS);
    return all + ((long long)unit * STRIPES + stripe(tile)) * 8 + lane / 4;
  }

  __device__ Floats columns(int vector) const {
    const int at = vector / 2 * 4 + vector % 2;
    return {sum[0][at], sum[0][at + 2], sum[1][at], sum[1][at + 2]};
  }

  __device__ void run(T *y, const Words *packed, const Factors *all, long long m, Ring ring) {
    Tile tile(m);
    const Words *from = words(packed, tile);
    const Factors *scale = scales(all, tile);
#pragma unroll
    for (int chunk = 0; chunk < AHEAD; ++chunk) load_once(weight[chunk], from + chunk * LANES, true);
#pragma unroll
    for (int slot = 0; slot < SLOTS; ++slot)
      load_once(factors[slot], scale + (PER_COLUMN ? 0 : slot * STRIPES) * 8, true);
    while (tile.exists()) {
      Tile next = tile;
      next.advance();
      multiply(from, scale, next.exists() ? words(packed, next) : nullptr, scales(all, next), ring);
      finish(y, tile, m, ring);
      from = words(packed, next), scale = scales(all, next);
      tile = next;
    }
  }

  // One tile. `then` is where the next tile's weight begins, null after the last.
  __device__ void multiply(const Words *from, const Factors *scale, const Words *then, const Factors *then_scale, Ring &ring) {
    unsigned a[2][2][2][4];  // of a chunk in turn with the next: steps, pairs of columns, registers
    Unit unit;
#pragma unroll 1
    for (int done = 0; done < PART; done += AHEAD) {
      from = done + AHEAD < PART ? from + AHEAD * LANES : then;
      scale = done + AHEAD < PART ? scale + (PER_COLUMN ? 0 : SLOTS * STRIPES) * 8 : then_scale;
#pragma unroll
      for (int chunk = 0; chunk < AHEAD; ++chunk) {
        const int slot = chunk / UNIT_CHUNKS;
        if (chunk % UNIT_CHUNKS == 0) {
          unit.set(factors[slot]);
          load_once(factors[slot], scale + (PER_COLUMN ? 0 : slot * STRIPES) * 8, from != nullptr);
        }
#pragma unroll
        for (int step = 0; step < 2; ++step)
#pragma unroll
          for (int pair = 0; pair < 2; ++pair) unit.expand(a[chunk % 2][step][pair], weight[chunk].word[pair * 2 + step], pair);
        load_once(weight[chunk], from + chunk * LANES, from != nullptr);
        if (chunk % STEP_CHUNKS == 0) await(ring.full(ring.stage), ring.parity);
        const unsigned long long tokens = operand(ring.tokens() + chunk % STEP_CHUNKS * 4 * NEXT_K, NEXT_K);
        begin_products();
#pragma unroll
        for (int step = 0; step < 2; ++step)
#pragma unroll
          for (int pair = 0; pair < 2; ++pair)
            multiply_tokens(sum[pair], a[chunk % 2][step][pair], tokens + step * (2 * NEXT_K >> 4), done + chunk + step > 0);
        close_products();
        await_products<1>();
        if (chunk % STEP_CHUNKS == 0 && done + chunk > 0) announce(ring.empty(ring.before()));
        if (chunk % STEP_CHUNKS == STEP_CHUNKS - 1) ring.advance();
      }
    }
    await_products<0>();
    settle(sum[0]);
    settle(sum[1]);
    announce(ring.empty(ring.before()));
  }

  __device__ void finish(T *y, const Tile &tile, long long m, const Ring &ring) const {
    const int group = tile.group() + warpgroup;
#if CLUSTER > 1
    const unsigned mine = ring.base + BARRIER_BYTES + STAGES * STAGE_BYTES + threadIdx.x * sizeof(Floats);
    Floats *partial = dynamic_shared() + (BARRIER_BYTES + STAGES * STAGE_BYTES) / sizeof(Floats) + threadIdx.x;
#pragma unroll
    for (int vector = 0; vector < VECTORS; ++vector) partial[vector * MULTIPLIERS] = columns(vector);
    meet_cluster();
    const int share = VECTORS / CLUSTER, first = (int)(blockIdx.x % CLUSTER) * share;
#pragma unroll 1
    for (int vector = first; vector < first + share; ++vector) {
      const unsigned place = mine + vector * MULTIPLIERS * sizeof(Floats);
      Floats total = load_of(place, 0);
#pragma unroll
      for (int rank = 1; rank < CLUSTER; ++rank) {
        const Floats more = load_of(place, rank);
#pragma unroll
        for (int part = 0; part < 4; ++part) total.part[part] += more.part[part];
      }
      store(y, total, vector, tile, group, m);
    }
    meet_cluster();
#else
#pragma unroll
    for (int vector = 0; vector < VECTORS; ++vector) store(y, columns(vector), vector, tile, group, m);
#endif
  }
};

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
    gemm_int4_wgmma(T *__restrict__ y, const T *__restrict__ a, const Words *__restrict__ packed,
                    const Factors *__restrict__ factors, long long m) {
  const Ring ring(shared_address(dynamic_shared()));
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < STAGES; ++stage) {
      init_barrier(ring.full(stage), WARPS);
      init_barrier(ring.empty(stage), GROUPS * WARPS);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  if (threadIdx.x >= MULTIPLIERS) {
    if (GROUPS == 2) give_registers<40>();
    copy_tokens(a, m, ring);
  } else {
    if (GROUPS == 2) take_registers<232>();
    Multiplier().run(y, packed, factors, m, ring);
  }
}
