// y = (a * scale_a) @ W + bias for activations a of 8 bits ("tokens") and W[k, n] = (q[k, n] - 2**(BITS - 1)) * scale with q
// of 4 or 8 bits: the weight's levels, expanded in registers, are the 64-row operand of a warpgroup's product of 8-bit
// levels, and the tokens in shared memory are the other.
//
// A step is 128 k's, a strip 64 columns of W. Of the prepared weight (a8_order.py) each lane loads its registers of a strip
// and step as whole vectors. A block has one warp that asks the copy engine for STAGES steps ahead, and WARPGROUPS that
// multiply, WAVES strips each. It goes from tile to tile, so that the next one is on the way while one ends. K is split over
// the blocks of a CLUSTER; the sums of all parts of K are added in a fixed order.
//
// int8 products add up exactly. Where a column has one scale they are added over all of K; else, and for float8, of which the
// tensor cores keep about 14 bits, those of each UNIT k's are PROMOTED: added in float32, times the unit's scale.

constexpr int LANES = 32, WARPS = 4, STEP = 128, STRIP = 64, PRODUCT = 32;
constexpr int STEPS = (K + STEP - 1) / STEP;
constexpr int PART = STEPS / CLUSTER;  // steps of a block
constexpr int STRIPS = N / STRIP;
constexpr int OWN = WARPGROUPS * WAVES;  // strips of a tile
constexpr int COLUMNS = OWN * STRIP;
constexpr int TILES_N = (N + COLUMNS - 1) / COLUMNS;
constexpr int MULTIPLIERS = WARPGROUPS * WARPS * LANES;
// A whole warpgroup beside those that multiply can give them registers.
constexpr bool GIVES = WARPGROUPS == 2 && RESIDENT == 1;
constexpr int THREADS = MULTIPLIERS + (GIVES ? WARPS : 1) * LANES;
constexpr bool PROMOTED = FLOAT8 || !PER_COLUMN;
constexpr int STEP_UNITS = STEP / UNIT;
static_assert(N % STRIP == 0 && STEPS % CLUSTER == 0 && STEP % UNIT == 0 && UNIT % PRODUCT == 0, "whole strips, parts and units");

constexpr int PATTERN = 1024;  // bytes after which the swizzle repeats; barriers lie in the first
constexpr int TOKEN_BYTES = TOKENS * STEP;
constexpr int STRIP_BYTES = STRIP * STEP * BITS / 8;
constexpr int STAGE_BYTES = TOKEN_BYTES + OWN * STRIP_BYTES;
constexpr int UNIT_BYTES = COLUMNS * sizeof(T);
constexpr int SCALE_BYTES = PER_COLUMN ? 0 : STEP_UNITS * UNIT_BYTES;
static_assert(16 * STAGES <= PATTERN && STAGE_BYTES % PATTERN == 0, "two barriers a stage, and tiles begin where the swizzle does");

// What the levels are too large or too small by: int8 has those of 4 bits in its upper half; float8 counts to 15 in units of
// 2**-9, its subnormal numbers and those behind them.
constexpr float LEVEL = BITS == 8 ? 1.0f : FLOAT8 ? 512.0f : 1.0f / 16;

#if FLOAT8
using Sum = float;
#else
using Sum = int;
template <int COUNT> __device__ inline void settle(int (&sum)[COUNT]) {
#pragma unroll
  for (int k = 0; k < COUNT; ++k) asm volatile("" : "+r"(sum[k])::"memory");
}
#endif
constexpr int SUMS = TOKENS / 2;          // of a lane, for a strip
constexpr int VECTORS = WAVES * SUMS / 4;  // of a lane: two columns of two tokens

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
  __device__ unsigned tokens() const { return base + PATTERN + stage * STAGE_BYTES; }
  __device__ unsigned strip(int own) const { return tokens() + TOKEN_BYTES + own * STRIP_BYTES; }
  __device__ unsigned scales() const { return base + PATTERN + STAGES * STAGE_BYTES + stage * SCALE_BYTES; }
  __device__ void release(int stage) const {
    __syncwarp();
    if (threadIdx.x % LANES == 0) arrive(empty(stage));
  }
};

// The tiles of a block: those of its cluster, one after another. Tokens come first, so that the blocks that run at once
// share weights.
struct Tile {
  int index, along_m;

