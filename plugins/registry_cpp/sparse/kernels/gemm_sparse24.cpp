// x [m, k] times a 2:4 sparse weight [n, k], + bias. Of each four along K the two kept select their activations from a
// register: a permutation within 128 bits looks at two bits of an index, which is what a place takes.
// The weight stands in panels of 16 columns: `codes` int32 [panels, words, 16], the lower places of eight fours in the
// low half of a word and the higher places in its high half; `values` of the eight fours of a word, zeros behind K: two
// vectors a four, or in bfloat16 the two of a column side by side. M_TILE rows of x share what was read for VECTORS
// panels, `depth` words of K at a time.
namespace {

using T = ELEMENT;

constexpr int64_t FOURS = 8; // of a word
constexpr int64_t KEPT = 2 * FOURS * PANEL;

#if defined(__AVX512BF16__) && defined(__AVX512BW__)
constexpr bool DOT = std::is_same_v<T, bfloat16>;
#else
constexpr bool DOT = false;
#endif

using A = std::conditional_t<DOT, bfloat16, float>;

// four[places[i] mod 4] in lane i
inline Floats selected(const float *four, Words places) {
#if defined(__AVX512F__)
    const __m512 repeated = _mm512_broadcast_f32x4(_mm_loadu_ps(four));
    return bits_as<Floats>(_mm512_permutevar_ps(repeated, bits_as<__m512i>(places)));
#elif defined(__AVX2__) && defined(__F16C__)
    const __m256 repeated = _mm256_broadcast_ps(reinterpret_cast<const __m128 *>(four));
    const auto in = bits_as<Parts<__m256i>>(places);
    Parts<__m256> out;
    for (int64_t i = 0; i < LANES / 8; ++i)
        out.part[i] = _mm256_permutevar_ps(repeated, in.part[i]);
    return bits_as<Floats>(out);
#else
    Floats found;
    for (int64_t i = 0; i < LANES; ++i)
        found[i] = four[places[i] & 3];
    return found;
#endif
}

template <class E> inline void kept_of(const E *from, Floats &lower, Floats &higher) {
    lower = load(from);
    higher = load(from + PANEL);
}

inline void kept_of(const bfloat16 *from, Floats &lower, Floats &higher) {
    Words pairs;
    std::memcpy(&pairs, from, sizeof pairs);
    lower = bits_as<Floats>(pairs << 16);
    higher = bits_as<Floats>(pairs & 0xffff0000u);
}

// sums[t] += the two kept of a four, of 16 columns, times their activations in each row's four
inline void add_four(Floats (*sums)[2], const T *kept, Words places, const float *fours, int64_t row_width, int) {
    Floats lower, higher;
    kept_of(kept, lower, higher);
    const Words above = places >> 16;
    for (int64_t t = 0; t < M_TILE; ++t) {
        sums[t][0] += lower * selected(fours + t * row_width, places);
        sums[t][1] += higher * selected(fours + t * row_width, above);
    }
}

#if defined(__AVX512BF16__) && defined(__AVX512BW__)
inline void add_four(Floats (*sums)[2], const bfloat16 *kept, Words places, const bfloat16 *fours, int64_t row_width,
                     int parity) {
    const __m512i pairs = _mm512_loadu_si512(kept);
    for (int64_t t = 0; t < M_TILE; ++t) {
        int64_t four;
        std::memcpy(&four, fours + t * row_width, sizeof four);
        const __m512i chosen = _mm512_permutexvar_epi16(bits_as<__m512i>(places), _mm512_set1_epi64(four));
        const __m512 sum = bits_as<__m512>(sums[t][parity]);
        sums[t][parity] = bits_as<Floats>(_mm512_dpbf16_ps(sum, (__m512bh)chosen, (__m512bh)pairs));
    }
}
#endif

struct Product {
    T *y;
    const T *values;
    const int32_t *codes;
    const T *bias; // null: there is none
    const A *wide; // x with zeros after row m and after k, [m rounded up to M_TILE, 32 * words]
    int64_t m, n, words;

