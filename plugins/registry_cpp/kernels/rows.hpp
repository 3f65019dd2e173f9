// Reductions and maps over one row of COLS floats, whatever they are stored as. UNROLL vectors are in flight.
#include <cmath>

namespace {

// accumulate(state[u], vector) over the row; the tail is padded with `fill`. Returns the combined state.
template <class T, class Accumulate, class Combine>
inline Floats reduce(const T *row, int64_t cols, float start, float fill, Accumulate accumulate, Combine combine) {
    Floats state[UNROLL];
    for (Floats &one : state)
        one = all(start);
    int64_t i = 0;
    for (; i + UNROLL * LANES <= cols; i += UNROLL * LANES) {
#pragma GCC unroll 8
        for (int64_t u = 0; u < UNROLL; ++u)
            state[u] = accumulate(state[u], load(row + i + u * LANES), i + u * LANES);
    }
    for (; i + LANES <= cols; i += LANES)
        state[0] = accumulate(state[0], load(row + i), i);
    if (i < cols)
        state[0] = accumulate(state[0], load_some(row + i, cols - i, fill), i);
    for (int64_t u = 1; u < UNROLL; ++u)
        state[0] = combine(state[0], state[u]);
    return state[0];
}

// out[i] = vector(i, count) for whole vectors and the tail; `past` writes around the caches
template <bool past, class T, class Vector> inline void write(T *out, int64_t cols, Vector vector) {
    int64_t i = past ? until_aligned(out, cols) : 0;
    for (int64_t done = 0; done < i; done += LANES) {
        const int64_t count = i - done < LANES ? i - done : LANES;
        store_some(out + done, vector(done, count), count);
    }
    for (; i + LANES <= cols; i += LANES) {
        if constexpr (past)
            store_past(out + i, vector(i, LANES));
        else
            store(out + i, vector(i, LANES));
    }
    if (i < cols)
        store_some(out + i, vector(i, cols - i), cols - i);
}

template <class T> inline Floats load_part(const T *from, int64_t count) {
    return count == LANES ? load(from) : load_some(from, count, 0);
}

template <class T> inline float row_max(const T *row, int64_t cols) {
    return max_of(reduce(
        row, cols, -INFINITY, -INFINITY, [](Floats most, Floats v, int64_t) { return greater(v, most); },
        [](Floats a, Floats b) { return greater(a, b); }));
}

inline Floats add(Floats a, Floats b) { return a + b; }

} // namespace
