// A token of each row of logits, of those that top_k and top_p keep. ELEMENT is the type of logits. Rows with NaN or
// +inf, or of -inf alone, get some column.
#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

namespace {

using T = ELEMENT;

struct Token {
    float logit, weight;
};

// The least logit of the most probable tokens whose weights add up to `target`: partitions by a pivot,
// of which one side has the answer. Equal tokens stay together.
inline float least_of_mass(std::vector<Token> &tokens, double target) {
    size_t begin = 0, end = tokens.size();
    double above = 0;
    while (end - begin > 1) {
        const float one = tokens[begin].logit, other = tokens[(begin + end) / 2].logit, third = tokens[end - 1].logit;
        const float pivot = std::max(std::min(one, other), std::min(std::max(one, other), third));
        const auto from = tokens.begin() + begin, to = tokens.begin() + end;
        const auto same = std::partition(from, to, [=](const Token &token) { return token.logit > pivot; });
        const auto rest = std::partition(same, to, [=](const Token &token) { return token.logit == pivot; });
        double greater = above, equal = 0;
        for (auto token = from; token != same; ++token)
            greater += token->weight;
        for (auto token = same; token != rest; ++token)
            equal += token->weight;
        if (greater >= target && same != from) {
            end = same - tokens.begin();
        } else if (greater + equal >= target || rest == to) {
            return pivot;
        } else {
            above = greater + equal;
            begin = rest - tokens.begin();
        }
    }
    return tokens[begin].logit;
}

inline int32_t draw(const std::vector<float> &weights, double uniform) {
    double mass = 0, passed = 0;
    for (const float weight : weights)
        mass += weight;
    int32_t last = 0;
    for (size_t i = 0; i < weights.size(); ++i) {
        if (weights[i] <= 0)
            continue;
        last = static_cast<int32_t>(i);
        passed += weights[i];
        if (passed > uniform * mass)
            break;
    }
    return last;
}

// the logits of a row in float; their largest
inline float widened(std::vector<float> &to, const T *from, int64_t cols) {
    Floats most = all(-INFINITY);
    int64_t i = 0;
    for (; i + LANES <= cols; i += LANES) {
        const Floats value = load(from + i);
        most = where(value > most, value, most);
        store(to.data() + i, value);
    }
    float greatest = max_of(most);
    if (i < cols) {
        const Floats value = load_some(from + i, cols - i, 0);
        for (int64_t j = 0; i + j < cols; ++j) {
            to[i + j] = value[j];
            greatest = value[j] > greatest ? value[j] : greatest;
        }
    }
    return greatest;
}

struct Row {
    std::vector<float> logits, weights;
    std::vector<Token> tokens;

    int32_t sample(const T *from, int64_t cols, const int32_t *top_k, const float *top_p, float uniform) {
        logits.resize(cols);
        weights.resize(cols);
        const float most = widened(logits, from, cols);
        if (!(most > -INFINITY && most < INFINITY))
            return 0;
        float least = -INFINITY;
        if (top_k && *top_k < cols) {
            // in the place of weights, which come after; NaN has no order
            for (int64_t i = 0; i < cols; ++i)
                weights[i] = logits[i] == logits[i] ? logits[i] : -INFINITY;
            const int64_t place = *top_k > 1 ? *top_k - 1 : 0;
            std::nth_element(weights.begin(), weights.begin() + place, weights.end(), std::greater<float>());
            least = weights[place];
        }
        int64_t i = 0;
        for (; i + LANES <= cols; i += LANES)
            store(weights.data() + i, exponential(load(logits.data() + i) - most));
        for (; i < cols; ++i)
            weights[i] = std::exp(logits[i] - most);
        if (top_p && *top_p < 1) {
            tokens.clear();
            double mass = 0;
            for (int64_t j = 0; j < cols; ++j)
                if (logits[j] >= least) {
                    tokens.push_back({logits[j], weights[j]});
                    mass += weights[j];
                }
            const float share = *top_p > 0 ? *top_p : 0;
            least = std::max(least, least_of_mass(tokens, share * mass));
        }
        for (int64_t j = 0; j < cols; ++j)
            weights[j] = logits[j] >= least ? weights[j] : 0;
        return draw(weights, uniform);
    }
};

// Rows are dealt to the threads.
inline void top_k_top_p_sampling(int32_t *samples, const T *logits, const float *uniform, const int32_t *top_k,
                                 const float *top_p, int64_t k_step, int64_t p_step, int64_t rows, int64_t cols,
                                 int64_t threads) {
    registry::parallel(threads < rows ? threads : rows, [=](int64_t part, int64_t parts) {
        const registry::Span mine = registry::share(rows, part, parts);
        Row row;
        for (int64_t i = mine.begin; i < mine.end; ++i)
            samples[i] = row.sample(logits + i * cols, cols, top_k ? top_k + i * k_step : nullptr,
                                    top_p ? top_p + i * p_step : nullptr, uniform[i]);
    });
}

} // namespace
