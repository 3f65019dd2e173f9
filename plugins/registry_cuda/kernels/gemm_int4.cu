// y = a @ W, W[k, n] = (q[k, n] - zero) * scale, for few rows of a ("tokens"): the weight is the tensor cores' 16-row
// operand and the tokens the 8-wide one, so that little is wasted on few tokens. Nothing of the main loop is shared
// between warps but the L1 cache. K is split over WARPS_K warps and CLUSTER blocks, added in a fixed order.
//
// A stripe is 32 columns of W, a chunk 32 of its rows, a unit the chunks that have one scale. The order of K inside an
// mma is free if it is the same for both operands: lane 4 * g + t has k = 8 * t .. 8 * t + 7 of each chunk, which are
// 16 contiguous bytes of its token's row, and columns 4 * g .. 4 * g + 3 of each stripe.

constexpr int LANES = 32, STRIPE = 32, CHUNK = 32, WIDEST = 128;
constexpr int UNIT_CHUNKS = UNIT / CHUNK;
constexpr int UNITS = (K + UNIT - 1) / UNIT;
constexpr int CHUNKS = UNITS * UNIT_CHUNKS;
constexpr int STRIPES = (N + WIDEST - 1) / WIDEST * (WIDEST / STRIPE);
constexpr int OWN = COLUMNS / STRIPE;  // stripes of a warp
constexpr int OCTETS = TOKENS / 8;
constexpr int SLOTS = AHEAD / UNIT_CHUNKS;
constexpr int PARTS = WARPS_K * CLUSTER;  // of K
constexpr int THREADS = WARPS_N * WARPS_K * LANES;
static_assert(WIDEST % (WARPS_N * COLUMNS) == 0, "the prepared weight is padded to whole blocks");
static_assert(AHEAD % UNIT_CHUNKS == 0 && AHEAD % TOKENS_AHEAD == 0, "the rings turn once in AHEAD chunks");

// A nibble in the lowest bits of the mantissa of a number whose unit in the last place is 1: OFFSET + nibble.
constexpr float OFFSET = HALF ? 1024.0f : 128.0f;
constexpr unsigned MAGIC = HALF ? 0x64006400u : 0x43004300u;
constexpr unsigned ONES = HALF ? 0x3C003C00u : 0x3F803F80u;

// scales of a lane's four columns of a stripe, then their zero points
#if SYMMETRIC
using Factors = HalfWords;
#else
using Factors = Words;
#endif

__device__ inline float factor(const Factors &factors, int place) {
  return to_float(from_bits<T>(factors.word[place / 2] >> (place % 2 * 16)));
}
__device__ inline float zero_point(const Factors &factors, int column) {
  return SYMMETRIC ? 8.0f : factor(factors, (4 + column) % (sizeof(Factors) / 2));
}

// A word as the four registers of a 16 x 16 operand: OFFSET + nibble, two at once.
__device__ inline void expand(unsigned (&a)[4], unsigned word) {
#pragma unroll
  for (int k = 0; k < 4; ++k) a[k] = mask_and_set(word >> (4 * k), 0x000F000Fu, MAGIC);
}

struct Position {
  int group, thread;      // the lane's row and column in a fragment
  int warp_n, warp_k;
  int first, last;        // chunks
  long long token;        // the block's first
  int stripe;             // the warp's first

  __device__ Position() {
    const int lane = threadIdx.x % LANES, warp = threadIdx.x / LANES;
    group = lane / 4;
    thread = lane % 4;
    warp_n = warp % WARPS_N;
    warp_k = warp / WARPS_N;
    const int part = (int)(blockIdx.x % CLUSTER) * WARPS_K + warp_k;
    first = part * UNITS / PARTS * UNIT_CHUNKS;
    last = (part + 1) * UNITS / PARTS * UNIT_CHUNKS;
    token = (long long)(blockIdx.x / CLUSTER) * TOKENS;
    stripe = ((int)blockIdx.y * WARPS_N + warp_n) * OWN;
  }
};

// Where a lane reads next. Tokens that do not exist read the last one that does, and are not stored.
struct Sources {
  const Words *weight;
  const Factors *factors;
  const T *tokens;
  unsigned rows[OCTETS];  // from `tokens` on
  int left;               // chunks
  int k;                  // the lane's first of the next chunk

