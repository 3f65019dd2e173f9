// Few tokens times a weight of 1 to 8 bits, or of bfloat16, by AVX-512's dot products of bfloat16 pairs.
#if !defined(__AVX512BF16__)
#error "needs AVX-512 BF16"
#endif

namespace {

inline __m512 dot(__m512 sum, const uint16_t *tokens, __m512i levels) {
    int32_t pair;
    std::memcpy(&pair, tokens, sizeof pair);
    return _mm512_dpbf16_ps(sum, (__m512bh)_mm512_set1_epi32(pair), (__m512bh)levels);
}

// sums[row][panel] += levels . a over a group
template <int64_t COUNT>
inline void dot_group(__m512 (*sums)[COUNT], const Product &product, const int32_t *from, int64_t panel,
                      const uint16_t *a, int64_t width, int64_t words) {
    const __m512i table = _mm512_load_si512(product.table.entries), high = _mm512_load_si512(product.table.high);
    __m512 sum[M_TILE][COUNT];
    for (int64_t t = 0; t < M_TILE; ++t)
        for (int64_t p = 0; p < COUNT; ++p)
            sum[t][p] = _mm512_setzero_ps();
    for (int64_t word = 0; word < words; ++word, from += PANEL) {
        // where this word's elements stand in a step of all pieces
        const uint16_t *tokens = a + word * PER_WORD / STEP * STEP * PIECES + word * PER_WORD % STEP;
#pragma GCC unroll 4
        for (int64_t p = 0; p < COUNT; ++p) {
            const __m512i raw = _mm512_loadu_si512(from + p * panel);
#pragma GCC unroll 16
            for (int pair = 0; pair < PER_WORD / 2; ++pair) {
                const __m512i moved = _mm512_srli_epi32(raw, BITS % 16 * pair);
                const __m512i levels = BITS == 16 ? raw : _mm512_permutexvar_epi16(moved, table);
#pragma GCC unroll 8
                for (int64_t t = 0; t < M_TILE; ++t)
                    for (int64_t i = 0; i < PIECES; ++i)
                        sum[t][p] = dot(sum[t][p], tokens + t * width + i * STEP + 2 * pair, levels);
                if constexpr (BITS == 8) {
                    const __m512i upper = _mm512_permutexvar_epi16(_mm512_srli_epi32(moved, 4), high);
#pragma GCC unroll 8
                    for (int64_t t = 0; t < M_TILE; ++t)
                        for (int64_t i = 0; i < PIECES; ++i)
                            sum[t][p] = dot(sum[t][p], tokens + t * width + i * STEP + 2 * pair, upper);
                }
            }
        }
    }
    for (int64_t t = 0; t < M_TILE; ++t)
        for (int64_t p = 0; p < COUNT; ++p)
            sums[t][p] = sum[t][p];
}

template <int64_t COUNT> inline void multiply_panels(const Product &product, int64_t row, int64_t first) {
    const int64_t words = product.padded / PER_WORD, panel = product.groups * words * PANEL;
    Floats totals[M_TILE][COUNT] = {};
    for (int64_t group = 0; group < product.groups; ++group) {
        __m512 sums[M_TILE][COUNT];
        dot_group<COUNT>(sums, product, product.panels + first * panel + group * words * PANEL, panel,
                         product.place(row, group, 0), product.width(), words);
        for (int64_t p = 0; p < COUNT; ++p) {
            const int64_t column = (first + p) * PANEL;
            const Floats scale = product.scale(column, group), offset = product.offset(column, group);
            for (int64_t t = 0; t < M_TILE; ++t) {
                Floats v = bits_as<Floats>(sums[t][p]);
                if (HAS_ZEROS)
                    v -= offset * product.sums[group * product.rows + row + t];
                totals[t][p] += v * scale;
            }
        }
    }
    for (int64_t t = 0; t < M_TILE && row + t < product.m; ++t)
        for (int64_t p = 0; p < COUNT; ++p)
            product.finish(totals[t][p], row + t, (first + p) * PANEL);
}

inline void weight_dot(T *y, const T *a, const int32_t *panels, const T *scales, const Z *zeros, const int32_t *order,
                       const T *bias, uint16_t *packed, float *sums, int64_t m, int64_t n, int64_t k,
                       int64_t group_size, int64_t padded, int64_t threads) {
    const int64_t groups = parts_of(k, group_size), rows = parts_of(m, M_TILE) * M_TILE;
    const Product product{y, panels, scales, zeros,      bias,   order, packed,
                          sums, m,  n,      k, group_size, groups, padded, rows, 1, {}};
    share_items(rows, rows >= 4 ? threads : 1, [&](int64_t row, int64_t) { product.pack_row(a, row); });
    const int64_t count = parts_of(n, PANEL);
    // a block of the weight stays in the cache while the rows pass over it
    share_items(parts_of(count, PANELS), threads, [&](int64_t item, int64_t) {
        const int64_t first = item * PANELS;
        for (int64_t row = 0; row < m; row += M_TILE)
            if (count - first >= PANELS)
                multiply_panels<PANELS>(product, row, first);
            else
                for (int64_t p = first; p < count; ++p)
                    multiply_panels<1>(product, row, p);
    });
}

} // namespace
