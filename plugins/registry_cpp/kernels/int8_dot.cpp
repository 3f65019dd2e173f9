// int8 activations times levels of 4 or 8 bits, 16 columns in a vector: VNNI where the target has it, else AVX2.
#include <immintrin.h>

namespace {

#if defined(__AVX512VNNI__)
typedef __m512i Vector;
inline Vector load_vector(const int32_t *from) { return _mm512_loadu_si512(from); }
inline Vector low_nibbles(Vector v) { return _mm512_and_si512(v, _mm512_set1_epi8(15)); }
inline Vector high_nibbles(Vector v) { return low_nibbles(_mm512_srli_epi32(v, 4)); }
#elif defined(__AVX2__)
typedef __m256i Vector;
inline Vector load_vector(const int32_t *from) { return _mm256_loadu_si256(reinterpret_cast<const __m256i *>(from)); }
inline Vector low_nibbles(Vector v) { return _mm256_and_si256(v, _mm256_set1_epi8(15)); }
inline Vector high_nibbles(Vector v) { return low_nibbles(_mm256_srli_epi32(v, 4)); }
#else
#error "needs AVX2 or AVX-512 VNNI"
#endif

#if defined(__AVX512VNNI__)
struct Levels {
    Vector bytes;
    explicit Levels(Vector v) : bytes(v) {}
    Vector dot(Vector sum, int32_t a) const { return _mm512_dpbusd_epi32(sum, bytes, _mm512_set1_epi32(a)); }
};
#elif defined(__AVXVNNI__)
struct Levels {
    Vector bytes;
    explicit Levels(Vector v) : bytes(v) {}
    Vector dot(Vector sum, int32_t a) const { return _mm256_dpbusd_avx_epi32(sum, bytes, _mm256_set1_epi32(a)); }
};
#else
// A pair of products of 8 bits saturates 16: bytes are split into nibbles, whose pairs fit.
struct Levels {
    Vector low, high;
    explicit Levels(Vector v) : low(BITS == 8 ? low_nibbles(v) : v), high(BITS == 8 ? high_nibbles(v) : v) {}
    static Vector pairs(Vector sum, Vector nibbles, Vector a, int16_t weight) {
        return _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(nibbles, a), _mm256_set1_epi16(weight)));
    }
    Vector dot(Vector sum, int32_t a) const {
        const Vector tokens = _mm256_set1_epi32(a);
        sum = pairs(sum, low, tokens, 1);
        return BITS == 8 ? pairs(sum, high, tokens, 16) : sum;
    }
};
#endif

constexpr int64_t PIECES = sizeof(Ints) / sizeof(Vector); // vectors in a panel's 16 columns
constexpr int64_t VECTORS = PANELS * PIECES;

inline int32_t word_at(const int8_t *from) {
    int32_t word;
    std::memcpy(&word, from, sizeof word);
    return word;
}

// sums[row][vector] += levels . a over a group, for `count` panels
template <int64_t ROWS, int64_t COUNT>
inline void dot_group(Vector (*sums)[COUNT], const int32_t *from, int64_t panel, const int8_t *a, int64_t width,
                      int64_t words) {
    Vector sum[ROWS][COUNT];
    for (int64_t t = 0; t < ROWS; ++t)
        for (int64_t v = 0; v < COUNT; ++v)
            sum[t][v] = Vector{};
    for (int64_t word = 0; word < words; ++word, from += PANEL, a += PER_WORD)
        for (int64_t v = 0; v < COUNT; ++v) {
            const Vector raw = load_vector(from + v / PIECES * panel + v % PIECES * (PANEL / PIECES));
            const Levels first(BITS == 4 ? low_nibbles(raw) : raw);
            for (int64_t t = 0; t < ROWS; ++t)
                sum[t][v] = first.dot(sum[t][v], word_at(a + t * width));
            if constexpr (BITS == 4) {
                const Levels second(high_nibbles(raw));
                for (int64_t t = 0; t < ROWS; ++t)
                    sum[t][v] = second.dot(sum[t][v], word_at(a + t * width + 4));
            }
        }
    for (int64_t t = 0; t < ROWS; ++t)
        for (int64_t v = 0; v < COUNT; ++v)
            sums[t][v] = sum[t][v];
}

template <int64_t COUNT> inline void multiply_panels(const Product &product, int64_t row, int64_t first) {
    const int64_t words = product.padded / PER_WORD, panel = product.groups * words * PANEL;
    Floats totals[M_TILE][COUNT / PIECES] = {};
    for (int64_t group = 0; group < product.groups; ++group) {
        alignas(64) Vector sums[M_TILE][COUNT];
        dot_group<M_TILE, COUNT>(sums, product.panels + first * panel + group * words * PANEL, panel,
                                 product.place(row, group, 0), product.width(), words);
        for (int64_t p = 0; p < COUNT / PIECES; ++p) {
            const int64_t column = (first + p) * PANEL;
            const Floats scale = product.scale(column, group), offset = product.offset(column, group);
            for (int64_t t = 0; t < M_TILE; ++t) {
                Ints levels;
                std::memcpy(&levels, &sums[t][p * PIECES], sizeof levels);
                const int32_t sum = product.sums[group * product.rows + row + t];
                Floats v = centred(levels, sum);
                if (HAS_ZEROS)
                    v -= offset * static_cast<float>(sum);
                totals[t][p] += v * (scale * product.token_scale(row + t, group));
            }
        }
    }
    for (int64_t t = 0; t < M_TILE && row + t < product.m; ++t)
        for (int64_t p = 0; p < COUNT / PIECES; ++p)
            product.finish(totals[t][p], row + t, (first + p) * PANEL);
}

inline void int8_dot(T *y, const int8_t *a, const float *scale_a, const int32_t *panels, const S *scales,
                     const Z *zeros, const T *bias, int8_t *packed, int32_t *sums, int64_t m, int64_t n, int64_t k,
                     int64_t group_size, int64_t padded, int64_t threads) {
    const int64_t groups = parts_of(k, group_size), rows = parts_of(m, M_TILE) * M_TILE;
    const Product product{y, panels, scales, zeros,      bias,   scale_a, packed,
                          sums, m,  n,      k, group_size, groups, padded,  rows, 1};
    share_items(parts_of(rows, 8), threads, [&](int64_t item, int64_t) {
        for (int64_t row = item * 8; row < rows && row < item * 8 + 8; ++row)
            product.pack_row(a, row);
    });
    const int64_t count = parts_of(n, PANEL);
    // a block of the weight stays in the cache while the rows pass over it
    share_items(parts_of(count, PANELS), threads, [&](int64_t item, int64_t) {
        const int64_t first = item * PANELS;
        for (int64_t row = 0; row < m; row += M_TILE)
            if (count - first >= PANELS)
                multiply_panels<VECTORS>(product, row, first);
            else
                for (int64_t p = first; p < count; ++p)
                    multiply_panels<PIECES>(product, row, p);
    });
}

} // namespace
