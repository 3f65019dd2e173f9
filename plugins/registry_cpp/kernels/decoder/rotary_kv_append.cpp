// Rotates queries into a tensor of their own and keys into a cache, and copies values to theirs; after the rotation of
// rotary_embedding.cpp, which rotates what is copied there in place. LENGTH is the type of lengths, DIM elements a head.
// Without positions the table has a row for each token, with positions those of all. Tokens beyond a sequence's `room`
// are not written.

namespace {

// elements from a sequence, a token or slot, and a head to the next
struct HeadStrides {
    int64_t sequence, token, head;
};

// heads `begin` to `end` of one token to another place
inline void copy_heads(T *to, int64_t to_stride, const T *from, int64_t from_stride, int64_t begin, int64_t end) {
    for (int64_t head = begin; head < end; ++head)
        std::memcpy(to + head * to_stride, from + head * from_stride, DIM * sizeof(T));
}

// The heads of all tokens, of a token those of query first, are dealt to the threads.
inline void rotary_kv_append(T *rotated, int32_t *kv_lens, const T *query, const T *key, const T *value,
                             const TABLE *table, T *k_cache, T *v_cache, const LENGTH *lengths,
                             const POSITION *positions, int64_t tokens, int64_t q_len, int64_t room,
                             int64_t queries, int64_t keys, int64_t position_sequence, int64_t position_token, int64_t query_sequence,
                             int64_t query_token, int64_t query_head, int64_t key_sequence, int64_t key_token,
                             int64_t key_head, int64_t value_sequence, int64_t value_token, int64_t value_head,
                             int64_t table_sequence, int64_t table_row, int64_t k_cache_sequence, int64_t k_cache_slot,
                             int64_t k_cache_head, int64_t v_cache_sequence, int64_t v_cache_slot, int64_t v_cache_head,
                             int64_t length_stride, int64_t threads) {
    const HeadStrides of_query{query_sequence, query_token, query_head}, of_key{key_sequence, key_token, key_head};
    const HeadStrides of_value{value_sequence, value_token, value_head};
    const HeadStrides of_k_cache{k_cache_sequence, k_cache_slot, k_cache_head};
    const HeadStrides of_v_cache{v_cache_sequence, v_cache_slot, v_cache_head};
    const int64_t each = queries + keys, all = tokens * each;
    registry::parallel(threads < all ? threads : all, [=](int64_t part, int64_t parts) {
        const registry::Span mine = registry::share(all, part, parts);
        Angles angles;
        for (int64_t token = mine.begin / each; token * each < mine.end; ++token) {
            const int64_t begin = within(mine.begin - token * each, each), end = within(mine.end - token * each, each);
            const int64_t sequence = token / q_len, place = token % q_len;
            const int64_t row = positions
                                    ? positions[sequence * position_sequence + place * position_token] * table_row
                                    : sequence * table_sequence + place * table_row;
            read(angles, table + row);
            const auto at = [=](auto *x, const HeadStrides &strides, int64_t slot) {
                return x + sequence * strides.sequence + slot * strides.token;
            };
            T *to = rotated + token * queries * DIM;
            copy_heads(to, DIM, at(query, of_query, place), query_head, begin, within(end, queries));
            rotate_heads(to, DIM, begin, within(end, queries), angles);
            const int64_t first = within(begin - queries, keys), last = within(end - queries, keys);
            if (first == last)
                continue;
            const int64_t slot = lengths[sequence * length_stride] + place;
            if (first == 0 && place + 1 == q_len)
                kv_lens[sequence] = static_cast<int32_t>(slot < room ? slot + 1 : room);
            if (slot < 0 || slot >= room)
                continue;
            to = at(k_cache, of_k_cache, slot);
            copy_heads(to, k_cache_head, at(key, of_key, place), key_head, first, last);
            rotate_heads(to, k_cache_head, first, last, angles);
            copy_heads(at(v_cache, of_v_cache, slot), v_cache_head, at(value, of_value, place), value_head, first, last);
        }
    });
}

} // namespace
