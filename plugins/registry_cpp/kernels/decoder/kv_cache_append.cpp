// Writes keys and values to their slots of a paged cache. ELEMENT is their type, SLOT that of slots. Of FLOAT8 caches
// each number is the nearest float8_e4m3fn to its quotient by the scale, of INT8 caches the nearest integer. HEADS heads
// of DIM elements, SIZE slots a block.

namespace {

using T = ELEMENT;
using Cell = std::conditional_t<FLOAT8 || INT8, uint8_t, T>;

struct Strides {
    int64_t token, head, block, slot, cache_head;
};

typedef uint8_t Bytes __attribute__((vector_size(LANES)));

// float8_e4m3fn, halfway to the even number, saturated; NaN stays NaN
inline Bytes to_float8(Floats v) {
    const Words word = bits_as<Words>(v), sign = (word >> 24) & 0x80;
    const Floats size = bits_as<Floats>(word & 0x7fffffff);
    const Floats clamped = where(size > 448.0f, all(448.0f), size);
    const Words bits = bits_as<Words>(clamped);
    // three bits of mantissa are kept; the exponent's bias falls from 127 to 7
    const Words normal = ((bits + 0x7ffff + ((bits >> 20) & 1)) >> 20) - 960;
    // below 2^-6 in steps of 2^-9, the last bit of 2^14
    const Words subnormal = bits_as<Words>(clamped + 16384.0f) - 0x46800000;
    Words level = clamped < 0.015625f ? subnormal : normal;
    level = v == v ? level : Words{} + 0x7f;
    return __builtin_convertvector(level | sign, Bytes);
}

// int8_t as bytes: -127 to 127, halfway to the even number; NaN is 0
inline Bytes to_int8(Floats v) {
    const Floats low = where(v < -127.0f, all(-127.0f), v), clamped = where(low > 127.0f, all(127.0f), low);
    // 1.5 * 2^23 leaves no bit for fractions, and its lowest byte is 0
    const Words level = bits_as<Words>(clamped + 12582912.0f);
    return __builtin_convertvector(v == v ? level & 0xff : Words{}, Bytes);
}

inline Bytes to_levels(Floats v) {
    if constexpr (INT8)
        return to_int8(v);
    return to_float8(v);
}

inline void write_head(Cell *to, const T *from, float scale) {
    if constexpr (FLOAT8 || INT8) {
        int64_t i = 0;
        for (; i + LANES <= DIM; i += LANES) {
            const Bytes levels = to_levels(load(from + i) / scale);
            std::memcpy(to + i, &levels, sizeof levels);
        }
        if (i < DIM) {
            const Bytes levels = to_levels(load_some(from + i, DIM - i, 0) / scale);
            std::memcpy(to + i, &levels, DIM - i);
        }
    } else {
        std::memcpy(to, from, DIM * sizeof(T));
    }
}

inline void write_token(Cell *cache, const T *x, float scale, int64_t token, int64_t slot, const Strides &strides) {
    Cell *to = cache + slot / SIZE * strides.block + slot % SIZE * strides.slot;
    const T *from = x + token * strides.token;
    for (int64_t head = 0; head < HEADS; ++head)
        write_head(to + head * strides.cache_head, from + head * strides.head, scale);
}

// Tokens are dealt to the threads; APART: all keys of a thread's tokens, then all values.
inline void kv_cache_append(const T *key, const T *value, Cell *key_cache, Cell *value_cache, const SLOT *slots,
                            const float *k_scale, const float *v_scale, int64_t tokens, int64_t key_token,
                            int64_t key_head, int64_t value_token, int64_t value_head, int64_t key_block,
                            int64_t key_slot, int64_t key_cache_head, int64_t value_block, int64_t value_slot,
                            int64_t value_cache_head, int64_t threads) {
    const Strides of_key{key_token, key_head, key_block, key_slot, key_cache_head};
    const Strides of_value{value_token, value_head, value_block, value_slot, value_cache_head};
    const float key_scale = k_scale ? *k_scale : 1.0f, value_scale = v_scale ? *v_scale : 1.0f;
    registry::parallel(threads < tokens ? threads : tokens, [=](int64_t part, int64_t parts) {
        const registry::Span mine = registry::share(tokens, part, parts);
        for (int64_t pass = 0; pass < (APART ? 2 : 1); ++pass)
            for (int64_t token = mine.begin; token < mine.end; ++token) {
                const int64_t slot = slots[token];
                if (slot < 0)
                    continue;
                if (!APART || pass == 0)
                    write_token(key_cache, key, key_scale, token, slot, of_key);
                if (!APART || pass == 1)
                    write_token(value_cache, value, value_scale, token, slot, of_value);
            }
    });
}

} // namespace
