// Attention of a few tokens to a cache. ELEMENT is the type of queries; of FLOAT8 caches each cell is float8_e4m3fn, of
// INT8 caches an int8_t.
// KV_HEADS heads of DIM elements serve GROUP heads of queries each, TOKENS tokens a sequence; PAGE slots a page, 0: no
// pages. WINDOW earlier keys are seen, -1: all. STEP keys are weighed at a time.
#include <algorithm>
#include <cmath>
#include <vector>

namespace {

using T = ELEMENT;
using Cell = std::conditional_t<FLOAT8, uint8_t, std::conditional_t<INT8, int8_t, T>>;

constexpr int64_t ROWS = GROUP * TOKENS, PITCH = (DIM + LANES - 1) / LANES * LANES;

struct Cache {
    const Cell *cells;
    int64_t outer, slot, head;
    float scale;
};

struct Levels {
    float of[256];
    Levels() {
        for (int level = 0; level < 256; ++level) {
            const int exponent = (level >> 3) & 15, mantissa = level & 7;
            float size = exponent ? std::ldexp(8.0f + mantissa, exponent - 10) : std::ldexp(float(mantissa), -9);
            size = (level & 127) == 127 ? NAN : size;
            of[level] = level & 128 ? -size : size;
        }
    }
};

// DIM elements in float; those behind them stay 0
template <class C> inline void widened(float *to, const C *from, const Levels &levels) {
    if constexpr (INT8) {
        for (int64_t i = 0; i < DIM; ++i)
            to[i] = from[i];
    } else if constexpr (sizeof(C) == 1) {
        for (int64_t i = 0; i < DIM; ++i)
            to[i] = levels.of[from[i]];
    } else {
        int64_t i = 0;
        for (; i + LANES <= DIM; i += LANES)
            store(to + i, load(from + i));
        if (i < DIM)
            store(to + i, load_some(from + i, DIM - i, 0));
    }
}

inline float dot(const float *a, const float *b) {
    Floats sum = all(0);
    for (int64_t i = 0; i < PITCH; i += LANES)
        sum += load(a + i) * load(b + i);
    return sum_of(sum);
}

// The rows of one group: queries times the scale, results, and what is left of the online softmax.
struct Rows {
    std::vector<float> query, out, score;
    float cell[PITCH] = {}, top[ROWS], total[ROWS];
    Levels levels;

    Rows() : query(ROWS * PITCH), out(ROWS * PITCH), score(ROWS * STEP) {}

    void begin(const T *q, int64_t q_token, int64_t q_head, float factor) {
        for (int64_t row = 0; row < ROWS; ++row) {
            const T *from = q + row / GROUP * q_token + row % GROUP * q_head;
            float *to = query.data() + row * PITCH;
            int64_t i = 0;
            for (; i + LANES <= DIM; i += LANES)
                store(to + i, load(from + i) * factor);
            if (i < DIM)
                store(to + i, load_some(from + i, DIM - i, 0) * factor);
            top[row] = -INFINITY;
            total[row] = 0;
        }
        std::fill(out.begin(), out.end(), 0.0f);
    }

    const Cell *at(const Cache &cache, const int32_t *table, int64_t key) const {
        if (PAGE)
            return cache.cells + table[key / (PAGE ? PAGE : 1)] * cache.outer + key % (PAGE ? PAGE : 1) * cache.slot;
        return cache.cells + key * cache.slot;
    }

    void step(const Cache &k, const Cache &v, const int32_t *table, int64_t first, int64_t count, int64_t length,
              float cap) {
        for (int64_t j = 0; j < count; ++j) {
            widened(cell, at(k, table, first + j), levels);
            for (int64_t row = 0; row < ROWS; ++row) {
                const int64_t behind = length - TOKENS + row / GROUP - first - j;
                float logit = dot(query.data() + row * PITCH, cell);
                logit = cap > 0 ? cap * std::tanh(logit / cap) : logit;
                const bool seen = behind >= 0 && (WINDOW < 0 || behind <= WINDOW);
                score[row * STEP + j] = seen ? logit : -INFINITY;
            }
        }
        for (int64_t row = 0; row < ROWS; ++row)
            weigh(row, count);
        for (int64_t j = 0; j < count; ++j) {
            widened(cell, at(v, table, first + j), levels);
            for (int64_t row = 0; row < ROWS; ++row) {
                float *to = out.data() + row * PITCH;
                for (int64_t i = 0; i < PITCH; i += LANES)
                    store(to + i, load(to + i) + load(cell + i) * score[row * STEP + j]);
            }
        }
    }

