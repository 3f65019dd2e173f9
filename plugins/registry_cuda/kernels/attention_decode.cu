// Attention of a sequence's last tokens to its cache. Keys and values go from memory to registers in the order of the tensor
// cores' fragments: a warp takes 16 keys a step, and while it works on them the next ones are on their way. The rows of queries
// that share a head of the cache are the narrow side of the products, 8 of them or 16.
//
// Lane 4 * g + t has of keys g and g + 8 every fourth vector of 16 bytes, from the t-th on, and those of each query: a product may
// add up in any order. Of values it has every eighth vector of keys 2t, 2t + 1, 2t + 8 and 2t + 9, from the g-th on, and makes
// pairs of them. The warps of a CLUSTER of blocks take the steps of a sequence in turn, each with AHEAD steps in registers or on
// their way; the blocks send each other their sums and add them in a fixed order (Flash-Decoding, Dao et al., 2023).

constexpr int LANES = 32, STEP = 16, NARROW = 8;
constexpr unsigned ALL_LANES = 0xffffffffu;
constexpr float LOG2E = 1.4426950408889634f, LN2 = 0.6931471805599453f;
constexpr int ROWS = GROUP * TOKENS, TILES = (ROWS + NARROW - 1) / NARROW;
constexpr int CELL = FLOAT8 ? 1 : sizeof(T);
constexpr int RUN = 16 / CELL;  // elements of a vector
constexpr int KEY_VECTORS = DIM / (4 * RUN), VALUE_VECTORS = DIM / (8 * RUN), PRODUCTS = DIM / 16;
constexpr bool ALIGNED_PAGES = PAGE % STEP == 0;  // a step's keys are in one page
constexpr float RISE = 8.0f;  // a weight is at most two to its power
static_assert(DIM % (8 * RUN) == 0 && TILES <= 2, "whole vectors for each lane, and at most 16 rows");

#if FLOAT8
using Factor = __half;  // in which float8 is exact
#else
using Factor = T;
#endif

__device__ inline unsigned pair_of(float one, float other, __half) {
  const __half2 pair = __floats2half2_rn(one, other);
  return reinterpret_cast<const unsigned &>(pair);
}
__device__ inline unsigned pair_of(float one, float other, __nv_bfloat16) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(one, other);
  return reinterpret_cast<const unsigned &>(pair);
}
// Two elements of float8 in the low half of a word.
__device__ inline unsigned widened(unsigned word) {
  unsigned pair;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(pair) : "h"((unsigned short)word));
  return pair;
}
// Elements 2 * k and 2 * k + 1 of a vector.
__device__ inline unsigned pair_of(const Words &vector, int k) {
  return FLOAT8 ? widened(vector.word[k / 2] >> (k % 2 * 16)) : vector.word[k];
}
// Of elements 2 * k and 2 * k + 1 of two keys' vectors: the pair of the first, and of the second.
__device__ inline void transpose(unsigned &first, unsigned &second, const Words &one, const Words &other, int k) {
  if (FLOAT8) {
    const unsigned both = __byte_perm(one.word[k / 2], other.word[k / 2], k % 2 ? 0x7362 : 0x5140);
    first = widened(both), second = widened(both >> 16);
  } else {
    first = __byte_perm(one.word[k], other.word[k], 0x5410);
    second = __byte_perm(one.word[k], other.word[k], 0x7632);
  }
}
// Of an 8 x 8 matrix of halves, of which lane 4 * g + t has elements [g, 2t] and [g, 2t + 1], those of the transposed one.
__device__ inline unsigned transposed(unsigned pair) {
  unsigned found;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(found) : "r"(pair));
  return found;
}

struct Cache {
  const char *cells;  // of this head, and without pages of this sequence
  long long outer, slot;