  __device__ explicit Tile(int m) : index(blockIdx.x / CLUSTER), along_m((m + TOKENS - 1) / TOKENS) {}
  __device__ bool exists() const { return index < along_m * TILES_N; }
  __device__ void advance() { index += gridDim.x / CLUSTER; }
  __device__ int token() const { return index % along_m * TOKENS; }
  __device__ int strip() const { return index / along_m * OWN; }
};

// By one thread of a block: ask for what its steps of all its tiles need.
__device__ inline void copy_all(Map tokens, const Words *packed, const T *scales, int m, Ring ring) {
  constexpr int STRIP_WORDS = STRIP_BYTES / sizeof(Words);
  for (Tile tile(m); tile.exists(); tile.advance()) {
    const int strip = tile.strip(), strips = min(OWN, STRIPS - strip), first = (int)(blockIdx.x % CLUSTER) * PART;
    const int scale_bytes = PER_COLUMN ? 0 : strips * STRIP * (int)sizeof(T);
    const Words *weight = packed + ((long long)strip * STEPS + first) * STRIP_WORDS;
#pragma unroll 1
    for (int step = first; step < first + PART; ++step, ring.advance(), weight += STRIP_WORDS) {
      await(ring.empty(ring.stage), ring.parity ^ 1);
      const unsigned barrier = ring.full(ring.stage);
      arrive_expecting(barrier, TOKEN_BYTES + strips * STRIP_BYTES + STEP_UNITS * scale_bytes);
      load_tile(ring.tokens(), tokens, step * STEP, tile.token(), barrier);
#pragma unroll
      for (int own = 0; own < OWN; ++own)
        if (own < strips) copy_bytes(ring.strip(own), weight + (long long)own * STEPS * STRIP_WORDS, STRIP_BYTES, barrier);
#if !PER_COLUMN
#pragma unroll
      for (int unit = 0; unit < STEP_UNITS; ++unit) {
        const int group = min((step * STEP + unit * UNIT) / GROUP, (K - 1) / GROUP);
        copy_bytes(ring.scales() + unit * UNIT_BYTES, scales + ((long long)group * N + strip * STRIP), scale_bytes, barrier);
      }
#endif
    }
  }
}

// The levels of a lane for a strip and a step: the registers of four products of 32 k's.
struct Levels {
  unsigned of[STEP / PRODUCT][4];

  __device__ void load(unsigned strip, int warp, int lane) {
    constexpr int VECTORS = BITS / 2;
#pragma unroll
    for (int vector = 0; vector < VECTORS; ++vector) {
      const Words words = load_shared<Words>(strip + ((vector * WARPS + warp) * LANES + lane) * (int)sizeof(Words));
#pragma unroll
      for (int k = 0; k < 4; ++k) {
#if BITS == 8
        of[vector][k] = words.word[k];
#else
        of[2 * vector][k] = low(words.word[k]);
        of[2 * vector + 1][k] = high(words.word[k]);
#endif
      }
    }
  }

  // Four levels of the low and of the high halves of four bytes.
#if FLOAT8
  // a sign, and a magnitude that is one less if it is negative
  __device__ static unsigned low(unsigned word) { return number(word & 0x07070707u, word & 0x08080808u); }
  __device__ static unsigned high(unsigned word) { return low(word >> 4); }
  __device__ static unsigned number(unsigned magnitude, unsigned sign) { return magnitude + sign * 16 + (sign >> 3); }
#else
  // sixteen times a number in two's complement
  __device__ static unsigned low(unsigned word) { return word << 4 & 0xF0F0F0F0u; }
  __device__ static unsigned high(unsigned word) { return word & 0xF0F0F0F0u; }
#endif
};

__device__ inline float2 floats(unsigned pair) {
#if HALF
  return __half22float2(reinterpret_cast<const __half2 &>(pair));
#else
  return __bfloat1622float2(reinterpret_cast<const __nv_bfloat162 &>(pair));
#endif
}
__device__ inline float2 pair_at(const T *place) { return floats(__ldg(reinterpret_cast<const unsigned *>(place))); }

struct Epilogue {
  T *y;
  const float *scale_a;
  const T *scales, *bias;
  int m;

