// a [m, k] times a packed weight of BITS bits (int32 [words, n], element PER_WORD i + j at bit BITS j of word i), + bias.
// y = sum over the groups of scale * (q . a - zero * sum(a)): levels stay as they are, a scale is applied once a group.
// ELEMENT is the element type, ZERO that of zero points; M_TILE rows of a share each decoded weight; VECTORS times 16
// columns are in flight. With NF4 a level is the codebook's. Levels are centred: fp32 sums keep their precision.
#include <atomic>

namespace {

using T = ELEMENT;
using Z = ZERO;

constexpr int64_t PER_WORD = 32 / BITS;
constexpr int64_t WIDEST = 1024; // columns of a block at most
constexpr float MIDDLE = NF4 ? 0.0f : BITS == 1 ? 0.5f : static_cast<float>(1 << (BITS - 1));
constexpr float NORMAL[16] = {
    -1.0f, -0.6961928009986877f, -0.5250730514526367f, -0.39491748809814453f,
    -0.28444138169288635f, -0.18477343022823334f, -0.09105003625154495f, 0.0f,
    0.07958029955625534f, 0.16093020141124725f, 0.24611230194568634f, 0.33791524171829224f,
    0.44070982933044434f, 0.5626170039176941f, 0.7229568362236023f, 1.0f,
};

// what a field of up to 4 bits stands for, where the bits above it may be anything
constexpr float entry(int index) { return NF4 ? NORMAL[index] : (index & ((1 << BITS) - 1)) - MIDDLE; }

// field `place` of sixteen words, as centred levels
inline Floats level(Ints words, int place) {
    const Ints shifted = words >> (BITS * place);
    if constexpr (BITS == 8)
        return __builtin_convertvector(shifted & 255, Floats) - MIDDLE;
#if defined(__AVX512F__)
    // the permutation looks at four bits of an index: no mask and no conversion
    const Floats table = {entry(0), entry(1), entry(2),  entry(3),  entry(4),  entry(5),  entry(6),  entry(7),
                          entry(8), entry(9), entry(10), entry(11), entry(12), entry(13), entry(14), entry(15)};
    return bits_as<Floats>(_mm512_permutexvar_ps(bits_as<__m512i>(shifted), bits_as<__m512>(table)));
#else
    if constexpr (NF4) {
        Floats found;
        for (int64_t i = 0; i < LANES; ++i)
            found[i] = NORMAL[shifted[i] & 15];
        return found;
    }
    return __builtin_convertvector(shifted & ((1 << BITS) - 1), Floats) - MIDDLE;
#endif
}

inline Ints load_words(const int32_t *from, int64_t count) {
    Ints words{};
    std::memcpy(&words, from, count < LANES ? count * sizeof(int32_t) : sizeof words);
    return words;
}

template <typename Type> inline Floats load_columns(const Type *from, int64_t count) {
    return count < LANES ? load_some(from, count, 0) : load(from);
}

struct Product {
    T *y;
    const int32_t *qweight;
    const T *scales;
    const Z *zeros;    // null: the zero point is in the middle
    const T *bias;     // null: there is none
    const float *wide; // a in fp32, [m rounded up to M_TILE, words * PER_WORD], zeros after row m and after k
    const float *sums; // of each group of each row of wide
    int64_t m, n, words, groups, words_a_group;

    static void clear(float *rows, int64_t width) {
        for (int64_t t = 0; t < M_TILE; ++t)
            for (int64_t i = 0; i < width; i += LANES)
                store(rows + t * WIDEST + i, Floats{});
    }

    // part[t][column] += q . a over `depth` words of K, for `vectors` times LANES columns, the last of them `last` wide
    template <int64_t vectors>
    void accumulate(float *part, const int32_t *from, const float *a, int64_t depth, int64_t last) const {
        Floats sum[M_TILE][vectors];
        for (int64_t t = 0; t < M_TILE; ++t)
            for (int64_t v = 0; v < vectors; ++v)
                sum[t][v] = load(part + t * WIDEST + v * LANES);
        for (int64_t row = 0; row < depth; ++row, from += n, a += PER_WORD) {
            Ints packed[vectors];
            for (int64_t v = 0; v < vectors; ++v)
                packed[v] = load_words(from + v * LANES, v + 1 < vectors ? LANES : last);
#pragma GCC unroll 8
            for (int place = 0; place < PER_WORD; ++place)
                for (int64_t v = 0; v < vectors; ++v) {
                    const Floats q = level(packed[v], place);
                    for (int64_t t = 0; t < M_TILE; ++t)
                        sum[t][v] += q * a[t * words * PER_WORD + place];
                }
        }
        for (int64_t t = 0; t < M_TILE; ++t)
            for (int64_t v = 0; v < vectors; ++v)
                store(part + t * WIDEST + v * LANES, sum[t][v]);
    }