  __device__ Sources(const T *a, const Words *packed, const Factors *all, const Position &position, long long m) {
    weight = packed + ((long long)position.stripe * CHUNKS + position.first) * LANES + threadIdx.x % LANES;
    factors = all + (PER_COLUMN ? 0 : (long long)(position.first / UNIT_CHUNKS) * STRIPES * 8);
    factors += position.stripe * 8 + position.group;
    k = position.first * CHUNK + position.thread * 8;
    tokens = a + position.token * K + k;
    // a constant where it can be: a warp with a single unit needs no second set of accumulators
    left = UNITS % PARTS ? position.last - position.first : UNITS / PARTS * UNIT_CHUNKS;
#pragma unroll
    for (int u = 0; u < OCTETS; ++u) {
      const int row = u * 8 + position.group, most = m - position.token < TOKENS ? (int)(m - position.token) : TOKENS;
      rows[u] = (unsigned)(row < most ? row : most - 1) * K;
    }
  }

  __device__ void advance(int chunks) {
    weight += chunks * LANES;
    if (!PER_COLUMN) factors += chunks / UNIT_CHUNKS * STRIPES * 8;
    tokens += chunks * CHUNK;
    left -= chunks;
    k += chunks * CHUNK;
  }

  // Chunk and unit count from where these pointers are; what lies beyond the warp's part is not read.
  __device__ void load_weight(Words (&into)[OWN], int chunk) const {
#pragma unroll
    for (int s = 0; s < OWN; ++s) load_once(into[s], weight + (s * CHUNKS + chunk) * LANES, chunk < left);
  }

  __device__ void load_factors(Factors (&into)[OWN], int unit) const {
#pragma unroll
    for (int s = 0; s < OWN; ++s)
      load_once(into[s], factors + ((PER_COLUMN ? 0 : unit * STRIPES) + s) * 8, unit * UNIT_CHUNKS < left);
  }

  __device__ void load_tokens(Words (&into)[OCTETS], int chunk) const {
#pragma unroll
    for (int u = 0; u < OCTETS; ++u) {
      const T *from = tokens + rows[u] + chunk * CHUNK;
      const bool exists = K % UNIT == 0 || k + chunk * CHUNK < K;
      if (!exists) into[u] = Words{};
      if (ALIGNED) {
        load_often(into[u], from, chunk < left && exists);
      } else if (chunk < left && exists) {
#pragma unroll
        for (int w = 0; w < 4; ++w) into[u].word[w] = bits_of(from[2 * w]) | bits_of(from[2 * w + 1]) << 16;
      }
    }
  }
};

// Raw products of a unit, and the sums of its activations in every row, from a product with ones.
struct Unit {
  float product[OWN][2][OCTETS][4], sum[OCTETS][4];

  __device__ static void add(float (&to)[4], const unsigned (&a)[4], const Words &tokens, int step, bool fresh) {
    const float zeros[4] = {};
    const unsigned b0 = tokens.word[2 * step], b1 = tokens.word[2 * step + 1];
    fresh ? multiply_add(to, a, b0, b1, zeros, T()) : multiply_add(to, a, b0, b1, to, T());
  }

  // One more chunk; `fresh` is the first, before which there is nothing.
  __device__ void add(const Words (&weight)[OWN], const Words (&tokens)[OCTETS], bool fresh) {
    const unsigned ones[4] = {ONES, ONES, ONES, ONES};
#pragma unroll
    for (int step = 0; step < 2; ++step) {
#pragma unroll
      for (int s = 0; s < OWN; ++s) {
#pragma unroll
        for (int tile = 0; tile < 2; ++tile) {
          unsigned a[4];
          expand(a, weight[s].word[tile * 2 + step]);
#pragma unroll
          for (int u = 0; u < OCTETS; ++u)
            add(product[s][tile][u], a, tokens[u], step, fresh && step == 0);
        }
      }
#pragma unroll
      for (int u = 0; u < OCTETS; ++u)
        add(sum[u], ones, tokens[u], step, fresh && step == 0);
    }
  }
};

struct Total {
  float part[OWN][2][OCTETS][4] = {};

  __device__ void add(const Unit &unit, const Factors (&factors)[OWN]) {
#pragma unroll
    for (int s = 0; s < OWN; ++s) {
#pragma unroll
      for (int column = 0; column < 4; ++column) {
        const int tile = column / 2, row = column % 2;
        const float scale = factor(factors[s], column), zero = OFFSET + zero_point(factors[s], column);
#pragma unroll
        for (int u = 0; u < OCTETS; ++u) {
#pragma unroll
          for (int j = 0; j < 2; ++j) {
            const float centred = fmaf(-zero, unit.sum[u][j], unit.product[s][tile][u][2 * row + j]);
            part[s][tile][u][2 * row + j] = fmaf(scale, centred, part[s][tile][u][2 * row + j]);
          }
        }
      }
    }
  }

  // Four neighbouring columns of one token.
  __device__ Floats columns(int vector) const {
    const int j = vector % 2, u = vector / 2 % OCTETS, s = vector / 2 / OCTETS;
    return {part[s][0][u][j], part[s][0][u][2 + j], part[s][1][u][j], part[s][1][u][2 + j]};
  }
};

