// Cross-entropy of rows of neighbouring logits, fp32 accumulation. ELEMENT is the element type, BLOCK the columns whose
// maximum is known before their exponentials are summed. REDUCTION: 0 for none, 1 for the sum, 2 for the mean. Rows whose
// target is ignored are not read. A NaN, a +inf or nothing but -inf makes a row NaN, a target outside of the columns, too.
#include <cmath>

namespace {

using T = ELEMENT;

// of one piece of a row
struct Part {
    float most, sum, weighed, unused;
};

inline float smoothed_sum(const T *x, const T *weight, int64_t cols) {
    if (!weight)
        return sum_of(reduce(x, cols, 0, 0, [](Floats sum, Floats v, int64_t) { return sum + v; }, add));
    return sum_of(reduce(
        x, cols, 0, 0,
        [=](Floats sum, Floats v, int64_t i) {
            return sum + v * load_part(weight + i, cols - i < LANES ? cols - i : LANES);
        },
        add));
}

// `weight` null: each class weighs 1. The second read of a block comes from the first cache.
inline Part part_of(const T *x, const T *weight, int64_t cols, bool smoothed) {
    Part part{-INFINITY, 0, 0, 0};
    for (int64_t first = 0; first < cols; first += BLOCK) {
        const int64_t count = cols - first < BLOCK ? cols - first : BLOCK;
        const float here = row_max(x + first, count), most = here > part.most ? here : part.most;
        // nothing but -inf so far counts from 0, so that -inf - -inf never happens; the sum is 0, or NaN if it holds one
        const float base = most == -INFINITY ? 0 : most;
        const float sum = sum_of(reduce(
            x + first, count, 0, -INFINITY, [=](Floats sum, Floats v, int64_t) { return sum + exponential(v - base); },
            add));
        part.sum = (most == part.most ? part.sum : part.sum * std::exp(part.most - most)) + sum;
        part.most = most;
        if (smoothed)
            part.weighed += smoothed_sum(x + first, weight ? weight + first : nullptr, count);
    }
    return part;
}

struct Row {
    float lse, weighed;
};

inline Row merged(const Part *parts, int64_t pieces) {
    float most = -INFINITY;
    for (int64_t i = 0; i < pieces; ++i)
        most = parts[i].most > most ? parts[i].most : most;
    double sum = 0, weighed = 0;
    for (int64_t i = 0; i < pieces; ++i) {
        sum += parts[i].most == -INFINITY ? parts[i].sum : parts[i].sum * std::exp(parts[i].most - most);
        weighed += parts[i].weighed;
    }
    const double lse = most == -INFINITY ? NAN : most + std::log(sum);
    return {static_cast<float>(lse), static_cast<float>(weighed)};
}

inline float element(const T *from) { return load_some(from, 1, 0)[0]; }
inline void put(T *to, float value) { store_some(to, all(value), 1); }

// losses: fp32 [rows] if they are reduced; parts: fp32 [rows, pieces, 4]
inline void cross_entropy(T *loss, float *lse, float *losses, float *parts, const T *logits, const int64_t *target, const T *weight, int64_t ignored, float smoothing, int64_t rows, int64_t cols, int64_t pieces, int64_t threads) {
    const bool smoothed = smoothing > 0;
    Part *all_parts = reinterpret_cast<Part *>(parts);
    registry::parallel(threads, [=](int64_t part, int64_t count) {
        const registry::Span mine = registry::share(rows * pieces, part, count);
        for (int64_t i = mine.begin; i < mine.end; ++i) {
            const int64_t row = i / pieces;
            if (target[row] == ignored)
                continue;
            const registry::Span span = registry::share(cols, i % pieces, pieces);
            const T *x = logits + row * cols + span.begin;
            all_parts[i] = part_of(x, weight ? weight + span.begin : nullptr, span.end - span.begin, smoothed);
        }
    });
    const float mass = smoothed && weight ? smoothed_sum(weight, nullptr, cols) : static_cast<float>(cols);
    registry::parallel(threads, [=](int64_t part, int64_t count) {
        const registry::Span mine = registry::share(rows, part, count);
        for (int64_t row = mine.begin; row < mine.end; ++row) {
            const int64_t at = target[row];
            Row whole{0, 0};
            float value = 0;
            if (at != ignored) {
                whole = merged(all_parts + row * pieces, pieces);
                value = NAN;
                if (at >= 0 && at < cols) {
                    value = whole.lse - element(logits + row * cols + at);
                    if (weight)
                        value *= element(weight + at);
                    const float even = (whole.lse * mass - whole.weighed) / static_cast<float>(cols);
                    value = smoothed ? (1 - smoothing) * value + smoothing * even : value;
                }
            }
            lse[row] = whole.lse;
            if (REDUCTION)
                losses[row] = value;
            else
                put(loss + row, value);
        }
    });
    if (REDUCTION) {
        double total = 0, divisor = 0;
        for (int64_t row = 0; row < rows; ++row) {
            const int64_t at = target[row];
            total += losses[row];
            if (at != ignored && at >= 0 && at < cols)
                divisor += weight ? element(weight + at) : 1;
        }
        put(loss, static_cast<float>(REDUCTION == 2 ? total / divisor : total));
    }
}

} // namespace
