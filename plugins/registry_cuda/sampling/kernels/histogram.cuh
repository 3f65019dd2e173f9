// Histograms of a row over its blocks: how many logits, or how much of their weights, is in each of BINS bins, and the
// bin at which a filter's target is reached. Bins are in descending order of logits.

// Bins of equal width over WINDOW below the greatest logit, which all that has a weight is in; or of keys in a range.
struct Bins {
  float greatest;
  unsigned low, high;
  int shift;  // -1: by the logit

  __device__ static Bins of_all(float greatest) { return {greatest, 0, 0, -1}; }
  __device__ static Bins between(float greatest, unsigned low, unsigned high) {
    int shift = 0;
    while ((high - low) >> shift >= BINS) ++shift;
    return {greatest, low, high, shift};
  }
  __device__ bool whole() const { return shift < 0; }
  // -1: in none
  __device__ int of(float logit) const {
    if (whole()) {
      const float below = greatest - logit;
      return below < WINDOW ? (int)(below * (BINS / WINDOW)) : -1;
    }
    const unsigned key = key_of(logit);
    return key >= low && key <= high ? (int)((high - key) >> shift) : -1;
  }
};

// What top_k or top_p wants: a number of logits, or a share of the mass `whole`, which the first histogram tells.
template <bool BY_MASS> struct Target {
  Mass number;
  float share;
  Mass whole;

  __device__ bool reached(Mass sum) const {
    if constexpr (BY_MASS) return sum && (double)sum >= (double)share * (double)whole;
    return sum >= number;
  }
};

struct Choice {
  int bin;     // -1: the target is not reached
  Mass above;  // the sum of all greater bins
  Mass whole;
};

struct Histogram {
  unsigned low[BINS], high[TOP_P ? BINS : 1];  // halves of 64-bit sums
  Mass parts[WARPS];
  Choice choice;

  template <bool BY_MASS> __device__ void count(const Row &row, const Bins &bins) {
    for (int bin = threadIdx.x; bin < BINS; bin += THREADS) {
      low[bin] = 0;
      if constexpr (BY_MASS) high[bin] = 0;
    }
    if (threadIdx.x == 0) choice.bin = -1;
    __syncthreads();
    row.each([&](float logit, int) {
      const int bin = bins.of(logit);
      if (bin < 0) return;
      if constexpr (BY_MASS) {
        if (row.keeps(logit)) add(bin, row.weight(logit));
      } else {
        atomicAdd(&low[bin], 1u);
      }
    });
    meet();
  }

  // shared memory has no 64-bit addition of its own; one with a carry is as exact, and weights seldom have a high half
  __device__ void add(int bin, Mass weight) {
    const unsigned half = (unsigned)weight, before = atomicAdd(&low[bin], half);
    const unsigned rest = (unsigned)(weight >> 32) + (before + half < before);
    if (rest) atomicAdd(&high[bin], rest);
  }

  // The first block finds the bin and tells its siblings. `above`: what is greater than all bins.
  template <bool BY_MASS> __device__ void choose(Target<BY_MASS> target, Mass above) {
    constexpr int EACH = (BINS + THREADS - 1) / THREADS;
    Mass own[EACH], sum = 0;
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
      const int bin = threadIdx.x * EACH + i;
      own[i] = bin < BINS ? over_blocks<BY_MASS>(bin) : 0;
      sum += own[i];
    }
    const Mass upto = scan_warp(sum);
    if (threadIdx.x % 32 == 31) parts[threadIdx.x / 32] = upto;
    __syncthreads();
    const Places<Mass> places = places_of(parts);
    if (!target.whole) target.whole = places.all;
    Mass before = above + places.before + upto - sum;
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
      if (!target.reached(before) && target.reached(before + own[i])) {
        const Choice found = {(int)threadIdx.x * EACH + i, before, target.whole};
        for (unsigned rank = 0; rank < CLUSTER; ++rank) *at_sibling(&choice, rank) = found;
      }
      before += own[i];
    }
  }

  template <bool BY_MASS> __device__ Mass over_blocks(int bin) {
    Mass sum = 0;
#pragma unroll
    for (unsigned rank = 0; rank < CLUSTER; ++rank) {
      sum += *at_sibling(&low[bin], rank);
      if constexpr (BY_MASS) sum += (Mass)*at_sibling(&high[bin], rank) << 32;
    }
    return sum;
  }
};
