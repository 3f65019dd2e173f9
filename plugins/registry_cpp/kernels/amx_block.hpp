// The loops of a product in AMX tiles, 32 tokens by 32 columns of sums at a time.
//
// Before it: Product (panels, groups, padded, rows, m, n, scale, offset, token_scale, packed, sums, finish), Sum (the
// type of sums), MULTIPLY (the instruction), DEPTH (bytes of K in a tile), STEP (elements of K in a tile), PIECES (tiles
// of activations a step), DIRECT (panels are tiles already), expand(product, to, panel, steps), level(sums, sum).
namespace {

constexpr int64_t TILE = 16 * DEPTH; // bytes of a tile, of activations or of weights
constexpr int64_t WORDS = STEP / PER_WORD * PANEL;
constexpr int64_t PLACES = 32; // columns of a pair of panels

// sums += a . b over `steps` tiles along K, of 16 tokens or of 32
template <int M_TILES>
inline void multiply(const int8_t *a, int64_t a_next, const int8_t *b, int64_t b_next, int64_t steps) {
    for (int64_t step = 0; step < steps; ++step, b += TILE) {
        TILE_LOAD(6, b, 64);
        TILE_LOAD(7, b + b_next, 64);
        for (int64_t piece = 0; piece < PIECES; ++piece, a += TILE) {
            TILE_LOAD(4, a, DEPTH);
            TILE_MULTIPLY(MULTIPLY, 0, 4, 6);
            TILE_MULTIPLY(MULTIPLY, 1, 4, 7);
            if constexpr (M_TILES > 1) {
                TILE_LOAD(5, a + a_next, DEPTH);
                TILE_MULTIPLY(MULTIPLY, 2, 5, 6);
                TILE_MULTIPLY(MULTIPLY, 3, 5, 7);
            }
        }
    }
}

// rows of 32 sums: of the first panel's 16 columns, then of the second's
template <int M_TILES, class Sum> inline void load_sums(const Sum *from) {
    TILE_LOAD(0, from, 128);
    TILE_LOAD(1, from + 16, 128);
    if constexpr (M_TILES > 1) {
        TILE_LOAD(2, from + 16 * PLACES, 128);
        TILE_LOAD(3, from + 16 * PLACES + 16, 128);
    }
}

template <int M_TILES, class Sum> inline void store_sums(Sum *to) {
    TILE_STORE(0, to, 128);
    TILE_STORE(1, to + 16, 128);
    if constexpr (M_TILES > 1) {
        TILE_STORE(2, to + 16 * PLACES, 128);
        TILE_STORE(3, to + 16 * PLACES + 16, 128);
    }
}

// The outputs of a block of tokens and of a pair of panels.
struct Block {
    const Product &product;
    float *totals;    // [tokens of the block, 32]
    Sum *sums;        // the same places: sums of a group that is not complete
    int8_t *expanded; // two panels, the tiles of a chunk each
    int64_t row, rows, pair;
    // sums of a group that are not in the totals yet
    struct {
        const Sum *sums;
        int64_t from, group, count;
    } complete{};

    int64_t steps() const { return product.padded / STEP; }
    int64_t next_panel() const { return product.groups * steps() * WORDS; }
    int64_t place(int64_t from) const { return (from - row) * PLACES; }

    int64_t chunk_at(int64_t step) const {
        const int64_t left = steps() - step;
        return left < product.chunk ? left : product.chunk;
    }

    const int8_t *tokens(int64_t from, int64_t group, int64_t step) const {
        const int64_t tile = tile_of(from / 16, group * steps(), step, steps(), product.chunk, product.rows / 16);
        return reinterpret_cast<const int8_t *>(product.packed) + tile * PIECES * TILE;
    }

    const int32_t *panel(int64_t group, int64_t step) const {
        return product.panels + pair * 2 * next_panel() + (group * steps() + step) * WORDS;
    }

    // totals (+)= scale * (sums - offset * the tokens' sum) of one group; rows after m have sums of 0
    // COUNT: tokens, or 0 where only `complete` knows
    template <bool FIRST, int COUNT> void add() const {
        const int64_t group = complete.group, count = COUNT ? COUNT : complete.count, at = place(complete.from);
        const auto *token_sums = product.sums + group * product.rows + complete.from;
        for (int64_t p = 0; p < 2; ++p) {
            const int64_t column = (pair * 2 + p) * PANEL;
            if (column >= product.n)
                break;
            const Floats scale = product.scale(column, group), offset = product.offset(column, group) * scale;
            float *total = totals + at + p * 16;
            const Sum *sum = complete.sums + p * 16;
            for (int64_t t = 0; t < count; ++t) {
                const Floats scaled =
                    SCALES == BLOCKS ? scale * product.token_scale(complete.from + t, group) : scale;
                Floats v = level(sum + t * PLACES, token_sums[t]) * scaled;
                if constexpr (!FIRST)
                    v += load(total + t * PLACES);
                if constexpr (HAS_ZEROS)
                    v -= offset * static_cast<float>(token_sums[t]);
                store(total + t * PLACES, v);
            }
        }
    }

