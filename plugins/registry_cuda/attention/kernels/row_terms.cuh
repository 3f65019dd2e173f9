// What the gradients need of each row beside its tensors, in blocks of QUERIES rows of a head: QUERIES log-sum-exps in units
// of the exponential with base 2, then as many deltas, sums of the products of the output and its gradient. A row that sees
// no key, or is not there, has a log-sum-exp of inf, of which all weights are 0, and a delta of 0.

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <math_constants.h>

struct alignas(16) Halves { unsigned word[4]; };
constexpr float LOG2E = 1.4426950408889634f;
constexpr int VECTORS = DIM / 8;  // 16 bytes, of a row, by LANES lanes

__device__ inline float number_of(__half half) { return __half2float(half); }
__device__ inline float number_of(__nv_bfloat16 half) { return __bfloat162float(half); }
__device__ inline float product_of(unsigned one, unsigned other) {
  const ELEMENT(&left)[2] = reinterpret_cast<const ELEMENT(&)[2]>(one);
  const ELEMENT(&right)[2] = reinterpret_cast<const ELEMENT(&)[2]>(other);
  return fmaf(number_of(left[0]), number_of(right[0]), number_of(left[1]) * number_of(right[1]));
}

// By LANES neighbours, of which each gets the sum of a row that is `there`.
__device__ inline float delta_of(const ELEMENT *grad_out, const ELEMENT *out, bool there) {
  const int lane = threadIdx.x % LANES;
  float sum = 0;
  if (there && lane < VECTORS) {
    const Halves one = reinterpret_cast<const Halves *>(grad_out)[lane], other = reinterpret_cast<const Halves *>(out)[lane];
#pragma unroll
    for (int word = 0; word < 4; ++word) sum += product_of(one.word[word], other.word[word]);
  }
#pragma unroll
  for (int apart = LANES / 2; apart > 0; apart /= 2) sum += __shfl_xor_sync(~0u, sum, apart);
  return sum;
}
// By LANES neighbours: the terms of row `place` of all heads' blocks.
__device__ inline void write_terms(float *terms, long long place, float lse, float delta) {
  if (threadIdx.x % LANES) return;
  const bool sees = lse != -CUDART_INF_F;
  float *to = terms + place / QUERIES * (2 * QUERIES) + place % QUERIES;
  to[0] = sees ? lse * LOG2E : CUDART_INF_F;
  to[QUERIES] = sees ? delta : 0;
}
// The row of all heads' blocks that this thread's lanes have.
__device__ inline long long own_place() { return ((long long)blockIdx.x * THREADS + threadIdx.x) / LANES; }
