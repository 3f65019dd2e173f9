// residual += x, then x = residual / sqrt(mean(residual^2) + eps) * (weight + offset) over rows of neighbouring elements,
// in fp32; the norm is of the rounded sum. ELEMENT is the element type, WEIGHT the weight's: float beside halves, or
// ELEMENT. A weight of null multiplies nothing.

namespace {

using T = ELEMENT;
using Gain = WEIGHT;

inline void row(T *x, T *residual, const Gain *weight, int64_t cols, float eps, float offset) {
    write<false>(residual, cols, [=](int64_t i, int64_t count) {
        return load_part(x + i, count) + load_part(residual + i, count);
    });
    const float squares =
        sum_of(reduce(residual, cols, 0, 0, [](Floats sum, Floats v, int64_t) { return sum + v * v; }, add));
    const float scale = 1.0f / std::sqrt(squares / static_cast<float>(cols) + eps);
    if (weight)
        write<false>(x, cols, [=](int64_t i, int64_t count) {
            return load_part(residual + i, count) * scale * (load_part(weight + i, count) + offset);
        });
    else
        write<false>(x, cols, [=](int64_t i, int64_t count) { return load_part(residual + i, count) * scale; });
}

inline void fused_add_rms_norm(T *x, T *residual, const Gain *weight, float eps, float offset, int64_t rows, int64_t cols, int64_t threads) {
    registry::parallel(threads < rows ? threads : rows, [=](int64_t part, int64_t parts) {
        const registry::Span mine = registry::share(rows, part, parts);
        for (int64_t at = mine.begin * cols; at < mine.end * cols; at += cols)
            row(x + at, residual + at, weight, cols, eps, offset);
    });
}

} // namespace