// A warp's part of K. Rings of registers keep AHEAD chunks of the weight and TOKENS_AHEAD of the activations on the way.
// The first of the weight, which is prepared, are asked for while the kernel ahead may still write the activations.
__device__ inline void multiply(Total &total, Sources sources) {
  Words weight[AHEAD][OWN], tokens[TOKENS_AHEAD][OCTETS];
  Factors factors[SLOTS][OWN];
#pragma unroll
  for (int chunk = 0; chunk < AHEAD; ++chunk) sources.load_weight(weight[chunk], chunk);
#pragma unroll
  for (int slot = 0; slot < SLOTS; ++slot) sources.load_factors(factors[slot], slot);
  await_kernel_ahead();
#pragma unroll
  for (int chunk = 0; chunk < TOKENS_AHEAD; ++chunk) sources.load_tokens(tokens[chunk], chunk);
  issue_loads();

#pragma unroll 1
  for (; sources.left > 0; sources.advance(AHEAD)) {
#pragma unroll
    for (int slot = 0; slot < SLOTS; ++slot) {
      if (slot > 0 && slot * UNIT_CHUNKS >= sources.left) break;
      Unit unit;
#pragma unroll
      for (int chunk = slot * UNIT_CHUNKS; chunk < (slot + 1) * UNIT_CHUNKS; ++chunk) {
        unit.add(weight[chunk], tokens[chunk % TOKENS_AHEAD], chunk == slot * UNIT_CHUNKS);
        sources.load_weight(weight[chunk], chunk + AHEAD);
        sources.load_tokens(tokens[chunk % TOKENS_AHEAD], chunk + TOKENS_AHEAD);
        issue_loads();
      }
      total.add(unit, factors[slot]);
      sources.load_factors(factors[slot], slot + SLOTS);
    }
  }
}

// Vectors of four columns of one token: those of a warp, of a block, and of a block's share of the last addition.
constexpr int WARP_VECTORS = OWN * OCTETS * 2;
constexpr int VECTORS = WARPS_N * WARP_VECTORS * LANES;
constexpr int SHARE = VECTORS / CLUSTER;

__device__ inline Floats sum_of(const Floats *from, int count, int stride) {
  Floats sum = from[0];
  for (int k = 1; k < count; ++k)
#pragma unroll
    for (int part = 0; part < 4; ++part) sum.part[part] += from[k * stride].part[part];
  return sum;
}

__device__ inline void store(T *y, unsigned vector, const Floats &value, const Position &position, long long m) {
  const unsigned lane = vector % LANES, own = vector / LANES % WARP_VECTORS, warp_n = vector / LANES / WARP_VECTORS;
  const int stripe = (int)((blockIdx.y * WARPS_N + warp_n) * OWN + own / 2 / OCTETS);
  const int column = stripe * STRIPE + (int)(lane / 4 * 4);
  const long long token = position.token + own / 2 % OCTETS * 8 + lane % 4 * 2 + own % 2;
  if (token >= m) return;
  T *place = y + token * N + column;
  if (ALIGNED && N % 4 == 0) {
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

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
    gemm_int4(T *__restrict__ y, const T *__restrict__ a, const Words *__restrict__ packed,
              const Factors *__restrict__ factors, long long m) {
  launch_dependents();
#if CLUSTER > 1
  expect_vectors(VECTORS * sizeof(Floats));
#endif
  const Position position;
  Floats *partial = dynamic_shared() + 1, *received = partial + WARPS_K * VECTORS;
  {
    Total total;
    multiply(total, Sources(a, packed, factors, position, m));
    Floats *mine = partial + position.warp_k * VECTORS + position.warp_n * WARP_VECTORS * LANES + threadIdx.x % LANES;
#pragma unroll
    for (int vector = 0; vector < WARP_VECTORS; ++vector) mine[vector * LANES] = total.columns(vector);
  }
  __syncthreads();
#if CLUSTER > 1
  const unsigned rank = blockIdx.x % CLUSTER;
  meet_siblings();
#pragma unroll 1
  for (unsigned vector = threadIdx.x; vector < VECTORS; vector += THREADS)
    send_vector(received + rank * SHARE + vector % SHARE, vector / SHARE, sum_of(partial + vector, WARPS_K, VECTORS));
  await_vectors();
#pragma unroll 1
  for (unsigned vector = threadIdx.x; vector < SHARE; vector += THREADS)
    store(y, rank * SHARE + vector, sum_of(received + vector, CLUSTER, SHARE), position, m);
#else
#pragma unroll 1
  for (unsigned vector = threadIdx.x; vector < VECTORS; vector += THREADS)
    store(y, vector, sum_of(partial + vector, WARPS_K, VECTORS), position, m);
#endif
}