  __device__ Cache(const void *cache, long long outer, long long slot, long long head, int batch, int kv_head)
      : cells(static_cast<const char *>(cache) + (kv_head * head + (PAGE ? 0 : batch * outer)) * CELL), outer(outer * CELL),
        slot(slot * CELL) {}
  __device__ const Words *vectors(int block, int key) const {
    const long long place = PAGE ? block * outer + key % (PAGE ? PAGE : 1) * slot : key * slot;
    return reinterpret_cast<const Words *>(cells + place);
  }
};

// The steps of a warp: the warps of a cluster take them in turn.
struct Walk {
  static constexpr int STRIDE = CLUSTER * WARPS;
  const int *table;
  int room, length;
  int least;       // keys from here on are seen by some token
  int first, end;  // in steps

  __device__ Walk(const int *kv_lens, const int *block_table, long long table_row, long long room, int batch, int turn)
      : table(block_table + (PAGE ? batch * table_row : 0)), room((int)room), length(kv_lens[batch]) {
    least = WINDOW < 0 ? 0 : max(length - TOKENS - WINDOW, 0);
    first = least / STEP + turn;
    end = (length + STEP - 1) / STEP;
  }
  __device__ bool has(int key) const { return key >= least && key < length; }
  __device__ bool is_whole(int step) const { return step * STEP >= least && (step + 1) * STEP <= length; }
  // In the place of a key that no token sees one that is there.
  __device__ int existing(int key) const { return max(min(key, length - 1), least); }
  // Behind the sequence it is no block; the length is not waited for.
  __device__ int block_of_step(int step) const {
    return ALIGNED_PAGES && PAGE && step * STEP < room ? table[step * STEP / (PAGE ? PAGE : 1)] : 0;
  }
  __device__ int block_of(int key, int of_step) const {
    return ALIGNED_PAGES || !PAGE ? of_step : table[key / (PAGE ? PAGE : 1)];
  }
};

template <int KEYS, int VECTORS> struct Vectors {
  Words of[KEYS][VECTORS] = {};

  // Vectors `first`, first + apart, ... of keys key(0), key(1), ...
  template <typename Key>
  __device__ void load(const Cache &cache, const Walk &walk, int block, bool wanted, int first, int apart, Key key) {
#pragma unroll
    for (int k = 0; k < KEYS; ++k) {
      const int place = wanted ? walk.existing(key(k)) : 0;
      const Words *vectors = cache.vectors(wanted ? walk.block_of(place, block) : 0, place) + first;
#pragma unroll
      for (int vector = 0; vector < VECTORS; ++vector) load_once(of[k][vector], vectors + vector * apart, wanted);
    }
  }
  // What no token sees may be any number, and times a weight of zero be none.
  template <typename Key> __device__ void clear(const Walk &walk, Key key) {
#pragma unroll
    for (int k = 0; k < KEYS; ++k)
#pragma unroll
      for (int vector = 0; vector < VECTORS; ++vector)
        if (!walk.has(key(k))) of[k][vector] = {};
  }
};

// Rows of queries as the narrow operand, and what each of a lane's two rows of a tile's logits is multiplied by.
struct Queries {
  unsigned of[TILES][PRODUCTS][2];
  float factor[TILES][2];

