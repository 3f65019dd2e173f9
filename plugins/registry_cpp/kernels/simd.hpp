// A vector register of floats at a time, and the conversions of float16 and bfloat16 (round to nearest, ties to even).
#include <cstdint>
#include <cstring>
#if defined(__AVX512F__) || defined(__F16C__)
#include <immintrin.h>
#endif

namespace {

// GCC takes vectors that are wider than the machine's apart: comparisons even into single elements
#if defined(PANEL_COLUMNS)
constexpr int64_t LANES = PANEL_COLUMNS;
#elif defined(__AVX512F__)
constexpr int64_t LANES = 16;
#else
constexpr int64_t LANES = 8;
#endif

typedef float Floats __attribute__((vector_size(4 * LANES)));
typedef int32_t Ints __attribute__((vector_size(4 * LANES)));
typedef uint32_t Words __attribute__((vector_size(4 * LANES)));
typedef uint16_t Halves __attribute__((vector_size(2 * LANES)));

struct float16 {
    uint16_t bits;
};
struct bfloat16 {
    uint16_t bits;
};

template <class To, class From> inline To bits_as(const From &from) {
    static_assert(sizeof(To) == sizeof(From), "only the type changes");
    To to;
    std::memcpy(&to, &from, sizeof to);
    return to;
}

// a vector of LANES elements as registers that hold eight
template <class Register> struct Parts {
    Register part[LANES / 8];
};

inline Floats all(float value) { return Floats{} + value; }

inline Floats where(Ints condition, Floats yes, Floats no) { return condition ? yes : no; }

// NaN of `a` is dropped: whoever needs it finds it in the sum that follows
inline Floats greater(Floats a, Floats b) { return where(a > b, a, b); }

inline float sum_of(Floats v) {
    for (int64_t width = LANES / 2; width; width /= 2)
        for (int64_t i = 0; i < width; ++i)
            v[i] += v[i + width];
    return v[0];
}

inline float max_of(Floats v) {
    float most = v[0];
    for (int64_t i = 1; i < LANES; ++i)
        most = v[i] > most ? v[i] : most;
    return most;
}

// GCC 12 takes __builtin_convertvector apart into pieces here; one instruction does it
inline Words extended(Halves raw) {
#if defined(__AVX512F__)
    return bits_as<Words>(_mm512_cvtepu16_epi32(bits_as<__m256i>(raw)));
#elif defined(__AVX2__) && defined(__F16C__)
    const auto in = bits_as<Parts<__m128i>>(raw);
    Parts<__m256i> out;
    for (int64_t i = 0; i < LANES / 8; ++i)
        out.part[i] = _mm256_cvtepu16_epi32(in.part[i]);
    return bits_as<Words>(out);
#else
    return __builtin_convertvector(raw, Words);
#endif
}

inline Halves truncated(Words words) {
#if defined(__AVX512F__)
    return bits_as<Halves>(_mm512_cvtepi32_epi16(bits_as<__m512i>(words)));
#else
    return __builtin_convertvector(words, Halves);
#endif
}

inline Floats widen(Halves raw, bfloat16) { return bits_as<Floats>(extended(raw) << 16); }

inline Halves narrow(Floats v, bfloat16) {
    const Words word = bits_as<Words>(v);
    const Words rounded = (word + 0x7fff + ((word >> 16) & 1)) >> 16;
    const Words quiet = (word >> 16) | 0x40; // rounding could carry a NaN into infinity
    return truncated(v == v ? rounded : quiet);
}

#if defined(__AVX512F__)
inline Floats widen(Halves raw, float16) { return bits_as<Floats>(_mm512_cvtph_ps(bits_as<__m256i>(raw))); }
inline Halves narrow(Floats v, float16) {
    return bits_as<Halves>(_mm512_cvtps_ph(bits_as<__m512>(v), _MM_FROUND_TO_NEAREST_INT));
}
#elif defined(__F16C__)
inline Floats widen(Halves raw, float16) {
    const auto in = bits_as<Parts<__m128i>>(raw);
    Parts<__m256> out;
    for (int64_t i = 0; i < LANES / 8; ++i)
        out.part[i] = _mm256_cvtph_ps(in.part[i]);
    return bits_as<Floats>(out);
}
inline Halves narrow(Floats v, float16) {
    const auto in = bits_as<Parts<__m256>>(v);
    Parts<__m128i> out;
    for (int64_t i = 0; i < LANES / 8; ++i)
        out.part[i] = _mm256_cvtps_ph(in.part[i], _MM_FROUND_TO_NEAREST_INT);
    return bits_as<Halves>(out);
}
#else
inline Floats widen(Halves raw, float16) {
    const Words wide = __builtin_convertvector(raw, Words);
    const Words sign = (wide & 0x8000) << 16, magnitude = (wide & 0x7fff) << 13;
    // 2^112 moves the exponent's bias from 15 to 127, of subnormals too
    const Words scaled = bits_as<Words>(bits_as<Floats>(magnitude) * 0x1p112f);
    return bits_as<Floats>((magnitude >= 0x0f800000 ? (magnitude | 0x7f800000) : scaled) | sign);
}
inline Halves narrow(Floats v, float16) {
    const Words word = bits_as<Words>(v), sign = (word >> 16) & 0x8000, magnitude = word & 0x7fffffff;
    const Words normal = (magnitude + 0xc8000fff + ((magnitude >> 13) & 1)) >> 13;
    // adding 0.5 shifts a subnormal's bits into place, rounded by the FPU
    const Words subnormal = bits_as<Words>(bits_as<Floats>(magnitude) + 0.5f) - 0x3f000000;
    Words half = magnitude < 0x38800000 ? subnormal : normal;
    half = magnitude >= 0x477ff000 ? Words{} + 0x7c00 : half;
    half = magnitude > 0x7f800000 ? Words{} + 0x7e00 : half;
    return __builtin_convertvector(half | sign, Halves);
}
#endif

template <class T> inline Floats load(const T *from) {
    Halves raw;
    std::memcpy(&raw, from, sizeof raw);
    return widen(raw, T());
}
inline Floats load(const float *from) {
    Floats v;
    std::memcpy(&v, from, sizeof v);
    return v;
}

template <class T> inline void store(T *to, Floats v) {
    const Halves raw = narrow(v, T());
    std::memcpy(to, &raw, sizeof raw);
}
inline void store(float *to, Floats v) { std::memcpy(to, &v, sizeof v); }

// The first `count` (less than LANES) elements; the others read as `fill`.
template <class T> inline Floats load_some(const T *from, int64_t count, float fill) {
    T padded[LANES];
    store(padded, all(fill));
    std::memcpy(padded, from, count * sizeof(T));
    return load(padded);
}

template <class T> inline void store_some(T *to, Floats v, int64_t count) {
    T padded[LANES];
    store(padded, v);
    std::memcpy(to, padded, count * sizeof(T));
}

// Past the caches, for outputs too large to stay there: a normal store first reads the line it overwrites.
// `to` must be a multiple of the vector's size.
template <class T> inline void store_past(T *to, Floats v) {
#if defined(__AVX512F__)
    if constexpr (sizeof(T) == 4)
        _mm512_stream_ps(reinterpret_cast<float *>(to), bits_as<__m512>(v));
    else
        _mm256_stream_si256(reinterpret_cast<__m256i *>(to), bits_as<__m256i>(narrow(v, T())));
#elif defined(__F16C__) && !defined(PANEL_COLUMNS)
    if constexpr (sizeof(T) == 4)
        _mm256_stream_ps(reinterpret_cast<float *>(to), bits_as<__m256>(v));
    else
        _mm_stream_si128(reinterpret_cast<__m128i *>(to), bits_as<__m128i>(narrow(v, T())));
#else
    store(to, v);
#endif
}

inline void fence() {
#if defined(__AVX512F__) || defined(__F16C__)
    _mm_sfence();
#endif
}

// Elements until `to` is a multiple of the vector's size, at most `count`.
template <class T> inline int64_t until_aligned(const T *to, int64_t count) {
    const int64_t bytes = LANES * sizeof(T), past = reinterpret_cast<uintptr_t>(to) % bytes;
    const int64_t head = past ? (bytes - past) / static_cast<int64_t>(sizeof(T)) : 0;
    return head < count ? head : count;
}

// e^x within 1.5 units in the last place, subnormal results included; NaN stays NaN.
// x = n ln 2 + r, and a minimax polynomial of degree 6 in |r| <= ln 2 / 2 (3e-9 relative).
inline Floats exponential(Floats x) {
    x = where(x > 89.0f, all(89.0f), where(x < -105.0f, all(-105.0f), x));
    const Floats shifted = x * 1.44269504f + 12582912.0f; // 1.5 * 2^23 leaves the rounded integer in the low bits
    const Floats n = shifted - 12582912.0f;
    Floats r = x - n * 0.693359375f;
    r = r - n * -2.12194440e-4f;
    Floats p = r * 0.0013814602f + 0.0083687156f;
    p = p * r + 0.0416683890f;
    p = p * r + 0.1666652113f;
    p = p * r + 0.4999999404f;
    p = p * (r * r) + r + 1.0f;
    // 2^n as two factors: n reaches from -152 to 129
    const Ints whole = bits_as<Ints>(shifted) - 0x4b400000, half = whole >> 1;
    const Floats one = bits_as<Floats>((half + 127) << 23), other = bits_as<Floats>((whole - half + 127) << 23);
    return p * one * other;
}

} // namespace
