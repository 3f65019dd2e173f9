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
    int8_t *packed;       // a, each group padded with zeros; tiles or rows
    int32_t *sums;        // of each group of each row
    int64_t m, n, k, group_size, groups, padded;

    int64_t width() const { return groups * padded; }

    // where element `at` of a padded row stands in `packed`
    int64_t place(int64_t row, int64_t at) const {
        if constexpr (TILED)
            return ((row / 16 * width() + at / DEPTH * DEPTH) * 16) + row % 16 * DEPTH + at % DEPTH;
        else
            return row * width() + at;
    }

    void pack_row(const int8_t *a, int64_t row) const {
        const int64_t run = TILED ? DEPTH : padded;
        for (int64_t group = 0; group < groups; ++group) {
            int32_t sum = 0;
            const int64_t first = group * group_size, rest = k - first, size = rest < group_size ? rest : group_size;
            for (int64_t at = 0; at < padded; at += run) {
                int8_t *to = packed + place(row, group * padded + at);
                const int64_t left = row < m ? size - at : 0, count = left < 0 ? 0 : left < run ? left : run;
                const int8_t *from = a + row * k + first + at;
                for (int64_t i = 0; i < count; ++i) {
                    to[i] = from[i];
                    sum += from[i];
                }
                std::memset(to + count, 0, run - count);
            }
            sums[row * groups + group] = sum;
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
        if (!zeros)
            return Floats{};
        return load_columns(zeros + group * n + column, n - column) - static_cast<float>(MIDDLE);
    }

    // one group's part of an output. The middle is taken off in int32, modulo 2^32: only the difference has to fit.
    Floats part(Ints levels, int64_t row, int64_t group, Floats scale, Floats offset) const {
        const uint32_t sum = static_cast<uint32_t>(sums[row * groups + group]);
        Floats v = __builtin_convertvector(bits_as<Ints>(bits_as<Words>(levels) - MIDDLE * sum), Floats);
        if (zeros)
            v -= offset * static_cast<float>(static_cast<int32_t>(sum));
        if constexpr (SCALES == BLOCKS)
            v *= scale_a[row * groups + group];
        return v * scale;
    }

    void finish(Floats total, int64_t row, int64_t column) const {
        if constexpr (SCALES != BLOCKS)
            total *= scale_a[STATIC ? 0 : row];
        if (bias)
            total += load_columns(bias + column, n - column);
        store_columns(y + row * n + column, total, n - column);
    }
};

} // namespace
