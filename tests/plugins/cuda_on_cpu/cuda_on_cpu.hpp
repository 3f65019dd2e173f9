#pragma once
// The part of CUDA that needs no threads: where a thread is, casts, a few functions. Included before a kernel's text, so
// that the very source that NVRTC gets is what runs.
#include <cmath>
#include <cstdint>
#include <cstring>

#define __global__
#define __device__
#define __host__
#define __shared__ static
#define __launch_bounds__(...)

struct Extent {
  unsigned x = 0, y = 0, z = 0;
};
static thread_local Extent threadIdx;
static Extent blockIdx, gridDim;

inline unsigned __float_as_uint(float value) {
  unsigned bits;
  std::memcpy(&bits, &value, 4);
  return bits;
}
inline float __uint_as_float(unsigned bits) {
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}
inline float __int_as_float(int bits) { return __uint_as_float((unsigned)bits); }
inline float __expf(float value) { return std::exp(value); }
inline float __fdividef(float one, float other) { return one / other; }
inline unsigned __cvta_generic_to_shared(const void *) { return 0; }