  __device__ void load(const T *q, long long q_token, long long q_head, float scale, int lane) {
#pragma unroll
    for (int tile = 0; tile < TILES; ++tile) {
      const int row = tile * NARROW + lane / 4;
      const T *own = q + row / GROUP * q_token + row % GROUP * q_head;
      Words loaded[PRODUCTS / 2] = {};
#pragma unroll
      for (int k = 0; k < PRODUCTS / 2; ++k) {
        const int element = (k / (RUN / 8) * 4 + lane % 4) * RUN + k % (RUN / 8) * 8;
        if (row < ROWS) loaded[k] = *reinterpret_cast<const Words *>(own + element);
      }
      factor[tile][0] = factor[tile][1] = scale;
#pragma unroll
      for (int k = 0; k < PRODUCTS; ++k)
#pragma unroll
        for (int part = 0; part < 2; ++part) of[tile][k][part] = loaded[k / 2].word[k % 2 * 2 + part];
#if FLOAT8 && !HALF
      narrow(tile, lane);
#endif
    }
  }

#if FLOAT8 && !HALF
  // bfloat16 as float16 of at most 2 ** 15: each row is divided by a power of two.
  __device__ void narrow(int tile, int lane) {
    float most = 0.0f;
#pragma unroll
    for (int k = 0; k < PRODUCTS * 2; ++k) {
      const float2 pair = floats(of[tile][k / 2][k % 2]);
      most = fmaxf(most, fmaxf(fabsf(pair.x), fabsf(pair.y)));
    }
#pragma unroll
    for (int distance = 1; distance < 4; distance *= 2) most = fmaxf(most, __shfl_xor_sync(ALL_LANES, most, distance));
    const int exponent = max(__float_as_int(most) >> 23, 15);
    const float less = __int_as_float((268 - exponent) << 23), unit = __int_as_float((exponent - 14) << 23);
#pragma unroll
    for (int k = 0; k < PRODUCTS * 2; ++k) {
      unsigned &word = of[tile][k / 2][k % 2];
      const float2 pair = floats(word);
      word = pair_of(pair.x * less, pair.y * less, __half());
    }
#pragma unroll
    for (int k = 0; k < 2; ++k) factor[tile][k] *= __shfl_sync(ALL_LANES, unit, (lane % 4 * 2 + k) * 4);
  }
  __device__ static float2 floats(unsigned pair) { return __bfloat1622float2(reinterpret_cast<const __nv_bfloat162 &>(pair)); }
#endif
};

// Sums of weighted values, of weights, and two to what power they are multiplied by. A lane has rows 2t and 2t + 1 of a tile, and
// of each vector of values elements 2k and 2k + 1.
struct Sums {
  float of[TILES][PRODUCTS][4] = {};
  float total[TILES][2] = {}, base[TILES][2];

  __device__ Sums() {
#pragma unroll
    for (int k = 0; k < 2 * TILES; ++k) base[k / 2][k % 2] = -CUDART_INF_F;
  }
  __device__ static float origin(float base) { return base == -CUDART_INF_F ? 0.0f : base; }

  // Weights of 16 keys, of which key(k / 2) has logit k of a tile; rarely their base rises.
  __device__ void weigh(float (&logit)[TILES][4]) {
    bool higher = false;
#pragma unroll
    for (int tile = 0; tile < TILES; ++tile)
#pragma unroll
      for (int k = 0; k < 4; ++k) higher |= logit[tile][k] > base[tile][k % 2] + RISE;
    if (__any_sync(ALL_LANES, higher)) raise(logit);
#pragma unroll
    for (int tile = 0; tile < TILES; ++tile)
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        logit[tile][k] = exp2f(logit[tile][k] - origin(base[tile][k % 2]));
        total[tile][k % 2] += logit[tile][k];
      }
  }
  __device__ void raise(const float (&logit)[TILES][4]) {
#pragma unroll
    for (int tile = 0; tile < TILES; ++tile)
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        float top = fmaxf(base[tile][row], fmaxf(logit[tile][row], logit[tile][row + 2]));
#pragma unroll
        for (int distance = 4; distance < LANES; distance *= 2)
          top = fmaxf(top, __shfl_xor_sync(ALL_LANES, top, distance));
        const float shrink = exp2f(base[tile][row] - origin(top));
        base[tile][row] = top;
        total[tile][row] *= shrink;
#pragma unroll
        for (int product = 0; product < PRODUCTS; ++product) of[tile][product][row] *= shrink, of[tile][product][row + 2] *= shrink;
      }
  }

  __device__ void add(const float (&weight)[TILES][4], const Vectors<4, VALUE_VECTORS> &values) {
    unsigned weights[TILES][2];
#pragma unroll
    for (int k = 0; k < 2 * TILES; ++k)
      weights[k / 2][k % 2] = transposed(pair_of(weight[k / 2][k % 2 * 2], weight[k / 2][k % 2 * 2 + 1], Factor()));
#pragma unroll
    for (int vector = 0; vector < VALUE_VECTORS; ++vector)
#pragma unroll
      for (int k = 0; k < RUN / 2; ++k) {
        unsigned a[4];
        transpose(a[0], a[1], values.of[0][vector], values.of[1][vector], k);
        transpose(a[2], a[3], values.of[2][vector], values.of[3][vector], k);
#pragma unroll
        for (int tile = 0; tile < TILES; ++tile) {
          float(&sum)[4] = of[tile][vector * (RUN / 2) + k];
          multiply_add(sum, a, weights[tile][0], weights[tile][1], sum, Factor());
        }
      }
  }
};