  // Of a lane of a tile two neighbouring columns of two neighbouring tokens.
  __device__ void store(const Floats &value, int vector, int thread, const Tile &tile) const {
    const int lane = thread % LANES, warp = thread / LANES, wave = vector / (SUMS / 4);
    const int strip = tile.strip() + warp / WARPS * WAVES + wave;
    if (strip >= STRIPS) return;
    const int column = strip * STRIP + warp % WARPS * 16 + lane / 4 * 2;
    const float2 of_column = PER_COLUMN ? pair_at(scales + column) : make_float2(1.0f, 1.0f);
    const float2 more = BIAS ? pair_at(bias + column) : make_float2(0.0f, 0.0f);
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const int token = tile.token() + vector % (SUMS / 4) * 8 + lane % 4 * 2 + k;
      if (token >= m) return;
      const float scale = __ldg(scale_a + (STATIC ? 0 : token)) * LEVEL;
      Vector rounded;
      rounded.transform([&](int c, float) {
        return fmaf(value.part[2 * c + k], (c ? of_column.y : of_column.x) * scale, c ? more.y : more.x);
      });
      *reinterpret_cast<Vector *>(y + (long long)token * N + column) = rounded;
    }
  }
};

// By a warpgroup that multiplies. Of a strip its warps have 16 columns each; a lane has two, and of each 8 tokens two.
struct Multiplier {
  float sum[WAVES][SUMS];
  int warp, lane;

  __device__ Multiplier() : warp(__shfl_sync(~0u, (int)threadIdx.x / LANES, 0)), lane(threadIdx.x % LANES) {}

  __device__ void run(const Epilogue &epilogue, Ring ring) {
    for (Tile tile(epilogue.m); tile.exists(); tile.advance()) {
      if constexpr (PROMOTED)
        multiply_promoted(ring);
      else
        multiply(ring);
      finish(epilogue, tile, ring);
    }
  }

  __device__ unsigned strip(const Ring &ring, int wave) const { return ring.strip(warp / WARPS * WAVES + wave); }
  __device__ Floats vector_of(int vector) const {
    const float *own = &sum[vector / (SUMS / 4)][vector % (SUMS / 4) * 4];
    return {own[0], own[1], own[2], own[3]};
  }

#if !(FLOAT8) && PER_COLUMN
  // While a step is multiplied, the next one's levels are loaded.
  __device__ void multiply(Ring &ring) {
    int whole[WAVES][SUMS];
    Levels even[WAVES], odd[WAVES];
    int step = 0;
#pragma unroll 1
    for (; step + 1 < PART; step += 2) {
      add_step(ring, even, whole, step > 0);
      add_step(ring, odd, whole, true);
    }
    if (PART % 2) add_step(ring, even, whole, step > 0);
    await_products<0>();
#pragma unroll
    for (int wave = 0; wave < WAVES; ++wave) {
      settle(whole[wave]);
#pragma unroll
      for (int k = 0; k < SUMS; ++k) sum[wave][k] = (float)whole[wave][k];
    }
    ring.release(ring.before());
  }
  __device__ void add_step(Ring &ring, Levels (&levels)[WAVES], int (&whole)[WAVES][SUMS], bool more) {
    await(ring.full(ring.stage), ring.parity);
#pragma unroll
    for (int wave = 0; wave < WAVES; ++wave) levels[wave].load(strip(ring, wave), warp % WARPS, lane);
    const unsigned long long tokens = swizzled_operand(ring.tokens());
    begin_products();
#pragma unroll
    for (int wave = 0; wave < WAVES; ++wave)
#pragma unroll
      for (int k = 0; k < STEP / PRODUCT; ++k)
        multiply_tokens(whole[wave], levels[wave].of[k], tokens + k * 2, more || k > 0);
    close_products();
    await_products<1>();
    if (more) ring.release(ring.before());
    ring.advance();
  }
#else
  __device__ void multiply(Ring &) {}
#endif

