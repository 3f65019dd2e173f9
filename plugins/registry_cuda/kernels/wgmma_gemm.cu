// y = epilogue(a @ b.T) for a [m, k] and b [n, k], of bfloat16, float16 or float8, on Hopper's warpgroup tensor cores.
//
// One warp asks the copy engine for the tiles of STAGES steps ahead, 128 bytes of K each; WARPGROUPS others multiply, WAVES
// times 64 rows of a tile each. A block goes from tile to tile, so that the next one is on the way while one is stored. The
// blocks of a CLUSTER have tiles that share an operand, the wider one: each fetches its part of it for all.
//
// Tensor cores keep about 14 bits of a sum of float8 products (DeepSeek-V3, section 3.3.2): products of float8 are PROMOTED,
// which means added in float32 after each step, times the scales of the step's block where there are such.

constexpr int LANES = 32, WARPS = 4, WIDTH = 128;
constexpr int BLOCK_M = WARPGROUPS * WAVES * 64;
constexpr int MULTIPLIERS = WARPGROUPS * WARPS * LANES;
constexpr int THREADS = MULTIPLIERS + WARPS * LANES;
constexpr int STEP_K = WIDTH / sizeof(ELEMENT);
constexpr bool GIVES = WARPGROUPS == 2;  // registers of the warps that fetch to those that multiply
constexpr bool SHARES_A = BLOCK_M > BLOCK_N;
constexpr int ALONG_M = SHARES_A ? 1 : CLUSTER, ALONG_N = SHARES_A ? CLUSTER : 1;
constexpr unsigned short ALL = (1 << CLUSTER) - 1;
constexpr bool PROMOTED = sizeof(ELEMENT) == 1;
enum { NO_SCALES, TENSOR, ROW, BLOCK };
constexpr int SCALE_BLOCK = 128;
static_assert(SCALES != BLOCK || STEP_K == SCALE_BLOCK, "a step has one scale of a row");
// of which all have one scale of b
constexpr int SCALE_COLUMNS = SCALE_BLOCK % BLOCK_N == 0 ? BLOCK_N : BLOCK_N % SCALE_BLOCK == 0 ? SCALE_BLOCK : 64;

constexpr int A_BYTES = BLOCK_M * WIDTH, B_BYTES = BLOCK_N * WIDTH, STAGE_BYTES = A_BYTES + B_BYTES;
constexpr int PATTERN = 1024;  // bytes after which the swizzle repeats; barriers lie in the first
static_assert(16 * STAGES <= PATTERN, "two barriers a stage");
// An output tile of a warp: 16 rows of 128 bytes, twice, so that one is written while the other is stored.
constexpr int COLUMNS = WIDTH / sizeof(OUTPUT), OUT_BYTES = 16 * WIDTH;
constexpr int SUMS = BLOCK_N / 2;  // of a thread, for 64 rows
constexpr bool TWO_PARTS = WAVES == 1 && SUMS <= 64;  // promoted in turn: they fit in registers beside the sums

struct Ring {
  unsigned base;
  int stage = 0;
  unsigned parity = 0;

  __device__ explicit Ring(unsigned base) : base(base) {}
  __device__ void advance() {
    if (++stage == STAGES) stage = 0, parity ^= 1;
  }
  __device__ int before(int steps = 1) const { return stage < steps ? stage + STAGES - steps : stage - steps; }
  __device__ unsigned full(int stage) const { return base + 8 * stage; }
  __device__ unsigned empty(int stage) const { return base + 8 * (STAGES + stage); }
  __device__ unsigned a() const { return base + PATTERN + stage * STAGE_BYTES; }
  __device__ unsigned b() const { return a() + A_BYTES; }
  __device__ unsigned output(int warp) const { return base + PATTERN + STAGES * STAGE_BYTES + warp * 2 * OUT_BYTES; }

  // By each warp that multiplies: the stage may be overwritten, in all blocks that a block writes to.
  __device__ void release(int stage) const {
    __syncwarp();
    const int lane = threadIdx.x % LANES;
    if (CLUSTER == 1) {
      if (lane == 0) arrive(empty(stage));
    } else if (lane < CLUSTER) {
      arrive_at(empty(stage), lane);
    }
  }
};