    int64_t row_width() const { return 4 * FOURS * words; }

    // totals [rows, COUNT panels] += the products of `depth` words of K, for M_TILE rows from `row`
    template <int64_t COUNT>
    void add_words(float *totals, int64_t panel, int64_t row, int64_t word, int64_t depth) const {
        Floats sums[COUNT][M_TILE][2] = {};
        const A *activations = wide + row * row_width() + 4 * FOURS * word;
        for (int64_t at = word; at < word + depth; ++at, activations += 4 * FOURS)
            for (int64_t p = 0; p < COUNT; ++p) {
                const int64_t place = (panel + p) * words + at;
                Words places;
                std::memcpy(&places, codes + place * PANEL, sizeof places);
#pragma GCC unroll 8
                for (int four = 0; four < FOURS; ++four)
                    add_four(sums[p], values + place * KEPT + four * 2 * PANEL, places >> (2 * four),
                             activations + 4 * four, row_width(), four % 2);
            }
        for (int64_t t = 0; t < M_TILE; ++t)
            for (int64_t p = 0; p < COUNT; ++p) {
                float *to = totals + ((row + t) * COUNT + p) * PANEL;
                store(to, load(to) + (sums[p][t][0] + sums[p][t][1]));
            }
    }

    template <int64_t COUNT> void panels(float *totals, int64_t panel, int64_t depth) const {
        for (int64_t i = 0; i < parts_of(m, M_TILE) * M_TILE * COUNT; ++i)
            store(totals + i * PANEL, Floats{});
        // these words of the weight stay in the cache while the rows pass over them
        for (int64_t word = 0; word < words; word += depth)
            for (int64_t row = 0; row < m; row += M_TILE)
                add_words<COUNT>(totals, panel, row, word, words - word < depth ? words - word : depth);
        for (int64_t row = 0; row < m; ++row)
            for (int64_t p = 0; p < COUNT; ++p) {
                const int64_t column = (panel + p) * PANEL;
                Floats v = load(totals + (row * COUNT + p) * PANEL);
                if (bias)
                    v += load_columns(bias + column, n - column);
                store_columns(y + row * n + column, v, n - column);
            }
    }
};

inline void widen_row(float *to, const T *from, int64_t k, int64_t width) {
    int64_t i = 0;
    for (; i + LANES <= k; i += LANES)
        store(to + i, load(from + i));
    for (; i < width; i += LANES)
        store(to + i, i < k ? load_some(from + i, k - i, 0) : Floats{});
}

inline void widen_row(bfloat16 *to, const bfloat16 *from, int64_t k, int64_t width) {
    std::memcpy(to, from, k * sizeof *to);
    std::memset(to + k, 0, (width - k) * sizeof *to);
}

inline void gemm_sparse24(T *y, const T *x, const T *values, const int32_t *codes, const T *bias, float *wide, float *totals,
                     int64_t m, int64_t n, int64_t k, int64_t depth, int64_t threads) {
    A *const rows = reinterpret_cast<A *>(wide);
    const Product product{y, values, codes, bias, rows, m, n, parts_of(k, 4 * FOURS)};
    const int64_t width = product.row_width(), padded = parts_of(m, M_TILE) * M_TILE;
    share_items(padded, padded >= 4 ? threads : 1, [&](int64_t row, int64_t) {
        if (row < m)
            widen_row(rows + row * width, x + row * k, k, width);
        else
            std::memset(rows + row * width, 0, width * sizeof *rows);
    });
    const int64_t count = parts_of(n, PANEL);
    share_items(parts_of(count, VECTORS), threads, [&](int64_t item, int64_t thread) {
        float *const own = totals + thread * padded * VECTORS * PANEL;
        const int64_t first = item * VECTORS;
        if (count - first >= VECTORS)
            product.panels<VECTORS>(own, first, depth);
        else
            for (int64_t p = first; p < count; ++p)
                product.panels<1>(own, p, depth);
    });
}

} // namespace
