// Products of int8 activations and unsigned levels of 4 or 8 bits, summed exactly in int32: what both loops share.
namespace {

typedef ELEMENT T;
typedef SCALE S;
typedef ZERO Z;

constexpr int64_t PER_WORD = 32 / BITS;
constexpr uint32_t MIDDLE = 1u << (BITS - 1);
enum ScaleKind { GROUPS, TENSOR, BLOCKS }; // of the weight; BLOCKS: of 128 columns and a group, with as many of a token

struct Product {
    T *y;
    const int32_t *panels; // [panels of n, groups, padded / PER_WORD, 16]
    const S *scales;
    const Z *zeros;       // null: the zero point is in the middle
    const T *bias;        // null: there is none
    const float *scale_a; // one a token, or for all, or of each group of each token
    int8_t *packed;       // a, each group padded with zeros: rows, or tiles of 16 tokens (tile_of)
    int32_t *sums;        // of each row, group after group
    int64_t m, n, k, group_size, groups, padded, rows, chunk;

    int64_t width() const { return groups * padded; }

    // the element `at` of a group of a row in `packed`; of tiles, the first of a step
    int8_t *place(int64_t row, int64_t group, int64_t at) const {
        if (!TILED)
            return packed + row * width() + group * padded + at;
        const int64_t steps = padded / DEPTH;
        const int64_t tile = tile_of(row / 16, group * steps, at / DEPTH, steps, chunk, rows / 16);
        return packed + (tile * 16 + row % 16) * DEPTH;
    }

    void pack_row(const int8_t *a, int64_t row) const {
        const int64_t run = TILED ? DEPTH : padded;
        for (int64_t group = 0; group < groups; ++group) {
            int32_t sum = 0;
            const int64_t first = group * group_size, rest = k - first, size = rest < group_size ? rest : group_size;
            for (int64_t at = 0; at < padded; at += run) {
                int8_t *to = place(row, group, at);
                const int64_t left = row < m ? size - at : 0, count = left < 0 ? 0 : left < run ? left : run;
                const int8_t *from = a + row * k + first + at;
                std::memcpy(to, from, count);
                std::memset(to + count, 0, run - count);
                for (int64_t i = 0; i < count; ++i)
                    sum += from[i];
            }
            sums[group * rows + row] = sum;
        }
    }

    Floats scale(int64_t column, int64_t group) const {
        if constexpr (SCALES == TENSOR)
            return all(*reinterpret_cast<const float *>(scales));
        else if constexpr (SCALES == BLOCKS)
            return all(reinterpret_cast<const float *>(scales)[column / 128 * groups + group]);
        else
            return load_columns(scales + group * n + column, n - column);
    }

    // zero point less the middle
    Floats offset(int64_t column, int64_t group) const {
        if (!HAS_ZEROS)
            return Floats{};
        return load_columns(zeros + group * n + column, n - column) - static_cast<float>(MIDDLE);
    }

    // what each token's parts of a group are multiplied with, beside the weight's scale
    float token_scale(int64_t row, int64_t group) const {
        return SCALES == BLOCKS && row < m ? scale_a[row * groups + group] : 1.0f;
    }

    void finish(Floats total, int64_t row, int64_t column) const {
        if constexpr (SCALES != BLOCKS)
            total *= scale_a[STATIC ? 0 : row];
        if (bias)
            total += load_columns(bias + column, n - column);
        store_columns(y + row * n + column, total, n - column);
    }
};

// The middle is taken off in int32, modulo 2^32: only the difference has to fit.
inline Floats centred(Ints levels, int32_t sum) {
    const Words taken = bits_as<Words>(levels) - MIDDLE * static_cast<uint32_t>(sum);
    return __builtin_convertvector(bits_as<Ints>(taken), Floats);
}

} // namespace