// The logits of 16 keys in base 2, -inf where a row does not see a key.
struct Logits {
  float of[TILES][4] = {};

  __device__ void multiply(const Queries &queries, const Vectors<2, KEY_VECTORS> &keys) {
#pragma unroll
    for (int product = 0; product < PRODUCTS; ++product) {
      const int vector = product / (RUN / 4), k = product % (RUN / 4) * 2;
      const unsigned a[4] = {pair_of(keys.of[0][vector], k), pair_of(keys.of[1][vector], k), pair_of(keys.of[0][vector], k + 1),
                             pair_of(keys.of[1][vector], k + 1)};
#pragma unroll
      for (int tile = 0; tile < TILES; ++tile)
        multiply_add(of[tile], a, queries.of[tile][product][0], queries.of[tile][product][1], of[tile], Factor());
    }
  }
  __device__ void finish(const Queries &queries, float cap, int step, int length, int lane) {
#pragma unroll
    for (int tile = 0; tile < TILES; ++tile)
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const int key = step * STEP + lane / 4 + k / 2 * 8, row = tile * NARROW + lane % 4 * 2 + k % 2;
        const int position = length - TOKENS + row / GROUP;
        const bool seen = key <= position && (WINDOW < 0 || key >= position - WINDOW);
        float logit = of[tile][k] * queries.factor[tile][k % 2];
        if (SOFTCAP) logit = capped(logit, cap);
        of[tile][k] = seen ? logit * LOG2E : -CUDART_INF_F;
      }
  }
  // cap * tanh(logit / cap), by one exponential of a number of at most 0.
  __device__ static float capped(float logit, float cap) {
    const float ratio = logit / cap, power = exp2f(fabsf(ratio) * (-2.0f * LOG2E));
    const float size = cap * ((1.0f - power) / (1.0f + power));
    return ratio < 0.0f ? -size : size;
  }
};

// What warps have found of each row, and what a block gets of its share of these from each block of the cluster.
struct Partials {
  static constexpr int VECTORS = DIM / 4;       // of sums, of a row
  static constexpr int COUNT = ROWS * VECTORS;  // of them all
  static constexpr int SHARE = (COUNT + CLUSTER - 1) / CLUSTER;

  // Those of a block's share: {base, total, 0, 0}, and sums. The barrier of what is sent lies in front.
  __device__ static Floats *sent(int rank, int place) { return dynamic_shared() + 1 + (rank * SHARE + place) * 2; }
  __device__ static Floats *of_warps() { return CLUSTER == 1 ? dynamic_shared() : sent(CLUSTER, 0); }
  __device__ static Floats *sums(int warp, int row) { return of_warps() + (warp * ROWS + row) * VECTORS; }
  __device__ static Floats *weights(int warp, int row) { return of_warps() + WARPS * COUNT + warp * ROWS + row; }
  __device__ static int own(int split) { return max(0, min(SHARE, COUNT - split * SHARE)); }

