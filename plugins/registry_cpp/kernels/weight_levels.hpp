// Levels of a weight as bfloat16 in AMX tiles: what amx_block.hpp needs.
#define MULTIPLY "tdpbf16ps"

namespace {

typedef float Sum;
constexpr bool DIRECT = BITS == 16;
enum ScaleKind { GROUPS, TENSOR, BLOCKS };

// Two bytes, 128 less, as bfloat16: 2^23 + q as a float is q in its low bits, and differences of 8 bits are exact.
inline __m512i pairs_of_bytes(__m512i raw) {
    const __m512i mask = _mm512_set1_epi32(0xff), exponent = _mm512_set1_epi32(0x4b000000);
    const __m512 shift = _mm512_set1_ps(8388608.0f + 128.0f);
    const __m512i low = _mm512_ternarylogic_epi32(raw, mask, exponent, 0xea);
    const __m512i high = _mm512_ternarylogic_epi32(_mm512_srli_epi32(raw, 16), mask, exponent, 0xea);
    const __m512i first = _mm512_castps_si512(_mm512_sub_ps(_mm512_castsi512_ps(low), shift));
    const __m512i second = _mm512_castps_si512(_mm512_sub_ps(_mm512_castsi512_ps(high), shift));
    return _mm512_or_si512(_mm512_srli_epi32(first, 16), second);
}

// The tiles of `steps` steps of a panel. As many words more are fetched: the CPU itself stops at a page.
inline void expand(const Product &product, int8_t *to, const int32_t *from, int64_t steps) {
    const __m512i table = _mm512_load_si512(product.table.entries);
    const int64_t words = steps * STEP / PER_WORD;
    for (int64_t row = 0; row < words; ++row) {
        const __m512i raw = _mm512_loadu_si512(from + row * PANEL);
        _mm_prefetch(reinterpret_cast<const char *>(from + (row + words) * PANEL), _MM_HINT_T0);
#pragma GCC unroll 16
        for (int pair = 0; pair < PER_WORD / 2; ++pair, to += 64) {
            const __m512i moved = _mm512_srli_epi32(raw, BITS % 16 * pair);
            _mm512_storeu_si512(to, BITS == 8 ? pairs_of_bytes(moved) : _mm512_permutexvar_epi16(moved, table));
        }
    }
}

inline Floats level(const float *sums, float) { return load(sums); }

} // namespace
