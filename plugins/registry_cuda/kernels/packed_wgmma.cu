// y = (a * scale_a) @ W + bias with W[k, n] = (q[k, n] - zero) * scale, of levels q of 1 to 8 bits, for activations a
// ("tokens") of 8 or 16 bits: the weight's levels, expanded in registers, are the 64-row operand of a warpgroup's product, and
// the tokens in shared memory are the other. Beside tokens of 8 bits the products are of 8-bit levels.
//
// A step is 128 k's, a piece what four products take, a strip 64 columns of W. Of the prepared weight (packed_order.py) each
// lane loads its registers of a strip and piece as whole vectors. A block has one warp that asks the copy engine for STAGES
// steps ahead, and WARPGROUPS that multiply, WAVES strips each. It goes from tile to tile, so that the next one is on the way
// while one ends. K is split over the blocks of a CLUSTER; the sums of all parts of K are added in a fixed order.
//
// Where a column has one scale, products are added over all of K: those of int8 exactly. Else, and for float8, of which the
// tensor cores keep about 14 bits, those of each UNIT k's are PROMOTED: added in float32, times the unit's scale.

constexpr int LANES = 32, WARPS = 4, STEP = 128, STRIP = 64, WIDTH = 128;
constexpr int TOKEN_TILES = A_BITS / 8;  // of WIDTH bytes, of a step
constexpr int PRODUCT = 256 / A_BITS, PIECE = 4 * PRODUCT, PIECES = STEP / PIECE;
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
constexpr int SUMMED = UNIT < PIECE ? UNIT : PIECE;  // k's of products that follow one another
static_assert(N % STRIP == 0 && STEPS % CLUSTER == 0 && STEP % UNIT == 0 && UNIT % 32 == 0, "whole strips, parts and units");

constexpr int PATTERN = 1024;  // bytes after which the swizzle repeats; barriers lie in the first
constexpr int TILE_BYTES = TOKENS * WIDTH;
constexpr int TOKEN_BYTES = TOKEN_TILES * TILE_BYTES;
constexpr int STRIP_BYTES = STRIP * STEP * BITS / 8;
constexpr int STAGE_BYTES = TOKEN_BYTES + OWN * STRIP_BYTES;
constexpr int UNIT_BYTES = COLUMNS * sizeof(T);
constexpr int FACTOR_BYTES = PER_COLUMN ? 0 : STEP_UNITS * UNIT_BYTES;  // of scales, and of zero points behind them
static_assert(16 * STAGES <= PATTERN && STAGE_BYTES % PATTERN == 0, "two barriers a stage, and tiles begin where the swizzle does");

// What 8-bit levels are too large or too small by: int8 has those of 4 bits in its upper half; float8 counts to 15 in units
// of 2**-9, its subnormal numbers and those behind them.
constexpr float LEVEL = BITS == 8 || A_BITS == 16 ? 1.0f : FLOAT8 ? 512.0f : 1.0f / 16;

#if A_BITS == 16 || FLOAT8
using Sum = float;
#else
using Sum = int;
template <int COUNT> __device__ inline void settle(int (&sum)[COUNT]) {
#pragma unroll
  for (int k = 0; k < COUNT; ++k) asm volatile("" : "+r"(sum[k])::"memory");
}
#endif
constexpr int SUMS = TOKENS / 2;           // of a lane, for a strip
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
  __device__ unsigned scales() const { return base + PATTERN + STAGES * STAGE_BYTES + stage * (1 + ZEROS) * FACTOR_BYTES; }
  __device__ unsigned zeros() const { return scales() + FACTOR_BYTES; }
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
__device__ inline void copy_all(Map tokens, const Words *packed, const T *scales, const T *zeros, int m, Ring ring) {
  constexpr int STRIP_WORDS = STRIP_BYTES / sizeof(Words);
  for (Tile tile(m); tile.exists(); tile.advance()) {
    const int strip = tile.strip(), strips = min(OWN, STRIPS - strip), first = (int)(blockIdx.x % CLUSTER) * PART;
    const int unit_bytes = PER_COLUMN ? 0 : strips * STRIP * (int)sizeof(T);
    const Words *weight = packed + ((long long)strip * STEPS + first) * STRIP_WORDS;
#pragma unroll 1
    for (int step = first; step < first + PART; ++step, ring.advance(), weight += STRIP_WORDS) {
      await(ring.empty(ring.stage), ring.parity ^ 1);
      const unsigned barrier = ring.full(ring.stage);
      arrive_expecting(barrier, TOKEN_BYTES + strips * STRIP_BYTES + (1 + ZEROS) * STEP_UNITS * unit_bytes);
#pragma unroll
      for (int part = 0; part < TOKEN_TILES; ++part)
        load_tile(ring.tokens() + part * TILE_BYTES, tokens, step * STEP + part * (STEP / TOKEN_TILES), tile.token(), barrier);
#pragma unroll
      for (int own = 0; own < OWN; ++own)
        if (own < strips) copy_bytes(ring.strip(own), weight + (long long)own * STEPS * STRIP_WORDS, STRIP_BYTES, barrier);
#if !PER_COLUMN
#pragma unroll
      for (int unit = 0; unit < STEP_UNITS; ++unit) {
        const long long group = min((step * STEP + unit * UNIT) / GROUP, (K - 1) / GROUP);
        copy_bytes(ring.scales() + unit * UNIT_BYTES, scales + (group * N + strip * STRIP), unit_bytes, barrier);
        if (ZEROS) copy_bytes(ring.zeros() + unit * UNIT_BYTES, zeros + (group * N + strip * STRIP), unit_bytes, barrier);
      }
#endif
    }
  }
}

