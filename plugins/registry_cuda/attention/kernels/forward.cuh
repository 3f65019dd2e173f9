// Attention in one pass over the keys (Dao, 2023; Shah et al., 2024: FlashAttention 3) on Hopper's warpgroup tensor cores.
//
// One thread asks the copy engine for tiles: of queries, of keys and of values, the latter two in turn through one ring of
// STAGES. Each of WARPGROUPS others has 64 rows of queries of a tile, and multiplies its weights of one block of keys with
// the values while the products of the next block are formed, and while another warpgroup computes exponentials. A block
// goes from tile to tile; the next queries are on their way while the sums of the last ones are stored.
//
// Blocks of keys are taken from the last one on: those that only some rows see come first, and need a mask.
//
// A text before this one has `struct Sequences`, which knows where the queries and keys of a tile begin and end.

#include <math_constants.h>

constexpr int LANES = 32, WARPS = 4, WIDTH = 128;
constexpr int MULTIPLIERS = WARPGROUPS * WARPS * LANES;
constexpr int THREADS = MULTIPLIERS + WARPS * LANES;
constexpr int PARTS = (DIM + 63) / 64, SPAN = PARTS * 64;  // a head in parts of 64 elements, 128 bytes, zeros behind it
constexpr int SCORES = KEYS / 2, SUMS = SPAN / 2;          // of a thread
constexpr int QUERY_BYTES = PARTS * ROWS * WIDTH, STAGE_BYTES = PARTS * KEYS * WIDTH;
constexpr float LOG2E = 1.4426950408889634f, LN2 = 0.6931471805599453f;

__device__ inline float exp2_of(float x) {
  float found;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(found) : "f"(x));
  return found;
}
__device__ inline unsigned rounded(float one, float other, __half) {
  const __half2 pair = __floats2half2_rn(one, other);
  return reinterpret_cast<const unsigned &>(pair);
}
__device__ inline unsigned rounded(float one, float other, __nv_bfloat16) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(one, other);
  return reinterpret_cast<const unsigned &>(pair);
}
__device__ inline float inverse_of(float x) {
  float found;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(found) : "f"(x));
  return found;
}
// Within 1e-6 of the hyperbolic tangent, where `tanh.approx` is off by 5e-4, which a cap of 50 makes 0.02 of a logit.
__device__ inline float tanh_of(float x) { return fmaf(-2, inverse_of(exp2_of(2 * LOG2E * x) + 1), 1); }
template <int COUNT> __device__ inline void settle(unsigned (&word)[COUNT]) {
#pragma unroll
  for (int k = 0; k < COUNT; ++k) asm volatile("" : "+r"(word[k])::"memory");
}

// ROWS queries of a head, and the blocks of keys that some of them see: `begin` to `end`, of which all rows see all keys of
// those from `whole_begin` to `whole_end`.
struct Tile {
  Sequence sequence;
  int row, head, begin, end, whole_begin, whole_end;

  __device__ Tile(int place, int flat, const Sequences &sequences)
      : sequence(sequences.find(place, flat)), row(place * ROWS), head(flat % HEADS), begin(0), whole_begin(0) {
    const int own = row + sequence.shift(), last = min(row + ROWS, sequence.q_len) - 1 + sequence.shift();
    const int seen = min(over(last), sequence.kv_len), all = min(over(own), sequence.kv_len);
    end = seen > 0 ? (seen + KEYS - 1) / KEYS : 0;
    whole_end = all > 0 ? all / KEYS : 0;
    if (WINDOW >= 0) {
      begin = max(own - WINDOW, 0) / KEYS;
      whole_begin = (max(row + ROWS - 1 + sequence.shift() - WINDOW, 0) + KEYS - 1) / KEYS;
    }
    begin = min(begin, end);
  }
  // No query: of packed sequences some shares are not filled, and where offsets are wrong a row may be below 0.
  __device__ bool is_empty() const { return (unsigned)row >= (unsigned)sequence.q_len; }
  // Behind the last key that the row whose own key is `own` sees.
  __device__ int over(int own) const { return CAUSAL ? own + 1 : WINDOW >= 0 ? own + WINDOW + 1 : sequence.kv_len; }
};

