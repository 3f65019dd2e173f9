// Latent attention of one token of each sequence to a cache. ELEMENT is the type of queries and cache. HEADS heads share
// each latent of WIDTH elements, of which the first RANK are the values; PAGE slots a page, 0: no pages. A task has TILE
// heads of a sequence. STEP latents are weighed at a time.
#include <algorithm>
#include <cmath>
#include <vector>

namespace {

using T = ELEMENT;

constexpr int64_t PITCH = (WIDTH + LANES - 1) / LANES * LANES, OUT = (RANK + LANES - 1) / LANES * LANES;

// WIDTH elements in float; those behind them stay 0
inline void widened(float *to, const T *from, float factor) {
    int64_t i = 0;
    for (; i + LANES <= WIDTH; i += LANES)
        store(to + i, load(from + i) * factor);
    if (i < WIDTH)
        store(to + i, load_some(from + i, WIDTH - i, 0) * factor);
}

inline float dot(const float *a, const float *b) {
    Floats sum = all(0);
    for (int64_t i = 0; i < PITCH; i += LANES)
        sum += load(a + i) * load(b + i);
    return sum_of(sum);
}

// The heads of one tile: queries times the scale, results, and what is left of the online softmax.
struct Heads {
    std::vector<float> query, latent, out, score;
    float top[TILE], total[TILE];
    int64_t count = 0;

    Heads() : query(TILE * PITCH), latent(STEP * PITCH), out(TILE * OUT), score(TILE * STEP) {}

    void begin(const T *q, int64_t q_head, int64_t heads, float factor) {
        count = heads;
        for (int64_t head = 0; head < count; ++head) {
            widened(query.data() + head * PITCH, q + head * q_head, factor);
            top[head] = -INFINITY;
            total[head] = 0;
        }
        std::fill(out.begin(), out.end(), 0.0f);
    }

    // the latents of `step` tokens are in place
    void weigh(int64_t step) {
        for (int64_t head = 0; head < count; ++head) {
            float *weights = score.data() + head * STEP, most = top[head];
            for (int64_t j = 0; j < step; ++j) {
                weights[j] = dot(query.data() + head * PITCH, latent.data() + j * PITCH);
                most = weights[j] > most ? weights[j] : most;
            }
            const float base = most == -INFINITY ? 0 : most, shrink = std::exp(top[head] - base);
            float sum = 0;
            for (int64_t j = 0; j < step; ++j)
                sum += weights[j] = std::exp(weights[j] - base);
            total[head] = total[head] * shrink + sum;
            top[head] = most;
            float *to = out.data() + head * OUT;
            for (int64_t i = 0; i < OUT; i += LANES) {
                Floats value = load(to + i) * shrink;
                for (int64_t j = 0; j < step; ++j)
                    value += load(latent.data() + j * PITCH + i) * weights[j];
                store(to + i, value);
            }
        }
    }

    void end(T *to, float *lse) const {
        for (int64_t head = 0; head < count; ++head) {
            const bool none = total[head] == 0;
            const float factor = none ? 0 : 1 / total[head];
            const float *from = out.data() + head * OUT;
            T *target = to + head * RANK;
            int64_t i = 0;
            for (; i + LANES <= RANK; i += LANES)
                store(target + i, load(from + i) * factor);
            if (i < RANK)
                store_some(target + i, load(from + i) * factor, RANK - i);
            lse[head] = none ? -INFINITY : top[head] + std::log(total[head]);
        }
    }
};

// Sequences and tiles of heads are dealt to the threads.
inline void mla_decode(T *out, float *lse, const T *q, const T *cache, const int32_t *lengths, const int32_t *table,
                       float scale, int64_t batch, int64_t q_outer, int64_t q_head, int64_t outer, int64_t slot,
                       int64_t table_row, int64_t threads) {
    constexpr int64_t TILES = (HEADS + TILE - 1) / TILE, PAGED = PAGE ? PAGE : 1;
    const int64_t tasks = batch * TILES;
    registry::parallel(threads < tasks ? threads : tasks, [=](int64_t part, int64_t parts) {
        const registry::Span mine = registry::share(tasks, part, parts);
        Heads heads;
        for (int64_t task = mine.begin; task < mine.end; ++task) {
            const int64_t b = task / TILES, first = task % TILES * TILE, length = lengths[b];
            const int32_t *pages = PAGE ? table + b * table_row : nullptr;
            heads.begin(q + b * q_outer + first * q_head, q_head, std::min<int64_t>(TILE, HEADS - first), scale);
            for (int64_t key = 0; key < length; key += STEP) {
                const int64_t step = std::min<int64_t>(STEP, length - key);
                for (int64_t j = key; j < key + step; ++j) {
                    const int64_t place = PAGE ? pages[j / PAGED] * outer + j % PAGED * slot : b * outer + j * slot;
                    widened(heads.latent.data() + (j - key) * PITCH, cache + place, 1);
                }
                heads.weigh(step);
            }
            heads.end(out + (b * HEADS + first) * RANK, lse + b * HEADS + first);
        }
    });
}

} // namespace