#if HALF
using Pair = __half2;
#else
using Pair = __nv_bfloat162;
#endif
__device__ inline float2 floats(unsigned pair) {
#if HALF
  return __half22float2(reinterpret_cast<const Pair &>(pair));
#else
  return __bfloat1622float2(reinterpret_cast<const Pair &>(pair));
#endif
}
__device__ inline unsigned shared_pair(unsigned address) {
  unsigned pair;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(pair) : "r"(address) : "memory");
  return pair;
}
__device__ inline unsigned pair_at(const T *place) { return __ldg(reinterpret_cast<const unsigned *>(place)); }

#if A_BITS == 16
__device__ inline unsigned minus(unsigned one, unsigned other) {
  const Pair difference = __hsub2(reinterpret_cast<Pair &>(one), reinterpret_cast<Pair &>(other));
  return reinterpret_cast<const unsigned &>(difference);
}
// Behind MAGIC's mantissa a level is itself and 1024 or 128 more, in each half of a register.
constexpr unsigned BOTH = 0x00010001u, MAGIC = (HALF ? 0x6400u : 0x4300u) * BOTH;
constexpr unsigned MIDDLE = MAGIC + (BITS > 1 ? 1u << BITS >> 1 : 0u) * BOTH, ONE_HALF = (HALF ? 0x3800u : 0x3F00u) * BOTH;

// What is subtracted from the levels of a lane's two columns.
struct Offsets {
  unsigned pair[2];
  float number[2];

  __device__ void set(unsigned columns) {
    pair[0] = __byte_perm(columns, 0, 0x1010);
    pair[1] = __byte_perm(columns, 0, 0x3232);
    number[0] = floats(columns).x;
    number[1] = floats(columns).y;
  }

  __device__ unsigned less(unsigned level, int column) const {
    if (ZEROS) return minus(minus(level, MAGIC), pair[column]);
    return BITS == 1 ? minus(minus(level, MAGIC), ONE_HALF) : minus(level, MIDDLE);
  }
#if !HALF
  // bfloat16 counts to 256 alone: bytes become floats first, behind the mantissa of 2**23.
  __device__ unsigned less_bytes(unsigned word, int column) const {
    const float offset = 8388608.0f + (ZEROS ? number[column] : 128.0f);
    const float low = __uint_as_float(__byte_perm(word, 0x4B000000u, 0x7440 + column)) - offset;
    const float high = __uint_as_float(__byte_perm(word, 0x4B000000u, 0x7442 + column)) - offset;
    const Pair pair = __floats2bfloat162_rn(low, high);
    return reinterpret_cast<const unsigned &>(pair);
  }
#endif
};
#else
struct Offsets {
  __device__ void set(unsigned) {}
};
#endif

// The levels of a lane for a strip and a piece: the registers of four products.
struct Levels {
  unsigned of[4][4];

#if A_BITS == 16 && BITS == 8
  __device__ void load(unsigned piece, int lane, const Offsets (&offsets)[STEP_UNITS], int unit) {
#pragma unroll
    for (int pair = 0; pair < 2; ++pair) {
      const Words words = load_shared<Words>(piece + (pair * WARPS * LANES + lane) * (int)sizeof(Words));
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        const int product = pair * 2 + k / 4, column = k % 2;
        const unsigned word = words.word[k / 2];
        const Offsets &offset = offsets[unit + product * PRODUCT / UNIT];
#if HALF
        of[product][k % 4] = offset.less(mask_and_set(word >> (8 * column), 0x00FF00FFu, MAGIC), column);
#else
        of[product][k % 4] = offset.less_bytes(word, column);
#endif
      }
    }
  }
