// Weights in panels of 16 columns: a panel's words stand one after another, 16 columns at each step along K.
#include <atomic>

namespace {

constexpr int64_t PANEL = 16;

// The first `count` columns from here, at most 16; the others are 0.
template <class E> inline Floats load_columns(const E *from, int64_t count) {
    return count < LANES ? load_some(from, count, 0) : load(from);
}

template <class E> inline void store_columns(E *to, Floats v, int64_t count) {
#if defined(__AVX512BF16__)
    if constexpr (std::is_same_v<E, bfloat16>) {
        const __mmask16 which = count < LANES ? (1 << count) - 1 : 0xffff;
        _mm256_mask_storeu_epi16(to, which, (__m256i)_mm512_cvtneps_pbh(bits_as<__m512>(v)));
        return;
    }
#endif
    if (count < LANES)
        store_some(to, v, count);
    else
        store(to, v);
}

// work(item, thread) for each of `items`, on at most `threads` threads; whoever is free takes the next one.
template <class Work> inline void share_items(int64_t items, int64_t threads, Work &&work) {
    std::atomic<int64_t> next{0};
    registry::parallel(threads < items ? threads : items, [&](int64_t thread, int64_t) {
        for (int64_t taken; (taken = next.fetch_add(1, std::memory_order_relaxed)) < items;)
            work(taken, thread);
    });
}

inline int64_t parts_of(int64_t size, int64_t part) { return (size + part - 1) / part; }

// The place of a tile of 16 tokens and one step of K: the steps of a chunk stand together, then the next 16 tokens'.
inline int64_t tile_of(int64_t stripe, int64_t before, int64_t step, int64_t steps, int64_t chunk, int64_t stripes) {
    const int64_t start = step / chunk * chunk, left = steps - start, count = left < chunk ? left : chunk;
    return (before + start) * stripes + stripe * count + step - start;
}

} // namespace