// The tiles of a block. Heads are taken `together` at a time, whose keys and values fit in L2; of these, tiles with many
// keys run first, each in as many turns as there are heads. Every other turn goes the other way, so that two turns have as
// many keys for each block.
struct Tiles {
  Sequences sequences;
  int heads, together, turn = 0;

  __device__ int index() const {
    const int place = turn % 2 ? gridDim.x - 1 - blockIdx.x : blockIdx.x;
    return turn * gridDim.x + place;
  }
  __device__ int count() const { return heads * sequences.blocks(); }
  // Whether there is such a turn: the other way a block may have none in the last one.
  __device__ bool exists() const { return turn * gridDim.x < count(); }
  __device__ bool is_mine() const { return index() < count(); }
  __device__ Tile tile() const {
    const int band = index() / (together * sequences.blocks()), rest = index() % (together * sequences.blocks());
    const int width = min(together, heads - band * together);
    return Tile(sequences.in_order(rest / width), band * together + rest % width, sequences);
  }
};

struct Ring {
  unsigned base;
  int stage = 0;
  unsigned parity = 0;

  __device__ explicit Ring(unsigned base) : base(base) {}
  __device__ void advance() {
    if (++stage == STAGES) stage = 0, parity ^= 1;
  }
  __device__ unsigned full() const { return base + 8 * stage; }
  __device__ unsigned empty(int stage) const { return base + 8 * (STAGES + stage); }
  __device__ unsigned tile() const { return base + PATTERN + QUERY_BYTES + stage * STAGE_BYTES; }
  __device__ unsigned queries() const { return base + PATTERN; }
  __device__ unsigned queries_full() const { return base + 16 * STAGES; }
  __device__ unsigned queries_empty() const { return base + 16 * STAGES + 8; }
};

// By one thread of a block: ask for the queries of all its tiles, and for keys and values in the order of their use.
struct Fetcher {
  Map q, k, v;
  Ring ring;
  unsigned parity = 1;

  __device__ void run(Tiles tiles) {
    for (; tiles.exists(); ++tiles.turn) {
      if (!tiles.is_mine()) continue;
      const Tile tile = tiles.tile();
      if (tile.is_empty() || tile.begin == tile.end) continue;
      fetch_queries(tile);
      fetch(k, tile, tile.end - 1);
#pragma unroll 1
      for (int block = tile.end - 1; block > tile.begin; --block) {
        fetch(k, tile, block - 1);
        fetch(v, tile, block);
      }
      fetch(v, tile, tile.begin);
    }
  }
  __device__ void fetch_queries(const Tile &tile) {
    await(ring.queries_empty(), parity);
    parity ^= 1;
    arrive_expecting(ring.queries_full(), QUERY_BYTES);
#pragma unroll
    for (int part = 0; part < PARTS; ++part)
      load_head_tile(ring.queries() + part * ROWS * WIDTH, q, part * 64, tile.sequence.first_row + tile.row, tile.head,
                     tile.sequence.batch, ring.queries_full());
  }
  __device__ void fetch(Map map, const Tile &tile, int block) {
    await(ring.empty(ring.stage), ring.parity ^ 1);
    arrive_expecting(ring.full(), STAGE_BYTES);
#pragma unroll
    for (int part = 0; part < PARTS; ++part)
      load_head_tile(ring.tile() + part * KEYS * WIDTH, map, part * 64, tile.sequence.first_key + block * KEYS,
                     tile.head / GROUP, tile.sequence.batch, ring.full());
    ring.advance();
  }
};

// Warpgroups take turns to multiply, so that one computes exponentials while another multiplies. A turn is a barrier of
// the hardware for the threads of two warpgroups: those that wait for it, and those that had the turn before.
struct Turns {
  static constexpr bool TAKEN = IN_TURN && WARPGROUPS > 1;
  static constexpr int FIRST = 1;
  int own;

