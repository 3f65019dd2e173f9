// Element types and vectors of them. Arithmetic is in float.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <math_constants.h>

// a macro named T would break the headers
using T = ELEMENT;

__device__ inline float to_float(float value) { return value; }
__device__ inline float to_float(__half value) { return __half2float(value); }
__device__ inline float to_float(__nv_bfloat16 value) { return __bfloat162float(value); }

template <typename Number> __device__ Number from_float(float value);
template <> __device__ inline float from_float<float>(float value) { return value; }
template <> __device__ inline __half from_float<__half>(float value) { return __float2half_rn(value); }
template <> __device__ inline __nv_bfloat16 from_float<__nv_bfloat16>(float value) { return __float2bfloat16_rn(value); }

__device__ inline unsigned bits_of(float value) { return __float_as_uint(value); }
__device__ inline unsigned bits_of(__half value) { return __half_as_ushort(value); }
__device__ inline unsigned bits_of(__nv_bfloat16 value) { return __bfloat16_as_ushort(value); }

template <typename Number> __device__ Number from_bits(unsigned bits);
template <> __device__ inline float from_bits<float>(unsigned bits) { return __uint_as_float(bits); }
template <> __device__ inline __half from_bits<__half>(unsigned bits) { return __ushort_as_half((unsigned short)bits); }
template <> __device__ inline __nv_bfloat16 from_bits<__nv_bfloat16>(unsigned bits) {
  return __ushort_as_bfloat16((unsigned short)bits);
}

// VEC elements that one instruction reads or writes. Halves stay two in a register: alone each would take a whole one.
template <int PER_WORD, typename Word> struct alignas(VEC * sizeof(T)) VectorOf {
  static constexpr int WORDS = VEC / PER_WORD;
  Word word[WORDS];

  __device__ float get(int k) const { return to_float(from_bits<T>(word[k / PER_WORD] >> (k % PER_WORD * 16))); }

  __device__ void fill(float value) {
    const unsigned bits = bits_of(from_float<T>(value));
#pragma unroll
    for (int w = 0; w < WORDS; ++w) word[w] = PER_WORD == 2 ? bits | bits << 16 : bits;
  }

  // element k becomes function(k, element k)
  template <typename Function> __device__ void transform(Function function) {
#pragma unroll
    for (int w = 0; w < WORDS; ++w) {
      unsigned made = bits_of(from_float<T>(function(w * PER_WORD, get(w * PER_WORD))));
      if constexpr (PER_WORD == 2) made |= bits_of(from_float<T>(function(w * 2 + 1, get(w * 2 + 1)))) << 16;
      word[w] = made;
    }
  }

  // Hide from the compiler that the elements are still the same: it would keep them all as floats, in twice the
  // registers, rather than convert them again (spills of 500 bytes at 64 elements a thread).
  __device__ void stay_packed() {
#pragma unroll
    for (int w = 0; w < WORDS; ++w)
      if constexpr (PER_WORD == 2) asm volatile("" : "+r"(word[w]));
  }
};

template <bool WORDS, bool PAIRS> struct Choose { using Type = VectorOf<1, unsigned short>; };
template <> struct Choose<true, false> { using Type = VectorOf<1, unsigned>; };
template <> struct Choose<false, true> { using Type = VectorOf<2, unsigned>; };
using Vector = Choose<sizeof(T) == 4, sizeof(T) == 2 && VEC % 2 == 0>::Type;

// Halves cannot show the error of the fast intrinsics (about 2**-22); float can.
constexpr bool FAST = sizeof(T) < 4;

__device__ inline float exponential(float value) { return FAST ? __expf(value) : expf(value); }
__device__ inline float quotient(float one, float other) { return FAST ? __fdividef(one, other) : one / other; }
