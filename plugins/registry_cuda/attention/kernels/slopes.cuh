// The warpgroups that multiply: weights and slopes of 64 held rows and a block of streamed ones, and what they are of.

#include <math_constants.h>

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
struct alignas(8) Pair { float part[2]; };

// By a warpgroup: 64 rows of each held tile. Its warps have 16 each; a lane has rows lane / 4 and 8 more, and of each 8
// streamed rows two. `factor` makes units of an exponential with base 2 of scores; with a soft cap, of the tangent of scores
// times `inner`.
//
// While the changes of weights are formed, weights are computed; while these are multiplied, slopes are; and the next
// block's scores are formed behind the slopes' products.
struct Multiplier {
  float score[SCORES], change[SCORES], by_slopes[SUMS], by_weights[SUMS];
  unsigned weight[BLOCK / 4], slope[BLOCK / 4];
  float top[2], delta[2];  // of the two rows, if queries are held
  float factor, inner;
  Terms terms;
  Ring ring;
  int warp, lane;
  unsigned parity;

  __device__ void run(Tiles tiles, ELEMENT *grad_first, ELEMENT *grad_second, float scale) {
    for (; tiles.exists(); ++tiles.turn) {
      if (!tiles.is_mine()) continue;
      const Tile tile = tiles.tile();
      if (tile.is_empty()) continue;
      if (tile.count) pass(tile);
      if (NEED_FIRST) store(tile, grad_first, by_slopes, scale);
      if (NEED_SECOND) store(tile, grad_second, by_weights, 1);
    }
  }

  __device__ void pass(const Tile &tile) {
    if (!BY_KEYS) load_terms(tile);
    await(ring.held_full(), parity);
    parity ^= 1;
    bool more = false;
#pragma unroll 1
    for (int member = 0; member < MEMBERS; ++member) {
      int turn = 0;
#pragma unroll 1
      for (; turn < tile.whole; ++turn) more = step<false>(tile, tile.whole_begin + turn, more);
      if (!Tile::ALL_WHOLE || BEFORE >= 0)
#pragma unroll 1
        for (; turn < tile.count; ++turn) more = step<true>(tile, tile.block(turn), more);
    }
    release(ring.held_empty());
    await_products<0>();
    settle(by_slopes);
    settle(by_weights);
    settle_words();
    release(ring.empty(ring.before()));
  }
  // A block's scores, weights and slopes, and their products, of which the last ones are waited for in the next step.
  template <bool MASKED> __device__ bool step(const Tile &tile, int block, bool more) {
    await(ring.full(), ring.parity);
    clean(tile, block);
    begin_products();
    multiply_held(score, 0);
    close_products();
    await_products<1>();
    settle_words();
    if (more) release(ring.empty(ring.before()));
    if (NEED_FIRST) {
      begin_products();
      multiply_held(change, 1);
      close_products();
    }
    await_products<NEED_FIRST>();
    settle(score);
    weigh<MASKED>(tile, block);
    // it is there: without a branch ptxas puts exponentials behind the changes, which they are to overlap
    if (!NEED_SECOND) await(ring.full(), ring.parity);
    if (NEED_SECOND) {
      begin_products();
      multiply_block(by_weights, weight, 1, more);
      close_products();
    }
    if (NEED_FIRST) {
      await_products<NEED_SECOND>();
      settle(change);
      find_slopes();
      begin_products();
      multiply_block(by_slopes, slope, 0, more);
      close_products();
    }
    ring.advance();
    return true;
  }