  // While one warpgroup adds, the others multiply.
  __device__ void multiply_promoted(Ring &ring) {
#pragma unroll
    for (int wave = 0; wave < WAVES; ++wave)
#pragma unroll
      for (int k = 0; k < SUMS; ++k) sum[wave][k] = 0;
    Sum part[SUMS];
#pragma unroll 1
    for (int step = 0; step < PART; ++step, ring.advance()) {
      await(ring.full(ring.stage), ring.parity);
      const unsigned long long tokens = swizzled_operand(ring.tokens());
#pragma unroll
      for (int wave = 0; wave < WAVES; ++wave) {
        Levels levels;
        levels.load(strip(ring, wave), warp % WARPS, lane);
#pragma unroll
        for (int unit = 0; unit < STEP_UNITS; ++unit) {
          const float2 scale = scale_of(ring, wave, unit);
          begin_products();
#pragma unroll
          for (int k = 0; k < UNIT / PRODUCT; ++k) {
            const int at = unit * (UNIT / PRODUCT) + k;
            multiply_tokens(part, levels.of[at], tokens + at * 2, k > 0);
          }
          close_products();
          await_products<0>();
          settle(part);
          if (wave == WAVES - 1 && unit == STEP_UNITS - 1) ring.release(ring.stage);
#pragma unroll
          for (int k = 0; k < SUMS; ++k) sum[wave][k] = fmaf((float)part[k], k / 2 % 2 ? scale.y : scale.x, sum[wave][k]);
        }
      }
    }
  }
  __device__ float2 scale_of(const Ring &ring, int wave, int unit) const {
    if constexpr (PER_COLUMN) {
      return make_float2(1.0f, 1.0f);
    } else {
      const int column = (warp / WARPS * WAVES + wave) * STRIP + warp % WARPS * 16 + lane / 4 * 2;
      unsigned pair;
      asm volatile("ld.shared.b32 %0, [%1];"
                   : "=r"(pair)
                   : "r"(ring.scales() + unit * UNIT_BYTES + column * (int)sizeof(T))
                   : "memory");
      return floats(pair);
    }
  }

  __device__ void finish(const Epilogue &epilogue, const Tile &tile, const Ring &ring) const {
    if constexpr (CLUSTER == 1) {
#pragma unroll
      for (int vector = 0; vector < VECTORS; ++vector) epilogue.store(vector_of(vector), vector, threadIdx.x, tile);
    } else {
      // where the steps were: all have been read
      asm volatile("bar.sync 1, %0;" ::"n"(MULTIPLIERS) : "memory");
#pragma unroll
      for (int vector = 0; vector < VECTORS; ++vector) write(ring, vector, vector_of(vector));
      meet_cluster();
      constexpr int SHARE = VECTORS * MULTIPLIERS / CLUSTER;
      const int first = (int)(blockIdx.x % CLUSTER) * SHARE;
#pragma unroll 1
      for (int place = first + (int)threadIdx.x; place < first + SHARE; place += MULTIPLIERS)
        epilogue.store(sum_of_parts(ring, place), place / MULTIPLIERS, place % MULTIPLIERS, tile);
      meet_cluster();
    }
  }
  __device__ static unsigned partial(const Ring &ring, int place) { return ring.base + PATTERN + place * (int)sizeof(Floats); }
  __device__ static void write(const Ring &ring, int vector, const Floats &value) {
    asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(partial(ring, vector * MULTIPLIERS + (int)threadIdx.x)),
                 "f"(value.part[0]), "f"(value.part[1]), "f"(value.part[2]), "f"(value.part[3])
                 : "memory");
  }
  __device__ static Floats sum_of_parts(const Ring &ring, int place) {
    Floats total = {};
#pragma unroll
    for (int rank = 0; rank < CLUSTER; ++rank) {
      const Floats more = load_of(partial(ring, place), rank);
#pragma unroll
      for (int k = 0; k < 4; ++k) total.part[k] += more.part[k];
    }
    return total;
  }
};

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
    packed_a8_wgmma(TENSOR_MAP(a), T *__restrict__ y, const float *__restrict__ scale_a, const Words *__restrict__ packed,
                    const T *__restrict__ scales, const T *__restrict__ bias, long long m) {
  const Ring ring((shared_address(dynamic_shared()) + PATTERN - 1) / PATTERN * PATTERN);
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < STAGES; ++stage) {
      init_barrier(ring.full(stage), 1);
      init_barrier(ring.empty(stage), WARPGROUPS * WARPS);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    prefetch_map((Map)&a);
  }
  __syncthreads();
  if (threadIdx.x >= MULTIPLIERS) {
    if constexpr (GIVES) give_registers<40>();
    if (threadIdx.x == MULTIPLIERS) copy_all((Map)&a, packed, scales, (int)m, ring);
    __syncwarp();
    if constexpr (CLUSTER > 1) {
      meet_cluster();
      meet_cluster();
    }
  } else {
    if constexpr (GIVES) take_registers<232>();
    Multiplier().run({y, scale_a, scales, bias, (int)m}, ring);
  }
}
