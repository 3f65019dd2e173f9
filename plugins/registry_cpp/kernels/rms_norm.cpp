// rms_norm: y = x / sqrt(mean(x^2) + eps) * weight over rows of neighbouring elements, all in fp32, rounded once.
// ELEMENT is the element type, WEIGHT the weight's: float beside halves, or ELEMENT.

namespace {

using T = ELEMENT;
using Gain = WEIGHT;

template <bool past> inline void row(T *y, const T *x, const Gain *weight, int64_t cols, float eps) {
    const float squares =
        sum_of(reduce(x, cols, 0, 0, [](Floats sum, Floats v, int64_t) { return sum + v * v; }, add));
    const float scale = 1.0f / std::sqrt(squares / static_cast<float>(cols) + eps);
    write<past>(y, cols, [=](int64_t i, int64_t count) {
        return load_part(x + i, count) * scale * load_part(weight + i, count);
    });
}

inline void rms_norm(T *y, const T *x, const Gain *weight, float eps, int64_t rows, int64_t cols, bool stream, int64_t threads) {
    registry::parallel(threads < rows ? threads : rows, [=](int64_t part, int64_t parts) {
        const registry::Span mine = registry::share(rows, part, parts);
        for (int64_t at = mine.begin * cols; at < mine.end * cols; at += cols) {
            if (stream)
                row<true>(y + at, x + at, weight, cols, eps);
            else
                row<false>(y + at, x + at, weight, cols, eps);
        }
        fence();
    });
}

} // namespace
