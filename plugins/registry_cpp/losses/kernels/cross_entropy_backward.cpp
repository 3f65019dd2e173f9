// The gradient of cross-entropy by its logits, from the log-sum-exp of each row, in fp32. ELEMENT is the element type.
// REDUCTION: 0 for none, 1 for the sum, 2 for the mean. Ignored rows are not read, and get 0; rows whose target is outside
// of the columns get NaN.
#include <cmath>

namespace {

using T = ELEMENT;

inline float element(const T *from) { return load_some(from, 1, 0)[0]; }

// g * (p * of_all - even * w - [column target] * of_target); `target` counts from the first column of the piece
struct Slope {
    float factor, lse, of_all, of_target, even;
    int64_t target;
};

template <bool past> inline void piece(T *out, const T *x, const T *weight, int64_t cols, Slope slope) {
    write<past>(out, cols, [=](int64_t i, int64_t count) {
        Floats v = exponential(load_part(x + i, count) - slope.lse) * slope.of_all;
        if (slope.even > 0)
            v -= weight ? load_part(weight + i, count) * slope.even : all(slope.even);
        if (static_cast<uint64_t>(slope.target - i) < static_cast<uint64_t>(LANES))
            v[slope.target - i] -= slope.of_target;
        return v * slope.factor;
    });
}

template <bool past>
inline void pieces_of(T *grad, const T *grad_loss, const T *logits, const int64_t *target, const T *weight, const float *lse, int64_t ignored, float smoothing, int64_t cols, int64_t pieces, float divisor, float mass, registry::Span mine) {
    for (int64_t i = mine.begin; i < mine.end; ++i) {
        const int64_t row = i / pieces, at = target[row];
        const registry::Span span = registry::share(cols, i % pieces, pieces);
        const int64_t first = row * cols + span.begin, count = span.end - span.begin;
        if (at == ignored) {
            write<past>(grad + first, count, [](int64_t, int64_t) { return all(0); });
            continue;
        }
        const bool inside = at >= 0 && at < cols;
        Slope slope;
        slope.factor = inside ? element(REDUCTION ? grad_loss : grad_loss + row) / divisor : NAN;
        slope.lse = lse[row];
        slope.of_target = (1 - smoothing) * (weight && inside ? element(weight + at) : 1);
        slope.even = smoothing / static_cast<float>(cols);
        slope.of_all = slope.of_target + slope.even * mass;
        slope.target = at - span.begin;
        piece<past>(grad + first, logits + first, weight ? weight + span.begin : nullptr, count, slope);
    }
    if (past)
        fence();
}

inline void cross_entropy_backward(T *grad, const T *grad_loss, const T *logits, const int64_t *target, const T *weight, const float *lse, int64_t ignored, float smoothing, int64_t rows, int64_t cols, int64_t pieces, bool stream, int64_t threads) {
    double counted = REDUCTION == 2 ? 0 : 1, mass = weight ? 0 : static_cast<double>(cols);
    for (int64_t row = 0; REDUCTION == 2 && row < rows; ++row) {
        const int64_t at = target[row];
        if (at != ignored && at >= 0 && at < cols)
            counted += weight ? element(weight + at) : 1;
    }
    for (int64_t col = 0; weight && smoothing > 0 && col < cols; ++col)
        mass += element(weight + col);
    const float divisor = static_cast<float>(counted), whole = static_cast<float>(mass);
    registry::parallel(threads, [=](int64_t part, int64_t count) {
        const registry::Span mine = registry::share(rows * pieces, part, count);
        if (stream)
            pieces_of<true>(grad, grad_loss, logits, target, weight, lse, ignored, smoothing, cols, pieces, divisor, whole, mine);
        else
            pieces_of<false>(grad, grad_loss, logits, target, weight, lse, ignored, smoothing, cols, pieces, divisor, whole, mine);
    });
}

} // namespace