// The tiles of a block, in bands of GROUP_M rows of tiles: those that run at once share what L2 holds.
struct Tiles {
  int along_m, along_n, index, rank;  // tiles of a whole cluster count as one

  __device__ Tiles(int m, int n)
      : along_m((m + BLOCK_M * ALONG_M - 1) / (BLOCK_M * ALONG_M)), along_n((n + BLOCK_N * ALONG_N - 1) / (BLOCK_N * ALONG_N)),
        index(blockIdx.x / CLUSTER), rank(CLUSTER == 1 ? 0 : (int)rank_in_cluster()) {}
  __device__ bool exists() const { return index < along_m * along_n; }
  __device__ void advance() { index += gridDim.x / CLUSTER; }
  __device__ void place(int &row, int &column) const {
    const int band = index / (GROUP_M * along_n), first = band * GROUP_M;
    const int height = min(GROUP_M, along_m - first), rest = index - first * along_n;
    row = ((first + rest % height) * ALONG_M + (SHARES_A ? 0 : rank)) * BLOCK_M;
    column = (rest / height * ALONG_N + (SHARES_A ? rank : 0)) * BLOCK_N;
  }
};

// Ask for a tile of an operand: for one block, or for each block of the cluster if SHARED, where this one asks for its part.
template <int ROWS, bool SHARED>
__device__ inline void fetch(unsigned to, Map map, int column, int row, unsigned barrier, int rank) {
  if (SHARED && CLUSTER > 1) {
    constexpr int PART = ROWS / CLUSTER;
    load_tile_for(ALL, to + rank * PART * WIDTH, map, column, row + rank * PART, barrier);
  } else {
    load_tile(to, map, column, row, barrier);
  }
}

// By one thread of a block: ask for the operands of all its tiles.
__device__ inline void fetch_all(Map a, Map b, Tiles tiles, int steps, Ring ring) {
  for (; tiles.exists(); tiles.advance()) {
    int row, column;
    tiles.place(row, column);
#pragma unroll 1
    for (int step = 0; step < steps; ++step, ring.advance()) {
      await(ring.empty(ring.stage), ring.parity ^ 1);
      const unsigned barrier = ring.full(ring.stage);
      arrive_expecting(barrier, STAGE_BYTES);
      fetch<BLOCK_M, SHARES_A>(ring.a(), a, step * STEP_K, row, barrier, tiles.rank);
      fetch<BLOCK_N, !SHARES_A>(ring.b(), b, step * STEP_K, column, barrier, tiles.rank);
    }
  }
}

__device__ inline unsigned rounded(float one, float other, __half) {
  const __half2 pair = __floats2half2_rn(one, other);
  return reinterpret_cast<const unsigned &>(pair);
}
__device__ inline unsigned rounded(float one, float other, __nv_bfloat16) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(one, other);
  return reinterpret_cast<const unsigned &>(pair);
}
__device__ inline float2 floats(const float *pair) { return *reinterpret_cast<const float2 *>(pair); }
__device__ inline float2 floats(const __half *pair) { return __half22float2(*reinterpret_cast<const __half2 *>(pair)); }
__device__ inline float2 floats(const __nv_bfloat16 *pair) {
  return __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162 *>(pair));
}

// Scales of one step of 128 k's: of a lane's rows, and of its columns.
struct StepScales {
  float of_a[WAVES][2], of_b[BLOCK_N / SCALE_COLUMNS];
};

struct NoScales {
  __device__ StepScales take(int) { return {}; }
};

// Scales of blocks, read for four steps at once and ahead: each of the four lanes of a row holds one step's. Reading each
// step's own took 6% of the time at 4096 x 7168 x 16384 on an H200.
struct BlockScales {
  static constexpr int HELD = 4;
  const float *scale_a, *scale_b;
  int steps, at_a[WAVES][2], at_b[BLOCK_N / SCALE_COLUMNS];
  StepScales held, ahead;

