// softmax over rows of neighbouring elements, fp32 accumulation. A NaN, a +inf or nothing but -inf makes a row NaN.
// ELEMENT is the element type.
#include <cmath>
#include <vector>

namespace {

using T = ELEMENT;

template <class T> inline float sum_of_exponentials(const T *x, int64_t cols, float most) {
    return sum_of(reduce(
        x, cols, 0, -INFINITY, [=](Floats sum, Floats v, int64_t) { return sum + exponential(v - most); }, add));
}

// exp(x - max) is computed twice and nothing is kept
template <bool past> inline void row_twice(T *y, const T *x, int64_t cols) {
    const float most = row_max(x, cols), scale = 1.0f / sum_of_exponentials(x, cols, most);
    write<past>(y, cols, [=](int64_t i, int64_t count) { return exponential(load_part(x + i, count) - most) * scale; });
}

// exp(x - max) is computed once and kept
template <bool past> inline void row_kept(T *y, const T *x, int64_t cols, float *kept) {
    const float most = row_max(x, cols);
    const Floats sum = reduce(
        x, cols, 0, -INFINITY,
        [=](Floats partial, Floats v, int64_t i) {
            const Floats e = exponential(v - most);
            store(kept + i, e);
            return partial + e;
        },
        add);
    const float scale = 1.0f / sum_of(sum);
    write<past>(y, cols, [=](int64_t i, int64_t) { return load(kept + i) * scale; });
}

template <bool past> inline void rows_of(T *y, const T *x, registry::Span rows, int64_t cols, float *kept) {
    for (int64_t row = rows.begin; row < rows.end; ++row) {
        if (kept)
            row_kept<past>(y + row * cols, x + row * cols, cols, kept);
        else
            row_twice<past>(y + row * cols, x + row * cols, cols);
    }
    if (past)
        fence();
}

// Rows are dealt to the threads.
inline void deal(T *y, const T *x, float *kept, int64_t rows, int64_t cols, bool stream, int64_t threads) {
    const int64_t pitch = (cols + LANES - 1) / LANES * LANES;
    registry::parallel(threads < rows ? threads : rows, [=](int64_t part, int64_t parts) {
        const registry::Span mine = registry::share(rows, part, parts);
        float *own = kept ? kept + part * pitch : nullptr;
        if (stream)
            rows_of<true>(y, x, mine, cols, own);
        else
            rows_of<false>(y, x, mine, cols, own);
    });
}

// kept: [threads, cols rounded up to whole vectors]
inline void softmax_kept(T *y, const T *x, float *kept, int64_t rows, int64_t cols, bool stream, int64_t threads) {
    deal(y, x, kept, rows, cols, stream, threads);
}

inline void softmax_twice(T *y, const T *x, int64_t rows, int64_t cols, bool stream, int64_t threads) {
    deal(y, x, nullptr, rows, cols, stream, threads);
}

struct alignas(64) Partial {
    float most, sum;
};

// A piece of nothing but -inf counts from 0, so that -inf - -inf never happens; its sum is 0, or NaN if it holds one.
inline Partial partial(const T *x, int64_t cols) {
    const float most = row_max(x, cols), base = most == -INFINITY ? 0 : most;
    return {most, sum_of_exponentials(x, cols, base)};
}

inline Partial merged(const std::vector<Partial> &pieces) {
    Partial whole{-INFINITY, 0};
    for (const Partial &piece : pieces)
        whole.most = piece.most > whole.most ? piece.most : whole.most;
    for (const Partial &piece : pieces)
        whole.sum += piece.most == -INFINITY ? piece.sum : piece.sum * std::exp(piece.most - whole.most);
    return whole;
}

// The columns of each row are dealt to the threads in pieces: for few, long rows.
inline void softmax_columns(T *y, const T *x, int64_t rows, int64_t cols, int64_t pieces, int64_t threads) {
    std::vector<Partial> partials(pieces);
    const auto each_piece = [=](auto body) {
        registry::parallel(threads, [=](int64_t part, int64_t parts) {
            for (int64_t piece = part; piece < pieces; piece += parts)
                body(piece, registry::share(cols, piece, pieces));
        });
    };
    for (int64_t row = 0; row < rows; ++row, x += cols, y += cols) {
        each_piece([&, x](int64_t piece, registry::Span span) {
            partials[piece] = partial(x + span.begin, span.end - span.begin);
        });
        const Partial whole = merged(partials);
        const float most = whole.most, scale = 1.0f / whole.sum;
        each_piece([=](int64_t, registry::Span span) {
            write<false>(y + span.begin, span.end - span.begin, [=](int64_t i, int64_t count) {
                return exponential(load_part(x + span.begin + i, count) - most) * scale;
            });
        });
    }
}

} // namespace