    void words_of_block(float *part, int64_t word, int64_t depth, const float *a, int64_t column, int64_t width) const {
        const int32_t *from = qweight + word * n + column;
        int64_t i = 0;
        for (; i + VECTORS * LANES <= width; i += VECTORS * LANES)
            accumulate<VECTORS>(part + i, from + i, a, depth, LANES);
        for (; i < width; i += LANES)
            accumulate<1>(part + i, from + i, a, depth, width - i < LANES ? width - i : LANES);
    }

    // total[t][column] += scale * (part - zero * sum(a)) of one group
    void close_group(float *total, const float *part, int64_t row, int64_t group, int64_t column, int64_t width) const {
        for (int64_t i = 0; i < width; i += LANES) {
            const int64_t count = width - i, at = group * n + column + i;
            const Floats scale = load_columns(scales + at, count);
            const Floats zero = zeros ? load_columns(zeros + at, count) - MIDDLE : Floats{};
            for (int64_t t = 0; t < M_TILE; ++t) {
                float *place = total + t * WIDEST + i;
                const Floats centred = load(part + t * WIDEST + i) - zero * sums[(row + t) * groups + group];
                store(place, load(place) + scale * centred);
            }
        }
    }

    void store_tile(const float *total, int64_t row, int64_t column, int64_t width) const {
        for (int64_t t = 0; t < M_TILE && row + t < m; ++t)
            for (int64_t i = 0; i < width; i += LANES) {
                T *to = y + (row + t) * n + column + i;
                Floats v = load(total + t * WIDEST + i);
                if (bias)
                    v += load_columns(bias + column + i, width - i);
                if (width - i < LANES)
                    store_some(to, v, width - i);
                else
                    store(to, v);
            }
    }

    void tile(int64_t row, int64_t column, int64_t width, int64_t depth) const {
        alignas(64) float total[M_TILE * WIDEST], part[M_TILE * WIDEST];
        clear(total, width);
        for (int64_t group = 0; group < groups; ++group) {
            clear(part, width);
            const int64_t end = (group + 1) * words_a_group < words ? (group + 1) * words_a_group : words;
            for (int64_t word = group * words_a_group; word < end; word += depth) {
                const int64_t now = end - word < depth ? end - word : depth;
                words_of_block(part, word, now, wide + (row * words + word) * PER_WORD, column, width);
            }
            close_group(total, part, row, group, column, width);
        }
        store_tile(total, row, column, width);
    }
};

// a row of wide, in the order of K that the weight has; zeros after k
inline void widen_row(float *wide, const T *a, const int32_t *order, int64_t k, int64_t padded) {
    for (int64_t i = 0; i < k; i += LANES) {
        const int64_t count = k - i < LANES ? k - i : LANES;
        T picked[LANES];
        for (int64_t j = 0; order && j < count; ++j)
            picked[j] = a[order[i + j]];
        store_some(wide + i, load_columns(order ? picked : a + i, count), count);
    }
    std::memset(wide + k, 0, (padded - k) * sizeof(float));
}

// wide and sums from a; rows from m on are zeros
inline void widen_rows(const Product &product, float *wide, float *sums, const T *a, const int32_t *order, int64_t k) {
    const int64_t rows = (product.m + M_TILE - 1) / M_TILE * M_TILE, padded = product.words * PER_WORD;
    std::memset(wide + product.m * padded, 0, (rows - product.m) * padded * sizeof(float));
    std::memset(sums, 0, rows * product.groups * sizeof(float));
    for (int64_t row = 0; row < product.m; ++row) {
        float *to = wide + row * padded;
        widen_row(to, a + row * k, order, k, padded);
        for (int64_t group = 0; group < product.groups; ++group) {
            const int64_t begin = group * product.words_a_group * PER_WORD, most = begin + product.words_a_group * PER_WORD;
            float sum = 0;
            for (int64_t i = begin; i < (most < padded ? most : padded); ++i)
                sum += to[i];
            sums[row * product.groups + group] = sum;
        }
    }
}

inline void packed_gemm(T *y, const T *a, const int32_t *qweight, const T *scales, const Z *zeros, const int32_t *order,
                        const T *bias, float *wide, float *sums, int64_t m, int64_t n, int64_t k, int64_t group_size,
                        int64_t block, int64_t depth, int64_t threads) {
    const int64_t words = (k + PER_WORD - 1) / PER_WORD;
    const int64_t groups = (k + group_size - 1) / group_size, words_a_group = groups == 1 ? words : group_size / PER_WORD;
    const Product product{y, qweight, scales, zeros, bias, wide, sums, m, n, words, groups, words_a_group};
    widen_rows(product, wide, sums, a, order, k);
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