  __device__ static void write(const Sums &found, int warp, int lane) {
#pragma unroll
    for (int tile = 0; tile < TILES; ++tile)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = tile * NARROW + lane % 4 * 2 + half;
        float total = found.total[tile][half];
#pragma unroll
        for (int distance = 4; distance < LANES; distance *= 2) total += __shfl_xor_sync(ALL_LANES, total, distance);
        if (row >= ROWS) continue;
        if (lane < 4) *weights(warp, row) = {found.base[tile][half], total, 0.0f, 0.0f};
        Floats *own = sums(warp, row);
#pragma unroll
        for (int k = 0; k < PRODUCTS; k += 2) {
          const float(&one)[4] = found.of[tile][k], (&other)[4] = found.of[tile][k + 1];
          const int element = (k / (RUN / 2) * 8 + lane / 4) * RUN + k % (RUN / 2) * 2;
          own[element / 4] = {one[half], one[half + 2], other[half], other[half + 2]};
        }
      }
  }

  // The sum of COUNT parts with weights, and their {base, total}.
  template <int COUNT> struct Sum {
    Floats weight, value = {};

    __device__ Sum(const Floats (&weights)[COUNT], const Floats (&values)[COUNT]) {
      float top = -CUDART_INF_F, total = 0.0f;
#pragma unroll
      for (int k = 0; k < COUNT; ++k) top = fmaxf(top, weights[k].part[0]);
#pragma unroll
      for (int k = 0; k < COUNT; ++k) {
        const float share = exp2f(weights[k].part[0] - Sums::origin(top));
        total = fmaf(share, weights[k].part[1], total);
#pragma unroll
        for (int element = 0; element < 4; ++element)
          value.part[element] = fmaf(share, values[k].part[element], value.part[element]);
      }
      weight = {top, total, 0.0f, 0.0f};
    }
  };
};

struct Results {
  T *out;
  float *lse;
  float v_scale;
  int batch, kv_head;

  __device__ void store(const Floats &value, const Floats &weight, int row, int vector) const {
    const int token = row / GROUP, head = kv_head * GROUP + row % GROUP;
    const float base = weight.part[0], total = weight.part[1];
    const bool none = total == 0.0f;  // and not by the base: what is NaN raises none
    const float share = none ? 0.0f : v_scale / total;
    Vector rounded;
    rounded.transform([&](int k, float) { return none ? 0.0f : value.part[k] * share; });
    *reinterpret_cast<Vector *>(out + (((long long)batch * TOKENS + token) * (KV_HEADS * GROUP) + head) * DIM + vector * 4) = rounded;
    if (vector == 0)
      lse[((long long)batch * (KV_HEADS * GROUP) + head) * TOKENS + token] = none ? -CUDART_INF_F : (base + log2f(total)) * LN2;
  }
};

