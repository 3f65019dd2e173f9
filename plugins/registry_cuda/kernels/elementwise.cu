// y[i] = FUNCTION(x[i]): every thread takes ITEMS vectors of VEC elements, loads them all, then computes and stores;
// with a grid smaller than the tensor it comes back for more.

__device__ inline float square(float x) { return x * x; }

// 0.5 x (1 + tanh u) is x / (1 + exp(-2 u)): one exponential, and no cancellation for negative x.
__device__ inline float gelu_tanh(float x) {
  float u = 0.7978845608028654f * (x + 0.044715f * x * x * x);
  return quotient(x, 1.0f + exponential(-2.0f * u));
}

__device__ inline float gelu_none(float x) { return 0.5f * x * (1.0f + erff(x * 0.7071067811865476f)); }

extern "C" __global__ void __launch_bounds__(BLOCK) elementwise(T *__restrict__ y, const T *__restrict__ x, long long n) {
  const long long vectors = n / VEC;
  const long long step = (long long)gridDim.x * BLOCK * ITEMS;
  const Vector *from = reinterpret_cast<const Vector *>(x);
  Vector *to = reinterpret_cast<Vector *>(y);
  for (long long start = (long long)blockIdx.x * BLOCK * ITEMS + threadIdx.x; start < vectors; start += step) {
    Vector held[ITEMS];
#pragma unroll
    for (int item = 0; item < ITEMS; ++item)
      if (start + item * BLOCK < vectors) held[item] = from[start + item * BLOCK];
#pragma unroll
    for (int item = 0; item < ITEMS; ++item) {
      if (start + item * BLOCK >= vectors) break;
      held[item].transform([](int, float value) { return FUNCTION(value); });
      to[start + item * BLOCK] = held[item];
    }
  }
  // fewer than VEC elements are left
  const long long last = vectors * VEC + threadIdx.x;
  if (blockIdx.x == 0 && last < n) y[last] = from_float<T>(FUNCTION(to_float(x[last])));
}
