// Products of activations in pieces of bfloat16 and levels that bfloat16 holds exactly: what both loops share.
#include <immintrin.h>

namespace {

typedef ELEMENT T;
typedef ZERO Z;

constexpr int64_t PER_WORD = 32 / BITS;
// bfloat16 has 8 bits, float16 11, float32 24: cut into pieces, each is their exact sum
constexpr int64_t PIECES = PIECES_OF_A;
constexpr float MIDDLE = BITS == 1 ? 0.5f : BITS == 16 ? 0.0f : static_cast<float>(1 << (BITS < 16 ? BITS - 1 : 0));

constexpr float NORMAL[16] = {-1.0f, -0.6961928009986877f, -0.5250730514526367f, -0.39491748809814453f,
                              -0.28444138169288635f, -0.18477343022823334f, -0.09105003625154495f, 0.0f,
                              0.07958029955625534f, 0.16093020141124725f, 0.24611230194568634f, 0.33791524171829224f,
                              0.44070982933044434f, 0.5626170039176941f, 0.7229568362236023f, 1.0f};

inline uint16_t as_bfloat16(float value) {
    const uint32_t word = bits_as<uint32_t>(value);
    return static_cast<uint16_t>((word + 0x7fff + ((word >> 16) & 1)) >> 16);
}

// bfloat16 of what the low bits of an element are worth, whatever the bits above are; 8 bits: of their low nibble
struct Table {
    alignas(64) uint16_t entries[32], high[32];
    Table() {
        for (int i = 0; i < 32; ++i) {
            const int low = i & ((1 << (BITS < 4 ? BITS : 4)) - 1);
            const float level = NF4 ? NORMAL[low] : BITS == 8 ? static_cast<float>(low) : static_cast<float>(low) - MIDDLE;
            entries[i] = as_bfloat16(level);
            high[i] = as_bfloat16(static_cast<float>(16 * (i & 15)) - 128.0f);
        }
    }
};

struct Product {
    T *y;
    const int32_t *panels; // [panels of n, groups, padded / PER_WORD, 16]
    const T *scales;       // null: all 1
    const Z *zeros;        // null: the zero point is in the middle
    const T *bias;         // null: there is none
    const int32_t *order;  // null: K as it is
    uint16_t *packed;      // pieces of a, each group padded with zeros: rows, or tiles of 16 tokens (tile_of)
    float *sums;           // of each row, group after group
    int64_t m, n, k, group_size, groups, padded, rows, chunk;
    Table table;

    int64_t width() const { return groups * padded * PIECES; }

    // the first element of a step of a group of a row in `packed`; its other pieces follow, each after a tile or a step
    uint16_t *place(int64_t row, int64_t group, int64_t step) const {
        if (!TILED)
            return packed + row * width() + (group * padded + step * STEP) * PIECES;
        const int64_t steps = padded / STEP;
        const int64_t tile = tile_of(row / 16, group * steps, step, steps, chunk, rows / 16);
        return packed + (tile * PIECES * 16 + row % 16) * STEP;
    }

    // 16 elements from the i-th of a row, of which `count` are there
    Floats load_tokens(const T *a, int64_t i, int64_t count) const {
        if (count <= 0)
            return Floats{};
        if (!HAS_ORDER)
            return load_columns(a + i, count);
        T picked[LANES];
        for (int64_t j = 0; j < count && j < LANES; ++j)
            picked[j] = a[order[i + j]];
        return load_columns(picked, count);
    }

    // `STEP` elements and their pieces, 16 at a time
    void pack_row(const T *a, int64_t row) const {
        constexpr int64_t piece = TILED ? 16 * STEP : STEP;
        for (int64_t group = 0; group < groups; ++group) {
            Floats sum{};
            const int64_t first = group * group_size, rest = k - first, size = rest < group_size ? rest : group_size;
            for (int64_t at = 0; at < padded; at += 16) {
                const int64_t count = row < m ? size - at : 0;
                Floats x = load_tokens(a + row * k, first + at, count);
                sum += x;
                uint16_t *to = place(row, group, at / STEP) + at % STEP;
                for (int64_t i = 0; i < PIECES; ++i) {
                    const Words cut = bits_as<Words>(x) & 0xffff0000u;
                    const Halves half = truncated(cut >> 16);
                    std::memcpy(to + i * piece, &half, sizeof half);
                    x -= bits_as<Floats>(cut);
                    x = where(x == x, x, Floats{}); // an infinity less itself
                }
            }
            sums[group * rows + row] = sum_of(sum);
        }
    }

    Floats scale(int64_t column, int64_t group) const {
        return HAS_SCALES ? load_columns(scales + group * n + column, n - column) : all(1.0f);
    }

    // zero point less the middle
    Floats offset(int64_t column, int64_t group) const {
        return HAS_ZEROS ? load_columns(zeros + group * n + column, n - column) - MIDDLE : Floats{};
    }

    float token_scale(int64_t, int64_t) const { return 1.0f; }

    void finish(Floats total, int64_t row, int64_t column) const {
        if (HAS_BIAS)
            total += load_columns(bias + column, n - column);
        store_columns(y + row * n + column, total, n - column);
    }
};

} // namespace
