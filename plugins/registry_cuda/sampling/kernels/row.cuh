// A row of COLS logits in the shared memory of its blocks, and how logits are ordered and weighted. Each block has SLICE
// neighbouring columns, and each of its warps SPAN of these.

constexpr int SLICE = (COLS / VEC + CLUSTER - 1) / CLUSTER * VEC;
constexpr int SPAN = (SLICE / VEC + WARPS - 1) / WARPS * VEC;
constexpr int STEP = 32 * VEC;
constexpr int STEPS = (SPAN + STEP - 1) / STEP;
// loads of a thread that are in flight together
constexpr int AHEAD = STEPS < 8 ? STEPS : 8;
// steps that are computed together; with more of 8 columns each, registers spill
constexpr int TOGETHER = VEC < 8 ? 4 : 2;

using Mass = unsigned long long;
// A weight is exp(logit - greatest) in units of 2**-40: sums are the same in every order, of up to 2**23 columns. The
// weight at WINDOW below the greatest logit is 0.
constexpr float UNITS = 1099511627776.0f;
constexpr float WINDOW = 32.0f;
constexpr float LOG2E = 1.4426950408889634f;

// Integers that are ordered as floats are.
__device__ inline unsigned key_of(float logit) {
  const unsigned bits = __float_as_uint(logit);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
__device__ inline float logit_of(unsigned key) { return __uint_as_float(key & 0x80000000u ? key ^ 0x80000000u : ~key); }

// A warp's part of the columns.
struct Span {
  int block, first, end;  // the block's first column; this warp's columns

  __device__ Span() {
    block = blockIdx.x % CLUSTER * SLICE;
    const int last = block + SLICE < COLS ? block + SLICE : COLS;
    first = block + threadIdx.x / 32 * SPAN;
    end = first + SPAN < last ? first + SPAN : last;
  }
};

struct Row {
  T *held;              // the block's columns
  Span span;
  float greatest = 0;   // of the whole row
  unsigned least = 0;   // key of the least logit that is kept

  __device__ explicit Row(T *room) : held(room) {}

  // Copy this warp's columns from memory; the greatest logit of this thread's.
  __device__ float load(const T *__restrict__ logits) {
    float found = -CUDART_INF_F;
    for (int step = 0; step < STEPS; step += AHEAD) {
      Vector vectors[AHEAD];
#pragma unroll
      for (int i = 0; i < AHEAD; ++i) {
        const int column = column_of(step + i);
        if (column < span.end) vectors[i] = *reinterpret_cast<const Vector *>(logits + column);
      }
#pragma unroll
      for (int i = 0; i < AHEAD; ++i) {
        const int column = column_of(step + i);
        if (column >= span.end) continue;
        *reinterpret_cast<Vector *>(held + (column - span.block)) = vectors[i];
#pragma unroll
        for (int k = 0; k < VEC; ++k) found = Greatest()(vectors[i].get(k), found);
      }
    }
    return found;
  }

  __device__ int column_of(int step) const { return span.first + step * STEP + threadIdx.x % 32 * VEC; }
  __device__ Vector vector_at(int column) const { return *reinterpret_cast<const Vector *>(held + (column - span.block)); }

  // function(logit, column) for each of this thread's; both zeros are +0
  template <typename Function> __device__ void each(Function function) const {
#pragma unroll TOGETHER
    for (int step = 0; step < STEPS; ++step) {
      const int column = column_of(step);
      if (column >= span.end) continue;
      const Vector vector = vector_at(column);
#pragma unroll
      for (int k = 0; k < VEC; ++k) function(vector.get(k) + 0.0f, column + k);
    }
  }

  __device__ bool keeps(float logit) const { return key_of(logit) >= least; }

  // 0 of -inf and of NaN
  __device__ Mass weight(float logit) const {
    const float below = greatest - logit;
    return below < WINDOW ? __float2ull_rn(exp2f(below * -LOG2E) * UNITS) : 0;
  }
};