__device__ inline void combine(const Results &results, int split) {
  __syncthreads();
#if CLUSTER > 1
  meet_siblings();
#endif
  for (int place = threadIdx.x; place < Partials::COUNT; place += WARPS * LANES) {
    const int row = place / Partials::VECTORS, vector = place % Partials::VECTORS;
    Floats weights[WARPS], values[WARPS];
#pragma unroll
    for (int warp = 0; warp < WARPS; ++warp)
      weights[warp] = *Partials::weights(warp, row), values[warp] = Partials::sums(warp, row)[vector];
    const Partials::Sum<WARPS> sum(weights, values);
#if CLUSTER == 1
    results.store(sum.value, sum.weight, row, vector);
#else
    Floats *there = Partials::sent(split, place % Partials::SHARE);
    send_vector(there, place / Partials::SHARE, sum.weight);
    send_vector(there + 1, place / Partials::SHARE, sum.value);
#endif
  }
#if CLUSTER > 1
  await_vectors();
  for (int own = threadIdx.x; own < Partials::own(split); own += WARPS * LANES) {
    Floats weights[CLUSTER], values[CLUSTER];
#pragma unroll
    for (int rank = 0; rank < CLUSTER; ++rank) weights[rank] = *Partials::sent(rank, own), values[rank] = Partials::sent(rank, own)[1];
    const Partials::Sum<CLUSTER> sum(weights, values);
    const int place = split * Partials::SHARE + own;
    results.store(sum.value, sum.weight, place / Partials::VECTORS, place % Partials::VECTORS);
  }
#endif
}
// No pointer is __restrict__, and none is read by __ldg: such reads the compiler may move before the wait.
extern "C" __global__ void __launch_bounds__(WARPS *LANES, RESIDENT)
    attention_decode(T *out, float *lse, const T *q, const void *k_cache,
                     const void *v_cache, const int *kv_lens, const int *block_table,
                     const float *k_scale, const float *v_scale, float scale, float softcap,
                     long long q_outer, long long q_token, long long q_head, long long k_outer, long long k_slot,
                     long long k_head, long long v_outer, long long v_slot, long long v_head, long long table_row, long long room) {
  launch_dependents();
  await_kernel_ahead();
  const int split = blockIdx.x % CLUSTER, kv_head = blockIdx.x / CLUSTER % KV_HEADS, batch = blockIdx.x / (CLUSTER * KV_HEADS);
  const int warp = __shfl_sync(ALL_LANES, (int)threadIdx.x / LANES, 0), lane = threadIdx.x % LANES;
  const int g = lane / 4, t = lane % 4;
  const Walk walk(kv_lens, block_table, table_row, room, batch, split * WARPS + warp);
  const Cache key_cache(k_cache, k_outer, k_slot, k_head, batch, kv_head);
  const Cache value_cache(v_cache, v_outer, v_slot, v_head, batch, kv_head);
  Vectors<2, KEY_VECTORS> keys[AHEAD];
  Vectors<4, VALUE_VECTORS> values[AHEAD];
  int blocks[AHEAD];  // of the steps that are loaded next
  const auto value_key = [&](int step, int k) { return step * STEP + 2 * t + k % 2 + k / 2 * 8; };
  const auto load_keys = [&](int turn, int step) {
    keys[turn].load(key_cache, walk, blocks[turn], step < walk.end, t, 4, [&](int k) { return step * STEP + g + 8 * k; });
  };
  const auto load_values = [&](int turn, int step) {
    values[turn].load(value_cache, walk, blocks[turn], step < walk.end, g, 8, [&](int k) { return value_key(step, k); });
  };

#if CLUSTER > 1
  expect_vectors(CLUSTER * Partials::own(split) * 2 * (int)sizeof(Floats));
#endif
#pragma unroll
  for (int turn = 0; turn < AHEAD; ++turn) blocks[turn] = walk.block_of_step(walk.first + turn * Walk::STRIDE);
#pragma unroll
  for (int turn = 0; turn < AHEAD; ++turn) {
    load_keys(turn, walk.first + turn * Walk::STRIDE);
    load_values(turn, walk.first + turn * Walk::STRIDE);
    blocks[turn] = walk.block_of_step(walk.first + (turn + AHEAD) * Walk::STRIDE);
  }
  Queries queries;
  queries.load(q + batch * q_outer + kv_head * GROUP * q_head, q_token, q_head, FLOAT8 ? scale * *k_scale : scale, lane);
  Sums sums;
#pragma unroll 1
  for (int first = walk.first; first < walk.end; first += AHEAD * Walk::STRIDE) {
#pragma unroll
    for (int turn = 0; turn < AHEAD; ++turn) {
      const int step = first + turn * Walk::STRIDE, next = step + AHEAD * Walk::STRIDE;
      if (turn > 0 && step >= walk.end) break;
      Logits logits;
      logits.multiply(queries, keys[turn]);
      load_keys(turn, next);
      issue_loads();
      logits.finish(queries, softcap, step, walk.length, lane);
      sums.weigh(logits.of);
      if (!walk.is_whole(step)) values[turn].clear(walk, [&](int k) { return value_key(step, k); });
      sums.add(logits.of, values[turn]);
      load_values(turn, next);
      issue_loads();
      blocks[turn] = walk.block_of_step(next + AHEAD * Walk::STRIDE);
    }
  }
  Partials::write(sums, warp, lane);
  combine({out, lse, FLOAT8 ? *v_scale : 1.0f, batch, kv_head}, split);
}