  __device__ explicit Turns(int warpgroup) : own(warpgroup) {
    if (TAKEN && own == WARPGROUPS - 1) end();
  }
  __device__ void begin() const {
    if (TAKEN) asm volatile("bar.sync %0, 256;" ::"r"(FIRST + own) : "memory");
  }
  __device__ void end() const {
    if (TAKEN) asm volatile("bar.arrive %0, 256;" ::"r"(FIRST + (own + 1) % WARPGROUPS) : "memory");
  }
  // By all threads of a warpgroup, which wait for each other.
  __device__ void meet() const { asm volatile("bar.sync %0, 128;" ::"r"(FIRST + WARPGROUPS + own) : "memory"); }
};

// By a warpgroup: 64 rows of each tile. Its warps have 16 each; a lane has rows lane / 4 and 8 more, and of each 8 columns
// two. Scores are in units of the exponential with base 2.
struct Multiplier {
  float score[SCORES], sum[SUMS], top[2], total[2];
  unsigned weight[KEYS / 4];
  float factor, inner;
  Ring ring;
  Turns turns;
  int warp, lane;
  unsigned parity;

  __device__ void run(Tiles tiles, ELEMENT *out, float *lse) {
    for (; tiles.exists(); ++tiles.turn) {
      if (!tiles.is_mine()) continue;
      const Tile tile = tiles.tile();
      if (tile.is_empty()) continue;
#pragma unroll
      for (int half = 0; half < 2; ++half) top[half] = -CUDART_INF_F, total[half] = 0;
      if (tile.begin < tile.end) pass(tile);
      store(tile, tiles.sequences, out, lse);
    }
  }

  __device__ void pass(const Tile &tile) {
    await(ring.queries_full(), parity);
    parity ^= 1;
    int block = tile.end - 1;
    begin(tile, block);
    bool more = false;
#pragma unroll 1
    for (--block; block >= max(tile.whole_end, tile.begin); --block) more = step<true>(tile, block, more);
#pragma unroll 1
    for (; block >= max(tile.whole_begin, tile.begin); --block) more = step<false>(tile, block, more);
    if (WINDOW >= 0)
#pragma unroll 1
      for (; block >= tile.begin; --block) more = step<true>(tile, block, more);
    release(ring.queries_empty());
    if (!more) clean(tile);
    begin_products();
    values(more);
    close_products();
    await_products<0>();
    settle(sum);
    settle(weight);
    release(ring.empty(ring.stage));
    ring.advance();
  }
  __device__ void begin(const Tile &tile, int block) {
    await(ring.full(), ring.parity);
    turns.begin();
    begin_products();
    products();
    close_products();
    turns.end();
    await_products<0>();
    settle(score);
    release(ring.empty(ring.stage));
    ring.advance();
    float kept[2];
    weigh<true>(tile, block, kept);
    round();
    await(ring.full(), ring.parity);
  }
  // The products of a block of keys, which are there, and meanwhile the values of the block before, each weighted.
  template <bool MASKED> __device__ bool step(const Tile &tile, int block, bool more) {
    turns.begin();
    begin_products();
    products();
    close_products();
    const int of_keys = ring.stage;
    ring.advance();
    await(ring.full(), ring.parity);
    if (!more) clean(tile);
    values(more);
    close_products();
    turns.end();
    const int of_values = ring.stage;
    ring.advance();
    await_products<1>();
    settle(score);
    release(ring.empty(of_keys));
    float kept[2];
    weigh<MASKED>(tile, block, kept);
    settle(score);
    // the next tile is waited for here: ptxas would put the exponentials behind the products that they are to overlap
    await(ring.full(), ring.parity);
    await_products<0>();
    settle(sum);
    settle(weight);
    release(ring.empty(of_values));
#pragma unroll
    for (int k = 0; k < SUMS; ++k) sum[k] *= kept[k / 2 % 2];
    round();
    return true;
  }