  // Those of a tile: `row` and `column` are a lane's first ones.
  __device__ void begin(int row, int column, int m, int n) {
#pragma unroll
    for (int wave = 0; wave < WAVES; ++wave)
#pragma unroll
      for (int half = 0; half < 2; ++half) at_a[wave][half] = min(row + wave * 64 + half * 8, m - 1) * steps;
#pragma unroll
    for (int group = 0; group < BLOCK_N / SCALE_COLUMNS; ++group)
      at_b[group] = min(column + group * SCALE_COLUMNS, n - 1) / SCALE_BLOCK * steps;
    fetch(0, true);
    held = ahead;
    fetch(HELD, true);
  }
  // Branches would keep ptxas from seeing which products are under way.
  __device__ void fetch(int first, bool wanted) {
    const int step = min(first + (int)threadIdx.x % HELD, steps - 1);
#pragma unroll
    for (int wave = 0; wave < WAVES; ++wave)
#pragma unroll
      for (int half = 0; half < 2; ++half) load_if(ahead.of_a[wave][half], scale_a + (at_a[wave][half] + step), wanted);
#pragma unroll
    for (int group = 0; group < BLOCK_N / SCALE_COLUMNS; ++group) load_if(ahead.of_b[group], scale_b + (at_b[group] + step), wanted);
  }
  __device__ static void load_if(float &into, const float *from, bool wanted) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %2, 0;\n@p ld.global.nc.f32 %0, [%1];\n}"
                 : "+f"(into)
                 : "l"(from), "r"((int)wanted));
  }

  // Those of a step, asked for in order.
  __device__ StepScales take(int step) {
    StepScales taken;
    const bool last = step % HELD == HELD - 1;
#pragma unroll
    for (int wave = 0; wave < WAVES; ++wave)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        taken.of_a[wave][half] = given(held.of_a[wave][half], ahead.of_a[wave][half], step, last);
#pragma unroll
    for (int group = 0; group < BLOCK_N / SCALE_COLUMNS; ++group)
      taken.of_b[group] = given(held.of_b[group], ahead.of_b[group], step, last);
    fetch(step + 1 + HELD, last);
    return taken;
  }
  __device__ static float given(float &held, float ahead, int step, bool last) {
    const float value = __shfl_sync(~0u, held, step % HELD, HELD);
    held = last ? ahead : held;
    return value;
  }
};

// By a warpgroup. Of 64 rows its warps have 16 each; a lane has rows lane / 4 and 8 more, and of each 8 columns two.
struct Multiplier {
  float sum[WAVES][SUMS];
  Map out;
  const float *scale_a, *scale_b;
  const OUTPUT *bias;
  int m, n, steps, warp, lane;

  __device__ int first_row(int wave) const {
    return (warp / WARPS * WAVES + wave) * 64 + warp % WARPS * 16;
  }

  __device__ void run(Tiles tiles, Ring ring) {
    int stored = 0;
    for (; tiles.exists(); tiles.advance()) {
      int row, column;
      tiles.place(row, column);
      if constexpr (PROMOTED)
        multiply_promoted(ring, row, column);
      else
        multiply(ring);
#pragma unroll
      for (int wave = 0; wave < WAVES; ++wave) store(ring, wave, row + first_row(wave), column, stored);
    }
    if (lane == 0) await_stores();
  }

  __device__ void products(float (&into)[SUMS], const Ring &ring, int wave, bool more) const {
    const unsigned long long a = swizzled_operand(ring.a() + (warp / WARPS * WAVES + wave) * 64 * WIDTH);
    const unsigned long long b = swizzled_operand(ring.b());
#pragma unroll
    for (int part = 0; part < WIDTH / 32; ++part) multiply_tile(into, a + part * 2, b + part * 2, more || part > 0);
  }