  // By each warp: it reads the tile no more.
  __device__ void release(unsigned barrier) const {
    __syncwarp();
    if (lane == 0) arrive(barrier);
  }
  __device__ void settle_words() {
    settle(weight);
    settle(slope);
  }
  // The products of the warpgroup's held rows and a block's, of the first or the second tensors.
  __device__ void multiply_held(float (&product)[SCORES], int second) const {
    const unsigned rows = ring.held(second) + warp / WARPS * 64 * WIDTH;
#pragma unroll
    for (int part = 0; part < PARTS; ++part) {
      const unsigned long long a = swizzled_operand(rows + part * ROWS * WIDTH);
      const unsigned long long b = swizzled_operand(ring.block(second) + part * BLOCK * WIDTH);
#pragma unroll
      for (int quarter = 0; quarter < 4; ++quarter) multiply_keys(product, a + quarter * 2, b + quarter * 2, part + quarter > 0);
    }
  }
  // Words times a block of the first or the second tensor.
  __device__ void multiply_block(float (&sum)[SUMS], const unsigned (&word)[BLOCK / 4], int second, bool more) const {
    const unsigned long long b = operand_of_rows(ring.block(second), BLOCK * WIDTH);
#pragma unroll
    for (int k = 0; k < BLOCK / 16; ++k) {
      const unsigned(&a)[4] = reinterpret_cast<const unsigned(&)[4]>(word[k * 4]);
      multiply_values(sum, a, b + k * (16 * WIDTH >> 4), more || k > 0);
    }
  }

  // Rows of a sequence's last block that are behind its end: another sequence's, of which a weight of 0 makes NaN where they
  // are not finite. Each warpgroup puts the same zeros there, so that none waits for another.
  __device__ void clean(const Tile &tile, int block) const {
    const int first = tile.sequence.streamed_len - block * BLOCK;
    if (!Sequences::PACKED || first >= BLOCK) return;
    const unsigned from = ring.block(0) - shared_address(dynamic_shared());
    const int count = (BLOCK - first) * (WIDTH / 16);
#pragma unroll
    for (int part = 0; part < 2 * PARTS; ++part) {
      Words *to = reinterpret_cast<Words *>(dynamic_shared()) + (from + (part * BLOCK + first) * WIDTH) / 16;
#pragma unroll 1
      for (int place = warp % WARPS * LANES + lane; place < count; place += WARPS * LANES) to[place] = Words{};
    }
    show_writes();
    asm volatile("bar.sync %0, 128;" ::"r"(1 + warp / WARPS) : "memory");
  }

  __device__ int own_row(const Tile &tile, int half) const { return tile.row + warp * 16 + lane / 4 + half * 8; }
  // Of rows behind the sequence's end they are as of one that sees no key.
  __device__ void load_terms(const Tile &tile) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = own_row(tile, half);
      const bool inside = row < tile.sequence.held_len;
      const float *from = terms.of_block(tile, 0, row / terms.queries) + row % terms.queries;
      top[half] = inside ? from[0] : CUDART_INF_F;
      delta[half] = inside ? from[terms.queries] : 0;
    }
  }
  // The terms of columns k * 2 and on of a block, if queries stream.
  __device__ Pair column_terms(int k, int deltas) const {
    const unsigned from = ring.terms() - shared_address(dynamic_shared());
    const float *row = reinterpret_cast<const float *>(dynamic_shared()) + from / 4 + deltas * BLOCK;
    return *reinterpret_cast<const Pair *>(row + k * 2 + lane % 4 * 2);
  }

  // Scores become weights, as words too; with a soft cap, times its slope behind that.
  template <bool MASKED> __device__ void weigh(const Tile &tile, int block) {
    int under[2], over[2];
    if (MASKED) find_bounds(tile, block, under, over);
#pragma unroll
    for (int k = 0; k < SCORES; k += 4) {
      const Pair tops = BY_KEYS ? column_terms(k, 0) : Pair{};
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float found[2];
#pragma unroll
        for (int pair = 0; pair < 2; ++pair) {
          float &each = score[k + half * 2 + pair];
          const float least = BY_KEYS ? tops.part[pair] : top[half];
          if (SOFTCAP) each = tanh_of(each * inner);
          float exponent = fmaf(each, factor, -least);
          const int place = k * 2 + pair;
          if (MASKED && (place >= over[half] || (BEFORE >= 0 && place < under[half]))) exponent = -CUDART_INF_F;
          found[pair] = exp2_of(exponent);
          each = SOFTCAP ? found[pair] * fmaf(-each, each, 1) : found[pair];
        }
        weight[k / 2 + half] = rounded(found[0], found[1], ELEMENT());
      }
    }
  }
  // The first and behind the last streamed row that each held one sees, behind this lane's first column of a block.
  __device__ void find_bounds(const Tile &tile, int block, int (&under)[2], int (&over)[2]) const {
    const int column = block * BLOCK + lane % 4 * 2;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int own = own_row(tile, half) + tile.sequence.shift();
      under[half] = tile.under(own) - column;
      over[half] = min(tile.over(own), tile.sequence.streamed_len) - column;
    }
  }
  // Weights and their changes become slopes, in the order in which a product reads its left operand.
  __device__ void find_slopes() {
#pragma unroll
    for (int k = 0; k < SCORES; k += 4) {
      const Pair deltas = BY_KEYS ? column_terms(k, 1) : Pair{};
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float found[2];
#pragma unroll
        for (int pair = 0; pair < 2; ++pair) {
          const int place = k + half * 2 + pair;
          found[pair] = score[place] * (change[place] - (BY_KEYS ? deltas.part[pair] : delta[half]));
        }
        slope[k / 2 + half] = rounded(found[0], found[1], ELEMENT());
      }
    }
  }

  __device__ void store(const Tile &tile, ELEMENT *gradient, const float (&sum)[SUMS], float scale) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = own_row(tile, half);
      const bool inside = row < tile.sequence.held_len;
      ELEMENT *to = gradient + ((tile.sequence.output_row() + row) * HELD_HEADS + tile.head) * DIM;
