// Rotation of pairs of elements by angles of positions (Su et al., 2021), in fp32. ELEMENT is the type of queries and
// keys, TABLE that of cosines and sines, POSITION that of positions. The first 2 * HALF elements of a head are rotated:
// of NEOX i and HALF + i, else neighbours. HEADS heads of a token are rotated together.

namespace {

using T = ELEMENT;

constexpr int64_t SPAN = NEOX ? HALF : 2 * HALF;

// cosines and sines of a token, in the order in which a head's elements are read: each is converted once a token
struct Angles {
    float cosines[SPAN], sines[SPAN];
};

inline float number(const TABLE *from) { return load_some(from, 1, 0)[0]; }

inline void read(Angles &angles, const TABLE *row) {
    if constexpr (NEOX) {
        int64_t i = 0;
        for (; i + LANES <= HALF; i += LANES) {
            store(angles.cosines + i, load(row + i));
            store(angles.sines + i, load(row + HALF + i));
        }
        if (i < HALF) {
            store_some(angles.cosines + i, load_some(row + i, HALF - i, 0), HALF - i);
            store_some(angles.sines + i, load_some(row + HALF + i, HALF - i, 0), HALF - i);
        }
    } else {
        for (int64_t i = 0; i < HALF; ++i) {
            const float cosine = number(row + i), sine = number(row + HALF + i);
            angles.cosines[2 * i] = angles.cosines[2 * i + 1] = cosine;
            angles.sines[2 * i] = -sine;
            angles.sines[2 * i + 1] = sine;
        }
    }
}

typedef uint64_t Pairs __attribute__((vector_size(4 * LANES)));

// neighbours exchanged: each pair is a word of 64 bits
inline Floats exchanged(Floats v) {
    const Pairs words = bits_as<Pairs>(v);
    return bits_as<Floats>((words << 32) | (words >> 32));
}

template <class Load, class Store> inline void rotate_part(T *x, Floats cosine, Floats sine, Load get, Store put) {
    if constexpr (NEOX) {
        const Floats a = get(x), b = get(x + HALF);
        put(x, a * cosine - b * sine);
        put(x + HALF, b * cosine + a * sine);
    } else {
        const Floats v = get(x);
        put(x, v * cosine + exchanged(v) * sine);
    }
}

template <int64_t COUNT> inline void rotate(T *x, int64_t stride, const Angles &angles) {
    int64_t i = 0;
    for (; i + LANES <= SPAN; i += LANES) {
        const Floats cosine = load(angles.cosines + i), sine = load(angles.sines + i);
        for (int64_t head = 0; head < COUNT; ++head)
            rotate_part(
                x + head * stride + i, cosine, sine, [](const T *from) { return load(from); },
                [](T *to, Floats v) { store(to, v); });
    }
    if (i < SPAN) {
        const int64_t rest = SPAN - i;
        const Floats cosine = load_some(angles.cosines + i, rest, 0), sine = load_some(angles.sines + i, rest, 0);
        for (int64_t head = 0; head < COUNT; ++head)
            rotate_part(
                x + head * stride + i, cosine, sine, [=](const T *from) { return load_some(from, rest, 0); },
                [=](T *to, Floats v) { store_some(to, v, rest); });
    }
}

// heads `begin` to `end` of one token
inline void rotate_heads(T *x, int64_t stride, int64_t begin, int64_t end, const Angles &angles) {
    int64_t head = begin;
    for (; head + HEADS <= end; head += HEADS)
        rotate<HEADS>(x + head * stride, stride, angles);
    for (; head < end; ++head)
        rotate<1>(x + head * stride, stride, angles);
}

inline int64_t within(int64_t value, int64_t most) { return value < 0 ? 0 : value < most ? value : most; }

// The heads of all tokens, of a token those of query first, are dealt to the threads.
inline void rotary_embedding(const POSITION *positions, T *query, T *key, const TABLE *table, int64_t tokens,
                             int64_t queries, int64_t keys, int64_t query_token, int64_t query_head, int64_t key_token,
                             int64_t key_head, int64_t row_stride, int64_t threads) {
    const int64_t each = queries + keys, all = tokens * each;
    registry::parallel(threads < all ? threads : all, [=](int64_t part, int64_t parts) {
        const registry::Span mine = registry::share(all, part, parts);
        Angles angles;
        for (int64_t token = mine.begin / each; token * each < mine.end; ++token) {
            const int64_t begin = within(mine.begin - token * each, each), end = within(mine.end - token * each, each);
            read(angles, table + positions[token] * row_stride);
            rotate_heads(query + token * query_token, query_head, begin, within(end, queries), angles);
            rotate_heads(key + token * key_token, key_head, within(begin - queries, keys), within(end - queries, keys),
                         angles);
        }
    });
}

} // namespace