  __device__ void multiply(Ring &ring) {
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
      await(ring.full(ring.stage), ring.parity);
      begin_products();
#pragma unroll
      for (int wave = 0; wave < WAVES; ++wave) products(sum[wave], ring, wave, step > 0);
      close_products();
      await_products<1>();
      if (step > 0) ring.release(ring.before());
      ring.advance();
    }
    await_products<0>();
#pragma unroll
    for (int wave = 0; wave < WAVES; ++wave) settle(sum[wave]);
    ring.release(ring.before());
  }

  __device__ void multiply_promoted(Ring &ring, int row, int column) {
#pragma unroll
    for (int wave = 0; wave < WAVES; ++wave)
#pragma unroll
      for (int k = 0; k < SUMS; ++k) sum[wave][k] = 0;
    if constexpr (SCALES == BLOCK) {
      BlockScales scales{scale_a, scale_b, steps};
      scales.begin(row + first_row(0) + lane / 4, column + lane % 4 * 2, m, n);
      multiply_parts(ring, scales);
    } else {
      multiply_parts(ring, NoScales());
    }
  }
  template <typename Scales> __device__ void multiply_parts(Ring &ring, Scales scales) {
    if constexpr (TWO_PARTS)
      multiply_two_parts(ring, scales);
    else
      multiply_one_part(ring, scales);
  }

  // While one warpgroup adds, the others multiply.
  template <typename Scales> __device__ void multiply_one_part(Ring &ring, Scales &scales) {
    float part[SUMS];
#pragma unroll 1
    for (int step = 0; step < steps; ++step, ring.advance()) {
      const StepScales now = scales.take(step);
      await(ring.full(ring.stage), ring.parity);
#pragma unroll
      for (int wave = 0; wave < WAVES; ++wave) {
        begin_products();
        products(part, ring, wave, false);
        close_products();
        await_products<0>();
        settle(part);
        if (wave == WAVES - 1) ring.release(ring.stage);
        add(part, wave, now);
      }
    }
  }

  // While a step is added, the next one is multiplied. ptxas follows the two parts only through straight code.
  template <typename Scales> __device__ void multiply_two_parts(Ring &ring, Scales &scales) {
    float even[SUMS], odd[SUMS];
    begin_step(ring, even);
    int step = 0;
#pragma unroll 1
    for (; step + 2 < steps; step += 2) {
      begin_step(ring, odd);
      await_products<1>();
      end_step(ring, ring.before(2), even, scales.take(step));
      begin_step(ring, even);
      await_products<1>();
      end_step(ring, ring.before(2), odd, scales.take(step + 1));
    }
    if (step + 1 < steps) {
      begin_step(ring, odd);
      await_products<1>();
      end_step(ring, ring.before(2), even, scales.take(step));
      await_products<0>();
      end_step(ring, ring.before(), odd, scales.take(step + 1));
    } else {
      await_products<0>();
      end_step(ring, ring.before(), even, scales.take(step));
    }
  }
  __device__ void begin_step(Ring &ring, float (&part)[SUMS]) {
    await(ring.full(ring.stage), ring.parity);
    begin_products();
    products(part, ring, 0, false);
    close_products();
    ring.advance();
  }
  __device__ void end_step(const Ring &ring, int stage, float (&part)[SUMS], const StepScales &scales) {
    settle(part);
    ring.release(stage);
    add(part, 0, scales);
  }

  __device__ void add(const float (&part)[SUMS], int wave, const StepScales &scales) {
#pragma unroll
    for (int k = 0; k < SUMS; ++k) {
      const float scale = SCALES == BLOCK ? scales.of_a[wave][k / 2 % 2] * scales.of_b[k * 2 / SCALE_COLUMNS] : 1.0f;
      sum[wave][k] = fmaf(part[k], scale, sum[wave][k]);
    }
  }

  // What 16 rows of each warp add up to: scaled, with the bias, rounded once.
  __device__ void store(const Ring &ring, int wave, int row, int column, int &stored) const {
    float scale[2] = {1.0f, 1.0f};
    if (SCALES == TENSOR) scale[0] = scale[1] = __ldg(scale_a) * __ldg(scale_b);
    if (SCALES == ROW)
#pragma unroll
      for (int half = 0; half < 2; ++half) scale[half] = __ldg(scale_a + min(row + lane / 4 + half * 8, m - 1));
#pragma unroll
    for (int chunk = 0; chunk < BLOCK_N / COLUMNS; ++chunk, ++stored) {
      const unsigned place = ring.output(warp) + stored % 2 * OUT_BYTES;
      if (lane == 0) await_reads<1>();
      __syncwarp();
      write(place, wave, chunk, column + chunk * COLUMNS, scale);
      show_writes();
      __syncwarp();
      if (lane == 0) {
        if (row < m && column + chunk * COLUMNS < n) store_tile(out, column + chunk * COLUMNS, row, place);
        // what await_reads counts, also where nothing is stored
        close_stores();
      }
    }
  }

  // COLUMNS columns from `column` on into shared memory.
  __device__ void write(unsigned place, int wave, int chunk, int column, const float (&scale)[2]) const {
#pragma unroll
    for (int eight = 0; eight < COLUMNS / 8; ++eight) {
      const float *own = &sum[wave][(chunk * COLUMNS / 8 + eight) * 4];
      const int at = min(column + eight * 8 + lane % 4 * 2, n - 2);
      const float2 scales = SCALES == ROW ? floats(scale_b + at) : float2{1.0f, 1.0f};
      const float2 more = BIAS ? floats(bias + at) : float2{0.0f, 0.0f};
      float value[4];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        value[half * 2] = finished(own[half * 2], scale[half], scales.x, more.x);
        value[half * 2 + 1] = finished(own[half * 2 + 1], scale[half], scales.y, more.y);
      }
#pragma unroll
      for (int half = 0; half < 2; ++half)
        put(OUTPUT(), place, lane / 4 + half * 8, eight, value[half * 2], value[half * 2 + 1]);
    }
  }
  __device__ static float finished(float sum, float scale_a, float scale_b, float bias) {
    if (SCALES == TENSOR || SCALES == ROW) sum *= scale_a;
    if (SCALES == ROW) sum *= scale_b;
    return BIAS ? sum + bias : sum;
  }

  // Two neighbouring columns of one row, of columns 8 * eight to 8 * eight + 7.
  template <typename Half> __device__ void put(Half, unsigned place, int row, int eight, float one, float other) const {
    const unsigned to = place + swizzled(row, eight) + lane % 4 * 4;
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(to), "r"(rounded(one, other, Half())) : "memory");
  }
  __device__ void put(float, unsigned place, int row, int eight, float one, float other) const {
    const unsigned to = place + swizzled(row, eight * 2 + lane % 4 / 2) + lane % 2 * 8;
    asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(to), "f"(one), "f"(other) : "memory");
  }
};

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    wgmma_gemm(TENSOR_MAP(a), TENSOR_MAP(b), TENSOR_MAP(y), const float *scale_a, const float *scale_b, const OUTPUT *bias,
               const long long m, const long long n, const long long k) {
  const Ring ring((shared_address(dynamic_shared()) + PATTERN - 1) / PATTERN * PATTERN);
  const Map maps[3] = {(Map)&a, (Map)&b, (Map)&y};
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < STAGES; ++stage) {
      init_barrier(ring.full(stage), 1);
      init_barrier(ring.empty(stage), CLUSTER * WARPGROUPS * WARPS);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    for (int map = 0; map < 3; ++map) prefetch_map(maps[map]);
  }
  if constexpr (CLUSTER > 1)
    meet_cluster();
  else
    __syncthreads();
  const Tiles tiles((int)m, (int)n);
  const int steps = (int)((k + STEP_K - 1) / STEP_K);
  if (threadIdx.x >= MULTIPLIERS) {
    if constexpr (GIVES) give_registers<40>();
    if (threadIdx.x == MULTIPLIERS) fetch_all(maps[0], maps[1], tiles, steps, ring);
    __syncwarp();
    // no block ends while another may still write to it
    if constexpr (CLUSTER > 1) meet_cluster();
  } else {
    if constexpr (GIVES) take_registers<232>();
    // equal in all lanes, and known to be so
    const int warp = __shfl_sync(~0u, (int)threadIdx.x / LANES, 0), lane = threadIdx.x % LANES;
    Multiplier{{}, maps[2], scale_a, scale_b, bias, (int)m, (int)n, steps, warp, lane}.run(tiles, ring);
    if constexpr (CLUSTER > 1) meet_cluster();
  }
}
