// A token of each row of logits, of those that top_k and top_p keep. A row is read from memory once, into the shared
// memory of its CLUSTER blocks. A histogram finds the bin of a filter's least kept logit; if all that may be kept is a
// short list, the first block draws from it alone, else the bin is searched, and all blocks draw together.

struct State {
  Histogram histogram;
  Lists lists;
  Ranking ranking;
  float maxima[WARPS];
  float greatest[CLUSTER];
  unsigned least;
  Mass parts[WARPS], masses[CLUSTER];
};

__device__ inline float greatest_of_row(State &state, float own) {
  own = over_warp(own, Greatest());
  if (threadIdx.x % 32 == 0) state.maxima[threadIdx.x / 32] = own;
  __syncthreads();
  own = over_warp(state.maxima[threadIdx.x % 32 % WARPS], Greatest());
  await_siblings();
  tell_siblings(state.greatest, own);
  meet();
  for (int rank = 0; rank < CLUSTER; ++rank) own = Greatest()(own, state.greatest[rank]);
  return own;
}

// Find the least logit that a filter keeps, and set row.least. True: the sample is drawn already.
template <bool BY_MASS>
__device__ bool select(State &state, Row &row, Target<BY_MASS> target, float share, float uniform, int *sample) {
  const bool first = blockIdx.x % CLUSTER == 0;
  Mass above = 0;
  Bins bins = Bins::of_all(row.greatest);
  for (;;) {
    state.histogram.count<BY_MASS>(row, bins);
    if (threadIdx.x == 0) state.lists.clear();
    if (first) state.histogram.choose(target, above);
    meet();
    const Choice choice = state.histogram.choice;
    if (choice.bin < 0) return false;
    above = choice.above, target.whole = choice.whole;
    state.lists.fill(row, bins, choice.bin);
    const Told all = state.lists.together();
    if (bins.whole() && all.kept + all.inside <= LISTED) {
      if (first) state.ranking.gather(state.lists, row, true);
      // siblings leave, but not before their lists are read
      meet();
      if (first) {
        const int column = state.ranking.draw(BY_MASS ? ~0ull : target.number, share, BY_MASS ? target.whole : 0, uniform);
        if (threadIdx.x == 0) *sample = column;
      }
      return true;
    }
    if (all.least == all.greatest) {
      row.least = all.least;
      return false;
    }
    if (all.inside <= LISTED) {
      if (first) {
        state.ranking.gather(state.lists, row, false);
        const unsigned least = state.ranking.threshold(target, above);
        if (threadIdx.x < CLUSTER) *at_sibling(&state.least, threadIdx.x) = least;
      }
      meet();
      row.least = state.least;
      return false;
    }
    bins = Bins::between(row.greatest, all.least, all.greatest);
  }
}

// The first column at which the mass of what is kept is more than `uniform` of all: its block, its warp, and its step.
__device__ inline void draw(State &state, const Row &row, float uniform, int *sample) {
  const int lane = threadIdx.x % 32;
  Mass mine = 0;
  row.each([&](float logit, int) { mine += row.keeps(logit) ? row.weight(logit) : 0; });
  mine = over_warp(mine, Sum());
  if (lane == 0) state.parts[threadIdx.x / 32] = mine;
  __syncthreads();
  const Places<Mass> warps = places_of(state.parts);
  tell_siblings(state.masses, warps.all);
  meet();
  Mass before = warps.before, all = 0;
  for (unsigned rank = 0; rank < CLUSTER; ++rank) {
    if (rank < blockIdx.x % CLUSTER) before += state.masses[rank];
    all += state.masses[rank];
  }
  const double target = (double)uniform * (double)all;
  const auto passed = [&](Mass mass) { return (double)mass > target; };
  if (passed(before) || !passed(before + mine)) return;
  for (int step = 0; step < STEPS; ++step) {
    const int column = row.column_of(step);
    Mass own[VEC], sum = 0;
    Vector vector;
    vector.fill(-CUDART_INF_F);
    if (column < row.span.end) vector = row.vector_at(column);
#pragma unroll
    for (int k = 0; k < VEC; ++k) {
      const float logit = vector.get(k) + 0.0f;
      own[k] = row.keeps(logit) ? row.weight(logit) : 0;
      sum += own[k];
    }
    const Mass upto = scan_warp(sum);
    Mass behind = before + upto - sum;
    if (!passed(behind) && passed(behind + sum)) {
#pragma unroll
      for (int k = 0; k < VEC; ++k) {
        if (!passed(behind) && passed(behind + own[k])) *sample = column + k;
        behind += own[k];
      }
    }
    before += __shfl_sync(ALL_LANES, upto, 31);
    if (passed(before)) return;
  }
}

// True: the sample is drawn. Else row.least is known.
__device__ inline bool drawn_by_filters(State &state, Row &row, int top_k, float top_p, float uniform, int *sample) {
  if (TOP_K && top_k < COLS) {
    const Target<false> target = {Mass(top_k > 1 ? top_k : 1), 1.0f, 0};
    if (select<false>(state, row, target, top_p, uniform, sample)) return true;
  }
  if constexpr (TOP_P) {
    const Target<true> target = {0, top_p, 0};
    if (top_p < 1.0f) return select<true>(state, row, target, top_p, uniform, sample);
  }
  return false;
}

// 64 registers a thread
extern "C" __global__ void __launch_bounds__(THREADS, 1024 / THREADS)
    top_k_top_p(int *__restrict__ samples, const T *__restrict__ logits, const float *__restrict__ uniform,
                const int *__restrict__ top_k, const float *__restrict__ top_p, long long k_step, long long p_step) {
  say_started();
  State &state = block_state<State>();
  const long long number = blockIdx.x / CLUSTER;
  const int k = TOP_K ? top_k[number * k_step] : 0;
  const float p = TOP_P ? top_p[number * p_step] : 1.0f;
  // what is no share of the mass still draws a column
  const float u = fmaxf(fminf(uniform[number], 0.99999994f), 0.0f);
  Row row(static_cast<T *>(block_room()));
  row.greatest = greatest_of_row(state, row.load(logits + number * COLS)) + 0.0f;
  if (!(fabsf(row.greatest) < CUDART_INF_F)) {
    if (threadIdx.x == 0 && blockIdx.x % CLUSTER == 0) samples[number] = 0;
    return;
  }
  if (!drawn_by_filters(state, row, k, p, u, samples + number)) draw(state, row, u, samples + number);
}
