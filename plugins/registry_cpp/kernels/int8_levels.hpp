// int8 activations and levels of 4 or 8 bits as AMX tiles: what amx_block.hpp needs.
#include <immintrin.h>

// levels of 8 bits are unsigned; those of 4 are centred when they are expanded
#if BITS == 8
#define MULTIPLY "tdpbsud"
#else
#define MULTIPLY "tdpbssd"
#endif

namespace {

typedef int32_t Sum;
constexpr int64_t STEP = DEPTH, PIECES = 1;
constexpr bool DIRECT = BITS == 8;

// The tiles of `steps` steps of a panel. As many words more are fetched: the CPU itself stops at a page.
inline void expand(const Product &, int8_t *to, const int32_t *from, int64_t steps) {
    const __m512i mask = _mm512_set1_epi8(15), middle = _mm512_set1_epi8(8);
    const int64_t words = steps * STEP / PER_WORD;
    for (int64_t row = 0; row < words; ++row, to += 128) {
        const __m512i raw = _mm512_loadu_si512(from + row * PANEL);
        _mm_prefetch(reinterpret_cast<const char *>(from + (row + words) * PANEL), _MM_HINT_T0);
        const __m512i low = _mm512_and_si512(raw, mask), high = _mm512_and_si512(_mm512_srli_epi32(raw, 4), mask);
        _mm512_storeu_si512(to, _mm512_sub_epi8(low, middle));
        _mm512_storeu_si512(to + 64, _mm512_sub_epi8(high, middle));
    }
}

inline Floats level(const int32_t *sums, int32_t tokens) {
    Ints levels;
    std::memcpy(&levels, sums, sizeof levels);
    if constexpr (BITS == 8)
        return centred(levels, tokens);
    return __builtin_convertvector(levels, Floats);
}

} // namespace