#pragma unroll
      for (int group = 0; group < SPAN / 32; ++group) {
        Words words;
#pragma unroll
        for (int eight = 0; eight < 4; ++eight) {
          const float *own = &sum[(group * 4 + eight) * 4 + half * 2];
          // the sums of a tile without a block are another's
          words.word[eight] = tile.count ? rounded(own[0] * scale, own[1] * scale, ELEMENT()) : 0;
        }
        transpose(words);
        const int column = (group * 4 + lane % 4) * 8;
        if (inside && column < DIM) *reinterpret_cast<Words *>(to + column) = words;
      }
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

// By every thread of a block.
__device__ inline void differentiate(const Map (&maps)[4], const Tiles &tiles, const Terms &terms, ELEMENT *grad_first,
                                     ELEMENT *grad_second, float scale, float softcap) {
  const Ring ring(first_pattern());
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < STAGES; ++stage) {
      init_barrier(ring.base + 8 * stage, 1);
      init_barrier(ring.empty(stage), WARPGROUPS * WARPS);
    }
    init_barrier(ring.held_full(), 1);
    init_barrier(ring.held_empty(), WARPGROUPS * WARPS);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    for (int map = 0; map < 4; ++map) prefetch_map(maps[map]);
  }
  __syncthreads();
  if (threadIdx.x >= MULTIPLIERS) {
    if constexpr (WARPGROUPS == 2) give_registers<24>();
    if constexpr (WARPGROUPS == 3) give_registers<32>();
    if (threadIdx.x == MULTIPLIERS) Fetcher{maps[0], maps[1], maps[2], maps[3], terms, ring}.run(tiles);
  } else {
    if constexpr (WARPGROUPS == 2) take_registers<240>();
    if constexpr (WARPGROUPS == 3) take_registers<160>();
    // equal in all lanes, and known to be so
    const int warp = __shfl_sync(~0u, (int)threadIdx.x / LANES, 0), lane = threadIdx.x % LANES;
    Multiplier own{{}, {}, {}, {}, {}, {}, {}, {}, (SOFTCAP ? softcap : scale) * LOG2E, scale / softcap, terms, ring, warp,
                   lane, 0};
    own.run(tiles, grad_first, grad_second, scale);
  }
}