  // By each warp: it reads the tile no more.
  __device__ void release(unsigned barrier) const {
    __syncwarp();
    if (lane == 0) arrive(barrier);
  }
  __device__ void products() {
    const unsigned rows = ring.queries() + warp / WARPS * 64 * WIDTH;
#pragma unroll
    for (int part = 0; part < PARTS; ++part) {
      const unsigned long long a = swizzled_operand(rows + part * ROWS * WIDTH);
      const unsigned long long b = swizzled_operand(ring.tile() + part * KEYS * WIDTH);
#pragma unroll
      for (int quarter = 0; quarter < 4; ++quarter) multiply_keys(score, a + quarter * 2, b + quarter * 2, part + quarter > 0);
    }
  }
  __device__ void values(bool more) {
    const unsigned long long b = operand_of_rows(ring.tile(), KEYS * WIDTH);
#pragma unroll
    for (int k = 0; k < KEYS / 16; ++k) {
      const unsigned(&a)[4] = reinterpret_cast<const unsigned(&)[4]>(weight[k * 4]);
      multiply_values(sum, a, b + k * (16 * WIDTH >> 4), more || k > 0);
    }
  }

  // Of the last block's values those behind the sequence's end: another sequence's, of which a weight of 0 makes NaN where
  // they are not finite. Each warpgroup puts the same zeros there, so that none waits for another.
  __device__ void clean(const Tile &tile) const {
    const int first = tile.sequence.kv_len - (tile.end - 1) * KEYS;
    if (!Sequences::PACKED || first >= KEYS) return;
    const unsigned from = ring.tile() - shared_address(dynamic_shared());
    const int count = (KEYS - first) * (WIDTH / 16);
#pragma unroll
    for (int part = 0; part < PARTS; ++part) {
      Words *to = reinterpret_cast<Words *>(dynamic_shared()) + (from + (part * KEYS + first) * WIDTH) / 16;
#pragma unroll 1
      for (int place = warp % WARPS * LANES + lane; place < count; place += WARPS * LANES) to[place] = Words{};
    }
    show_writes();
    turns.meet();
  }

  // Scores become weights; `kept`: by what the sums so far are multiplied.
  template <bool MASKED> __device__ void weigh(const Tile &tile, int block, float (&kept)[2]) {
    if (SOFTCAP)
#pragma unroll
      for (int k = 0; k < SCORES; ++k) score[k] = tanh_of(score[k] * inner);
    if (MASKED) hide(tile, block);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float most = score[half * 2];
#pragma unroll
      for (int k = 0; k < SCORES; k += 4) most = fmaxf(most, fmaxf(score[k + half * 2], score[k + half * 2 + 1]));
      most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
      most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
      const float found = fmaxf(top[half], most * factor);
      // a row that has seen no key yet does not compute inf - inf
      const float base = found == -CUDART_INF_F ? 0.0f : found;
      kept[half] = exp2_of(top[half] - base);
      float part = 0;
#pragma unroll
      for (int k = 0; k < SCORES; k += 4)
#pragma unroll
        for (int pair = 0; pair < 2; ++pair) {
          float &each = score[k + half * 2 + pair];
          each = exp2_of(fmaf(each, factor, -base));
          part += each;
        }
      total[half] = fmaf(total[half], kept[half], part);
      top[half] = found;
    }
  }
  __device__ void hide(const Tile &tile, int block) {
    const int column = block * KEYS + lane % 4 * 2;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int own = tile.row + warp * 16 + lane / 4 + half * 8 + tile.sequence.shift();
      const int over = min(tile.over(own), tile.sequence.kv_len) - column, under = own - WINDOW - column;
#pragma unroll
      for (int k = 0; k < SCORES; k += 4)
#pragma unroll
        for (int pair = 0; pair < 2; ++pair) {
          const int place = k * 2 + pair;
          const bool seen = place < over && (WINDOW < 0 || place >= under);
          float &each = score[k + half * 2 + pair];
          each = seen ? each : -CUDART_INF_F;
        }
    }
  }
  // In the order in which a product reads its left operand.
  __device__ void round() {
#pragma unroll
    for (int k = 0; k < KEYS / 4; ++k) weight[k] = rounded(score[k * 2], score[k * 2 + 1], ELEMENT());
  }

  __device__ void store(const Tile &tile, const Sequences &sequences, ELEMENT *out, float *lse) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      total[half] += __shfl_xor_sync(~0u, total[half], 1);
      total[half] += __shfl_xor_sync(~0u, total[half], 2);
      const int row = tile.row + warp * 16 + lane / 4 + half * 8;
      const bool inside = row < tile.sequence.q_len;
      // such a row's sums are of no key, or of another tile: to make zeros of them first costs registers at every store
      const bool sees_none = total[half] == 0;
      const float inverse = inverse_of(total[half]);
      ELEMENT *to = out + ((tile.sequence.output_row() + row) * HEADS + tile.head) * DIM;
