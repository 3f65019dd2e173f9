// Rotates queries and keys into tensors of their own, by the rotation of rotary_embedding.cpp in place of their copies.
// DIM elements are a head; BACK rotates by the opposite angles.

namespace {

// elements from a sequence, a token of it, and a head to the next
struct HeadStrides {
    int64_t sequence, token, head;
};

inline void turn_back(Angles &angles) {
    for (int64_t i = 0; i < SPAN; ++i)
        angles.sines[i] = -angles.sines[i];
}

// heads `begin` to `end` of one token
inline void rotate_copies(T *to, const T *from, int64_t stride, int64_t begin, int64_t end, const Angles &angles) {
    for (int64_t head = begin; head < end; ++head)
        std::memcpy(to + head * DIM, from + head * stride, DIM * sizeof(T));
    rotate_heads(to, DIM, begin, end, angles);
}

// The heads of all tokens, of a token those of query first, are dealt to the threads. Tokens are in sequences of
// `length`.
inline void apply_rotary(T *rotated_query, T *rotated_key, const T *query, const T *key, const POSITION *positions,
                         const TABLE *table, int64_t tokens, int64_t length, int64_t queries, int64_t keys,
                         int64_t position_sequence, int64_t position_token, int64_t query_sequence, int64_t query_token,
                         int64_t query_head, int64_t key_sequence, int64_t key_token, int64_t key_head,
                         int64_t row_stride, int64_t threads) {
    const HeadStrides of_query{query_sequence, query_token, query_head}, of_key{key_sequence, key_token, key_head};
    const int64_t each = queries + keys, all = tokens * each;
    if (all == 0)
        return;
    registry::parallel(threads < all ? threads : all, [=](int64_t part, int64_t parts) {
        const registry::Span mine = registry::share(all, part, parts);
        Angles angles;
        for (int64_t token = mine.begin / each; token * each < mine.end; ++token) {
            const int64_t begin = within(mine.begin - token * each, each), end = within(mine.end - token * each, each);
            const int64_t sequence = token / length, place = token % length;
            read(angles, table + positions[sequence * position_sequence + place * position_token] * row_stride);
            if constexpr (BACK)
                turn_back(angles);
            const auto at = [=](const T *x, const HeadStrides &strides) {
                return x + sequence * strides.sequence + place * strides.token;
            };
            rotate_copies(rotated_query + token * queries * DIM, at(query, of_query), query_head, begin,
                          within(end, queries), angles);
            rotate_copies(rotated_key + token * keys * DIM, at(key, of_key), key_head, within(begin - queries, keys),
                          within(end - queries, keys), angles);
        }
    });
}

} // namespace