#elif A_BITS == 16
  __device__ void load(unsigned piece, int lane, const Offsets (&offsets)[STEP_UNITS], int unit) {
    unsigned words[BITS];
    load_words(words, piece + lane * BITS * 4);
#pragma unroll
    for (int k = 0; k < 16; ++k) {
      const int product = k / 4;
      const unsigned word = words[product * BITS / 4] >> (product % (4 / BITS) * 4 * BITS + k % 4 * BITS);
      of[product][k % 4] = offsets[unit + product * PRODUCT / UNIT].less(mask_and_set(word, ((1 << BITS) - 1) * BOTH, MAGIC), k % 2);
    }
  }
  __device__ static void load_words(unsigned (&words)[4], unsigned place) {
    const Words loaded = load_shared<Words>(place);
#pragma unroll
    for (int k = 0; k < 4; ++k) words[k] = loaded.word[k];
  }
  __device__ static void load_words(unsigned (&words)[2], unsigned place) {
    const HalfWords loaded = load_shared<HalfWords>(place);
    words[0] = loaded.word[0], words[1] = loaded.word[1];
  }
  __device__ static void load_words(unsigned (&words)[1], unsigned place) { words[0] = shared_pair(place); }
#else
  __device__ void load(unsigned piece, int lane, const Offsets (&)[STEP_UNITS], int) {
#pragma unroll
    for (int vector = 0; vector < BITS / 2; ++vector) {
      const Words words = load_shared<Words>(piece + (vector * WARPS * LANES + lane) * (int)sizeof(Words));
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
#endif
};

struct Epilogue {
  T *y;
  const float *scale_a;  // none beside tokens of 16 bits
  const T *scales, *zeros, *bias;
  int m;

  // Of a lane of a tile two neighbouring columns of two neighbouring tokens.
  __device__ void store(const Floats &value, int vector, int thread, const Tile &tile) const {
    const int lane = thread % LANES, warp = thread / LANES, wave = vector / (SUMS / 4);
    const int strip = tile.strip() + warp / WARPS * WAVES + wave;
    if (strip >= STRIPS) return;
    const int column = strip * STRIP + warp % WARPS * 16 + lane / 4 * 2;
    const float2 of_column = PER_COLUMN ? floats(pair_at(scales + column)) : make_float2(1.0f, 1.0f);
    const float2 more = BIAS ? floats(pair_at(bias + column)) : make_float2(0.0f, 0.0f);
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const int token = tile.token() + vector % (SUMS / 4) * 8 + lane % 4 * 2 + k;
      if (token >= m) return;
      const float scale = A_BITS == 16 ? 1.0f : __ldg(scale_a + (STATIC ? 0 : token)) * LEVEL;
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
        multiply(ring, epilogue, tile);
      finish(epilogue, tile, ring);
    }
  }

  __device__ int own(int wave) const { return warp / WARPS * WAVES + wave; }
  __device__ int thread() const { return warp % WARPS * LANES + lane; }
  // Where a lane's two columns lie among those of a strip.
  __device__ int column() const { return warp % WARPS * 16 + lane / 4 * 2; }
  __device__ unsigned piece_of(const Ring &ring, int wave, int piece) const {
    return ring.strip(own(wave)) + piece * (STRIP_BYTES / PIECES);
  }
  __device__ static unsigned long long tokens_of(const Ring &ring, int product) {
    return swizzled_operand(ring.tokens() + product / 4 * TILE_BYTES) + product % 4 * 2;
  }
  __device__ Floats vector_of(int vector) const {
    const float *first = &sum[vector / (SUMS / 4)][vector % (SUMS / 4) * 4];
    return {first[0], first[1], first[2], first[3]};
  }

  // While a piece is multiplied, the next one's levels are loaded.
  __device__ void multiply(Ring &ring, const Epilogue &epilogue, const Tile &tile) {
    Sum whole[WAVES][SUMS];
    Offsets offsets[WAVES][STEP_UNITS];
    if (ZEROS)
#pragma unroll
      for (int wave = 0; wave < WAVES; ++wave)
        offsets[wave][0].set(pair_at(epilogue.zeros + min(tile.strip() + own(wave), STRIPS - 1) * STRIP + column()));
    Levels even[WAVES], odd[WAVES];
    int done = 0;
#pragma unroll 1
    for (; done + 1 < PART * PIECES; done += 2) {
      add_piece(ring, even, offsets, whole, 0, done > 0);
      add_piece(ring, odd, offsets, whole, 1 % PIECES, true);
    }
    if (PART * PIECES % 2) add_piece(ring, even, offsets, whole, 0, done > 0);
    await_products<0>();
#pragma unroll
    for (int wave = 0; wave < WAVES; ++wave) {
      settle(whole[wave]);
#pragma unroll
      for (int k = 0; k < SUMS; ++k) sum[wave][k] = (float)whole[wave][k];
    }
    ring.release(ring.before());
  }
  __device__ void add_piece(Ring &ring, Levels (&levels)[WAVES], const Offsets (&offsets)[WAVES][STEP_UNITS],
                            Sum (&whole)[WAVES][SUMS], int piece, bool more) {
    if (piece == 0) await(ring.full(ring.stage), ring.parity);
#pragma unroll
    for (int wave = 0; wave < WAVES; ++wave) levels[wave].load(piece_of(ring, wave, piece), thread(), offsets[wave], 0);
    begin_products();
#pragma unroll
    for (int wave = 0; wave < WAVES; ++wave)
#pragma unroll
      for (int k = 0; k < 4; ++k)
        multiply_tokens(whole[wave], levels[wave].of[k], tokens_of(ring, piece * 4 + k), more || k > 0);
    close_products();
    await_products<1>();
    if (piece == 0 && more) ring.release(ring.before());
    if (piece == PIECES - 1) ring.advance();
  }

  // While one warpgroup adds, the others multiply.
  __device__ void multiply_promoted(Ring &ring) {
#pragma unroll
    for (int wave = 0; wave < WAVES; ++wave)
#pragma unroll
      for (int k = 0; k < SUMS; ++k) sum[wave][k] = 0;
#pragma unroll 1
    for (int step = 0; step < PART; ++step, ring.advance()) {
      await(ring.full(ring.stage), ring.parity);
#pragma unroll
      for (int wave = 0; wave < WAVES; ++wave) add_step(ring, wave);
    }
  }
  __device__ void add_step(Ring &ring, int wave) {
    Sum part[SUMS];
    Offsets offsets[STEP_UNITS];
    unsigned scales[STEP_UNITS];
    const int factors = (own(wave) * STRIP + column()) * (int)sizeof(T);
    // all that is read of the stage is read before it is released
#pragma unroll
    for (int unit = 0; unit < STEP_UNITS; ++unit) {
      if (!PER_COLUMN) scales[unit] = shared_pair(ring.scales() + unit * UNIT_BYTES + factors);
      if (ZEROS && !PER_COLUMN) offsets[unit].set(shared_pair(ring.zeros() + unit * UNIT_BYTES + factors));
    }
#pragma unroll
    for (int piece = 0; piece < PIECES; ++piece) {
      Levels levels;
      levels.load(piece_of(ring, wave, piece), thread(), offsets, piece * PIECE / UNIT);
#pragma unroll
      for (int first = piece * PIECE; first < (piece + 1) * PIECE; first += SUMMED) {
        begin_products();
#pragma unroll
        for (int k = first; k < first + SUMMED; k += PRODUCT)
          multiply_tokens(part, levels.of[k / PRODUCT % 4], tokens_of(ring, k / PRODUCT), k % UNIT > 0);
        close_products();
        await_products<0>();
        settle(part);
        if (wave == WAVES - 1 && first + SUMMED == STEP) ring.release(ring.stage);
        if ((first + SUMMED) % UNIT == 0) {
          const float2 scale = PER_COLUMN ? make_float2(1.0f, 1.0f) : floats(scales[first / UNIT]);
#pragma unroll
          for (int k = 0; k < SUMS; ++k) sum[wave][k] = fmaf((float)part[k], k / 2 % 2 ? scale.y : scale.x, sum[wave][k]);
        }
      }
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
    packed_wgmma(TENSOR_MAP(a), T *__restrict__ y, const float *__restrict__ scale_a, const Words *__restrict__ packed,
                 const T *__restrict__ scales, const T *__restrict__ zeros, const T *__restrict__ bias, long long m) {
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
    if (threadIdx.x == MULTIPLIERS) copy_all((Map)&a, packed, scales, zeros, (int)m, ring);
    __syncwarp();
    if constexpr (CLUSTER > 1) {
      meet_cluster();
      meet_cluster();
    }
  } else {
    if constexpr (GIVES) take_registers<232>();
    Multiplier().run({y, scale_a, scales, zeros, bias, (int)m}, ring);
  }
}