#pragma unroll
      for (int group = 0; group < SPAN / 32; ++group) {
        Words words;
#pragma unroll
        for (int eight = 0; eight < 4; ++eight) {
          const float *own = &sum[(group * 4 + eight) * 4 + half * 2];
          words.word[eight] = sees_none ? 0 : rounded(own[0] * inverse, own[1] * inverse, ELEMENT());
        }
        transpose(words);
        const int column = (group * 4 + lane % 4) * 8;
        if (inside && column < DIM) *reinterpret_cast<Words *>(to + column) = words;
      }
      const float found = sees_none ? -CUDART_INF_F : top[half] * LN2 + logf(total[half]);
      if (inside && lane % 4 == 0) lse[sequences.place_of_sum(tile.sequence, tile.head) + row] = found;
    }
  }
  // Of four lanes each has a pair of four eights of columns: afterwards lane k has the whole eight number k.
  __device__ void transpose(Words &words) const {
#pragma unroll
    for (int apart = 1; apart < 4; apart *= 2) {
      const bool upper = lane & apart;
#pragma unroll
      for (int place = 0; place < 4; ++place) {
        if (place & apart) continue;
        unsigned &low = words.word[place], &high = words.word[place + apart];
        const unsigned got = __shfl_xor_sync(~0u, upper ? low : high, apart);
        low = upper ? got : low;
        high = upper ? high : got;
      }
    }
  }
};

// By every thread of a block. `factor` makes units of an exponential with base 2 of scores; with a soft cap, of the tangent
// of scores times `inner`.
__device__ inline void attend(const Map (&maps)[3], const Tiles &tiles, ELEMENT *out, float *lse, float factor, float inner) {
  const Ring ring(first_pattern());
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < STAGES; ++stage) {
      init_barrier(ring.base + 8 * stage, 1);
      init_barrier(ring.empty(stage), WARPGROUPS * WARPS);
    }
    init_barrier(ring.queries_full(), 1);
    init_barrier(ring.queries_empty(), WARPGROUPS * WARPS);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    for (int map = 0; map < 3; ++map) prefetch_map(maps[map]);
  }
  __syncthreads();
  if (threadIdx.x >= MULTIPLIERS) {
    if constexpr (WARPGROUPS == 2) give_registers<24>();
    if constexpr (WARPGROUPS == 3) give_registers<32>();
    if (threadIdx.x == MULTIPLIERS) Fetcher{maps[0], maps[1], maps[2], ring}.run(tiles);
  } else {
    if constexpr (WARPGROUPS == 2) take_registers<240>();
    if constexpr (WARPGROUPS == 3) take_registers<160>();
    // equal in all lanes, and known to be so
    const int warp = __shfl_sync(~0u, (int)threadIdx.x / LANES, 0), lane = threadIdx.x % LANES;
    Multiplier own{{}, {}, {}, {}, {}, factor, inner, ring, Turns(warp / WARPS), warp, lane, 0};
    own.run(tiles, out, lse);
  }
}