    template <bool FIRST> void add_any() const {
        if (complete.count == 32)
            add<FIRST, 32>();
        else
            add<FIRST, 0>();
    }

    // The vector unit adds a group's sums while the tiles are busy with the next ones.
    void add_complete() {
        if (complete.count && complete.group)
            add_any<false>();
        else if (complete.count)
            add_any<true>();
        complete.count = 0;
    }

    template <int M_TILES> void keep(Sum *to, int64_t from, int64_t group) {
        add_complete();
        store_sums<M_TILES>(to);
        complete = {to, from, group, rows < 16 ? rows : 16 * M_TILES};
    }

    int64_t panel_bytes() const { return DIRECT ? next_panel() * 4 : product.chunk * TILE; }

    const int8_t *weights(int64_t group, int64_t step, int64_t count) const {
        const int32_t *from = panel(group, step);
        if constexpr (DIRECT)
            return reinterpret_cast<const int8_t *>(from);
        for (int64_t p = 0; p < 2; ++p)
            expand(product, expanded + p * product.chunk * TILE, from + p * next_panel(), count);
        return expanded;
    }

    // Few tokens: their sums stay in the tiles while the weight is expanded and passes by.
    template <int M_TILES> void stay() {
        for (int64_t group = 0; group < product.groups; ++group) {
            clear_sums();
            for (int64_t step = 0; step < steps(); step += product.chunk) {
                const int64_t count = chunk_at(step);
                const int8_t *b = weights(group, step, count);
                multiply<M_TILES>(tokens(row, group, step), count * PIECES * TILE, b, panel_bytes(), count);
            }
            keep<M_TILES>(sums + group % 2 * 32 * PLACES, row, group);
        }
        add_complete();
    }

    template <int M_TILES>
    void pass(int64_t from, int64_t group, int64_t step, int64_t count, const int8_t *b) {
        Sum *kept = sums + place(from);
        if (step)
            load_sums<M_TILES>(kept);
        else
            clear_sums();
        multiply<M_TILES>(tokens(from, group, step), count * PIECES * TILE, b, panel_bytes(), count);
        if (step + count < steps())
            store_sums<M_TILES>(kept);
        else
            keep<M_TILES>(kept, from, group);
    }

    // Many tokens: a chunk of a pair of panels stays in the first cache while they pass by.
    void pass_all(int64_t group, int64_t step) {
        const int64_t count = chunk_at(step), end = row + rows;
        const int8_t *b = weights(group, step, count);
        for (int64_t from = row; from < end; from += 32)
            if (from + 16 < end)
                pass<2>(from, group, step, count, b);
            else
                pass<1>(from, group, step, count, b);
    }

    void run() {
        if (rows <= 32)
            rows <= 16 ? stay<1>() : stay<2>();
        else
            for (int64_t group = 0; group < product.groups; ++group)
                for (int64_t step = 0; step < steps(); step += product.chunk)
                    pass_all(group, step);
        add_complete();
        for (int64_t t = row; t < row + rows; ++t)
            for (int64_t column = pair * PLACES, p = 0; p < 2 && column + p * 16 < product.n; ++p)
                product.finish(load(totals + place(t) + p * 16), t, column + p * 16);
    }
};

// All outputs, by blocks of `block` tokens, a multiple of 32, and pairs of panels.
inline void multiply_blocks(const Product &product, float *totals, Sum *sums, int8_t *expanded, int64_t block,
                            int64_t threads) {
    const int64_t pairs = parts_of(product.n, PLACES);
    const TileShapes shapes(DEPTH, product.m < 16 ? product.m : 16);
    share_items(pairs * parts_of(product.m, block), threads, [&](int64_t item, int64_t thread) {
        const Tiles tiles(shapes);
        const int64_t row = item / pairs * block, room = thread * block * PLACES, left = product.m - row;
        Block one{product, totals + room, sums + room, expanded + thread * product.chunk * 2 * TILE, row,
                  left < block ? left : block, item % pairs, {}};
        one.run();
    });
}

} // namespace
