// a [m, k] times a weight of 4 bits in GPTQ's layout (int32 [k / 8, n], element 8 i + j at bit 4 j of word i).
// y = sum over the groups of scale * (q . a - zero * sum(a)): levels stay integers, a scale is applied once a group.
// ELEMENT is the element type; M_TILE rows of a share each decoded weight; VECTORS times LANES columns are in flight.
#include <atomic>

namespace {

using T = ELEMENT;

constexpr int64_t WORD = 8;
constexpr int64_t WIDEST = 1024; // columns of a block at most

// nibble `place` of sixteen words, as floats
inline Floats level(Ints words, int place) {
#if defined(__AVX512F__)
    // the permutation looks at four bits of an index: no mask and no conversion
    const Floats table = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    return bits_as<Floats>(_mm512_permutexvar_ps(bits_as<__m512i>(words >> (4 * place)), bits_as<__m512>(table)));
#else
    return __builtin_convertvector((words >> (4 * place)) & 15, Floats);
#endif
}

inline Ints load_words(const int32_t *from, int64_t count) {
    Ints words{};
    std::memcpy(&words, from, count < LANES ? count * sizeof(int32_t) : sizeof words);
    return words;
}

struct Product {
    T *y;
    const int32_t *qweight;
    const T *scales, *zeros; // zeros null: the zero point is 8
    const float *wide;       // a in fp32, [m rounded up to M_TILE, k], zeros below row m
    const float *sums;       // of each group of each row of wide
    int64_t m, n, k, group_size;

    static void clear(float *rows, int64_t width) {
        for (int64_t t = 0; t < M_TILE; ++t)
            for (int64_t i = 0; i < width; i += LANES)
                store(rows + t * WIDEST + i, Floats{});
    }

    // part[t][column] += q . a over `depth` words of K, for `vectors` times LANES columns, the last of them `last` wide
    template <int64_t vectors>
    void accumulate(float *part, const int32_t *words, const float *a, int64_t depth, int64_t last) const {
        Floats sum[M_TILE][vectors];
        for (int64_t t = 0; t < M_TILE; ++t)
            for (int64_t v = 0; v < vectors; ++v)
                sum[t][v] = load(part + t * WIDEST + v * LANES);
        for (int64_t row = 0; row < depth; ++row, words += n, a += WORD) {
            Ints packed[vectors];
            for (int64_t v = 0; v < vectors; ++v)
                packed[v] = load_words(words + v * LANES, v + 1 < vectors ? LANES : last);
#pragma GCC unroll 8
            for (int place = 0; place < WORD; ++place)
                for (int64_t v = 0; v < vectors; ++v) {
                    const Floats q = level(packed[v], place);
                    for (int64_t t = 0; t < M_TILE; ++t)
                        sum[t][v] += q * a[t * k + place];
                }
        }
        for (int64_t t = 0; t < M_TILE; ++t)
            for (int64_t v = 0; v < vectors; ++v)
                store(part + t * WIDEST + v * LANES, sum[t][v]);
    }

    void words_of_block(float *part, int64_t word, int64_t depth, const float *a, int64_t column, int64_t width) const {
        const int32_t *words = qweight + word * n + column;
        int64_t i = 0;
        for (; i + VECTORS * LANES <= width; i += VECTORS * LANES)
            accumulate<VECTORS>(part + i, words + i, a, depth, LANES);
        for (; i < width; i += LANES)
            accumulate<1>(part + i, words + i, a, depth, width - i < LANES ? width - i : LANES);
    }

    // total[t][column] += scale * (part - zero * sum(a)) of one group
    void close_group(float *total, const float *part, int64_t row, int64_t group, int64_t column, int64_t width) const {
        const int64_t groups = k / group_size;
        for (int64_t i = 0; i < width; i += LANES) {
            const int64_t count = width - i < LANES ? width - i : LANES, at = group * n + column + i;
            const Floats scale = count == LANES ? load(scales + at) : load_some(scales + at, count, 0);
            Floats zero = all(8);
            if (zeros)
                zero = count == LANES ? load(zeros + at) : load_some(zeros + at, count, 0);
            for (int64_t t = 0; t < M_TILE; ++t) {
                float *place = total + t * WIDEST + i;
                const Floats centred = load(part + t * WIDEST + i) - zero * sums[(row + t) * groups + group];
                store(place, load(place) + scale * centred);
            }
        }
    }

    void tile(int64_t row, int64_t column, int64_t width, int64_t depth) const {
        alignas(64) float total[M_TILE * WIDEST], part[M_TILE * WIDEST];
        clear(total, width);
        const int64_t words = group_size / WORD;
        for (int64_t group = 0; group < k / group_size; ++group) {
            clear(part, width);
            for (int64_t done = 0; done < words; done += depth) {
                const int64_t word = group * words + done, now = words - done < depth ? words - done : depth;
                words_of_block(part, word, now, wide + row * k + word * WORD, column, width);
            }
            close_group(total, part, row, group, column, width);
        }
        for (int64_t t = 0; t < M_TILE && row + t < m; ++t)
            for (int64_t i = 0; i < width; i += LANES) {
                T *to = y + (row + t) * n + column + i;
                const Floats v = load(total + t * WIDEST + i);
                if (width - i < LANES)
                    store_some(to, v, width - i);
                else
                    store(to, v);
            }
    }
};

// wide and sums from a; rows from m on are zeros
inline void widen_rows(float *wide, float *sums, const T *a, int64_t m, int64_t k, int64_t group_size) {
    const int64_t rows = (m + M_TILE - 1) / M_TILE * M_TILE;
    std::memset(wide + m * k, 0, (rows - m) * k * sizeof(float));
    std::memset(sums, 0, rows * (k / group_size) * sizeof(float));
    for (int64_t group = 0; group < m * (k / group_size); ++group) {
        Floats sum{};
        for (int64_t i = group * group_size; i < (group + 1) * group_size; i += LANES) {
            const int64_t left = (group + 1) * group_size - i, count = left < LANES ? left : LANES;
            const Floats v = count == LANES ? load(a + i) : load_some(a + i, count, 0);
            if (count == LANES)
                store(wide + i, v);
            else
                store_some(wide + i, v, count);
            sum += v;
        }
        sums[group] = sum_of(sum);
    }
}

inline void gemm_int4(T *y, const T *a, const int32_t *qweight, const T *scales, const T *zeros, float *wide, float *sums,
               int64_t m, int64_t n, int64_t k, int64_t group_size, int64_t block, int64_t depth, int64_t threads) {
    widen_rows(wide, sums, a, m, k, group_size);
    const Product product{y, qweight, scales, zeros, wide, sums, m, n, k, group_size};
    const int64_t blocks = (n + block - 1) / block;
    std::atomic<int64_t> next{0};
    registry::parallel(threads < blocks ? threads : blocks, [&](int64_t, int64_t) {
        for (int64_t taken; (taken = next.fetch_add(1, std::memory_order_relaxed)) < blocks;) {
            const int64_t column = taken * block, width = n - column < block ? n - column : block;
            // a block of the weight stays in the cache while the rows of a pass over it
            for (int64_t row = 0; row < m; row += M_TILE)
                product.tile(row, column, width, depth);
        }
    });
}

} // namespace
