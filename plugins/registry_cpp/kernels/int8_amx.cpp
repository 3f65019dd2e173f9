// int8 activations times levels of 4 or 8 bits in AMX tiles: 32 tokens by 32 columns of sums at a time.
#include <immintrin.h>

namespace {

constexpr int64_t TILE = 16 * DEPTH; // bytes of a tile, of activations or of weights

// sums += a . b over `steps` tiles along K
template <int M_TILES, int N_TILES>
inline void multiply(const int8_t *a, int64_t a_next, const int8_t *b, int64_t b_next, int64_t steps) {
    for (int64_t step = 0; step < steps; ++step, a += TILE, b += TILE) {
        TILE_LOAD(4, a, DEPTH);
        TILE_LOAD(6, b, 64);
        TILE_MULTIPLY("tdpbsud", 0, 4, 6);
        if constexpr (N_TILES > 1) {
            TILE_LOAD(7, b + b_next, 64);
            TILE_MULTIPLY("tdpbsud", 1, 4, 7);
        }
        if constexpr (M_TILES > 1) {
            TILE_LOAD(5, a + a_next, DEPTH);
            TILE_MULTIPLY("tdpbsud", 2, 5, 6);
        }
        if constexpr (M_TILES > 1 && N_TILES > 1)
            TILE_MULTIPLY("tdpbsud", 3, 5, 7);
    }
}

// Two nibbles a byte, as bytes: `bytes` of them, which may end within a word's row of 16 columns.
inline void expand(int8_t *to, const int32_t *from, int64_t steps) {
    const __m512i mask = _mm512_set1_epi8(15);
    for (int64_t row = 0; row < steps * DEPTH / 8; ++row) {
        const __m512i raw = _mm512_loadu_si512(from + row * PANEL);
        _mm512_storeu_si512(to + row * 128, _mm512_and_si512(raw, mask));
        _mm512_storeu_si512(to + row * 128 + 64, _mm512_and_si512(_mm512_srli_epi32(raw, 4), mask));
    }
}

// The outputs of a block of tokens and up to two panels.
struct Block {
    const Product &product;
    float *totals;    // [tokens of the block, 32]
    int8_t *expanded; // [2, padded * 16]
    int64_t row, rows, first;
    alignas(64) int32_t sums[4][256];

    template <int M_TILES, int N_TILES> void close(int64_t from, int64_t group) {
        store_sums<M_TILES, N_TILES>(sums);
        for (int64_t p = 0; p < N_TILES; ++p) {
            const int64_t column = (first + p) * PANEL;
            const Floats scale = product.scale(column, group), offset = product.offset(column, group);
            for (int64_t t = 0; t < 16 * M_TILES && from + t < product.m; ++t) {
                const Ints levels = bits_as<Ints>(_mm512_load_si512(sums[t / 16 * 2 + p] + t % 16 * 16));
                Floats v = product.part(levels, from + t, group, scale, offset);
                float *total = totals + (from - row + t) * 32 + p * 16;
                if (group)
                    v += load(total);
                if (group + 1 < product.groups)
                    store(total, v);
                else
                    product.finish(v, from + t, column);
            }
        }
    }

    template <int N_TILES> const int8_t *weights(int64_t group, int64_t step, int64_t steps) {
        const int64_t words = product.padded / PER_WORD, panel = product.groups * words * PANEL;
        const int32_t *from = product.panels + first * panel + (group * words + step * DEPTH / PER_WORD) * PANEL;
        if constexpr (BITS == 8)
            return reinterpret_cast<const int8_t *>(from);
        for (int64_t p = 0; p < N_TILES; ++p)
            expand(expanded + p * product.padded * 16, from + p * panel, steps);
        return expanded;
    }

    template <int M_TILES, int N_TILES> void single(int64_t group) {
        const int64_t all_steps = product.padded / DEPTH, chunk = BITS == 8 ? all_steps : CHUNK;
        const int8_t *a = product.packed + product.place(row, group * product.padded);
        clear_sums();
        for (int64_t step = 0; step < all_steps; step += chunk) {
            const int64_t steps = all_steps - step < chunk ? all_steps - step : chunk;
            const int8_t *b = weights<N_TILES>(group, step, steps);
            multiply<M_TILES, N_TILES>(a + step * TILE, product.width() * 16, b, next_panel(), steps);
        }
        close<M_TILES, N_TILES>(row, group);
    }

    template <int M_TILES, int N_TILES> void one_of_many(int64_t from, int64_t group, const int8_t *b) {
        const int8_t *a = product.packed + product.place(from, group * product.padded);
        clear_sums();
        multiply<M_TILES, N_TILES>(a, product.width() * 16, b, next_panel(), product.padded / DEPTH);
        close<M_TILES, N_TILES>(from, group);
    }

    int64_t next_panel() const { return BITS == 8 ? product.width() * 16 : product.padded * 16; }

    // Up to 32 tokens: the weight is expanded a few tiles at a time, while the sums stay in their tiles.
    template <int N_TILES> void run() {
        for (int64_t group = 0; group < product.groups; ++group) {
            if (rows <= 16)
                single<1, N_TILES>(group);
            else if (rows <= 32)
                single<2, N_TILES>(group);
            else {
                const int8_t *b = weights<N_TILES>(group, 0, product.padded / DEPTH);
                int64_t from = row;
                for (; from + 16 < row + rows; from += 32)
                    one_of_many<2, N_TILES>(from, group, b);
                if (from < row + rows)
                    one_of_many<1, N_TILES>(from, group, b);
            }
        }
    }
};

inline void int8_amx(T *y, const int8_t *a, const float *scale_a, const int32_t *panels, const S *scales,
                     const Z *zeros, const T *bias, int8_t *packed, int32_t *sums, float *totals, int8_t *expanded,
                     int64_t m, int64_t n, int64_t k, int64_t group_size, int64_t padded, int64_t block,
                     int64_t threads) {
    const int64_t groups = parts_of(k, group_size);
    const Product product{y,       panels, scales, HAS_ZEROS ? zeros : nullptr, bias, scale_a, packed, sums, m, n, k,
                          group_size, groups, padded};
    const int64_t tokens = parts_of(m, 16);
    share_items(tokens, threads, [&](int64_t item, int64_t) {
        for (int64_t row = item * 16; row < item * 16 + 16; ++row)
            product.pack_row(a, row);
    });
    const int64_t count = parts_of(n, PANEL), pairs = parts_of(count, 2);
    const TileShapes shapes(DEPTH);
    share_items(pairs * parts_of(m, block), threads, [&](int64_t item, int64_t thread) {
        const Tiles tiles(shapes);
        const int64_t row = item / pairs * block, first = item % pairs * 2;
        Block one{product, totals + thread * block * 32, expanded + thread * padded * 32, row,
                  m - row < block ? m - row : block, first, {}};
        if (count - first > 1)
            one.run<2>();
        else
            one.run<1>();
    });
}

} // namespace