    // scores become weights
    void weigh(int64_t row, int64_t count) {
        float *weights = score.data() + row * STEP;
        float most = top[row];
        for (int64_t j = 0; j < count; ++j)
            most = weights[j] > most ? weights[j] : most;
        const float base = most == -INFINITY ? 0 : most, shrink = std::exp(top[row] - base);
        float sum = 0;
        for (int64_t j = 0; j < count; ++j)
            sum += weights[j] = std::exp(weights[j] - base);
        total[row] = total[row] * shrink + sum;
        top[row] = most;
        if (shrink != 1) {
            float *to = out.data() + row * PITCH;
            for (int64_t i = 0; i < PITCH; i += LANES)
                store(to + i, load(to + i) * shrink);
        }
    }

    void end(T *to, float *lse, float scale) const {
        for (int64_t row = 0; row < ROWS; ++row) {
            const bool none = total[row] == 0;
            const float factor = none ? 0 : scale / total[row];
            const float *from = out.data() + row * PITCH;
            T *target = to + (row / GROUP * KV_HEADS * GROUP + row % GROUP) * DIM;
            int64_t i = 0;
            for (; i + LANES <= DIM; i += LANES)
                store(target + i, load(from + i) * factor);
            if (i < DIM)
                store_some(target + i, load(from + i) * factor, DIM - i);
            lse[row % GROUP * TOKENS + row / GROUP] = none ? -INFINITY : top[row] + std::log(total[row]);
        }
    }
};

// Sequences and heads of keys are dealt to the threads.
inline void attention_decode(T *out, float *lse, const T *q, const Cell *k_cache, const Cell *v_cache,
                             const int32_t *lengths, const int32_t *table, const float *k_scale, const float *v_scale,
                             float scale, float softcap, int64_t batch, int64_t q_outer, int64_t q_token, int64_t q_head,
                             int64_t k_outer, int64_t k_slot, int64_t k_head, int64_t v_outer, int64_t v_slot,
                             int64_t v_head, int64_t table_row, int64_t threads) {
    const Cache keys{k_cache, k_outer, k_slot, k_head, k_scale ? *k_scale : 1.0f};
    const Cache values{v_cache, v_outer, v_slot, v_head, v_scale ? *v_scale : 1.0f};
    const int64_t groups = batch * KV_HEADS;
    registry::parallel(threads < groups ? threads : groups, [=](int64_t part, int64_t parts) {
        const registry::Span mine = registry::share(groups, part, parts);
        Rows rows;
        for (int64_t group = mine.begin; group < mine.end; ++group) {
            const int64_t b = group / KV_HEADS, head = group % KV_HEADS, length = lengths[b];
            Cache k = keys, v = values;
            k.cells += head * k.head + (PAGE ? 0 : b * k.outer);
            v.cells += head * v.head + (PAGE ? 0 : b * v.outer);
            const int32_t *pages = PAGE ? table + b * table_row : nullptr;
            rows.begin(q + b * q_outer + head * GROUP * q_head, q_token, q_head, scale * k.scale);
            int64_t key = WINDOW >= 0 && length > TOKENS + WINDOW ? length - TOKENS - WINDOW : 0;
            for (; key < length; key += STEP)
                rows.step(k, v, pages, key, length - key < STEP ? length - key : STEP, length, softcap);
            T *to = out + (b * TOKENS * KV_HEADS + head) * GROUP * DIM;
            rows.end(to, lse + (b * KV_HEADS + head) * GROUP * TOKENS, v.scale);
        }
    });
}

} // namespace
