// int8 activations times levels of 4 or 8 bits in AMX tiles.
namespace {

inline void int8_amx(T *y, const int8_t *a, const float *scale_a, const int32_t *panels, const S *scales,
                     const Z *zeros, const T *bias, int8_t *packed, int32_t *sums, float *totals, int32_t *kept,
                     int8_t *expanded, int64_t m, int64_t n, int64_t k, int64_t group_size, int64_t padded,
                     int64_t block, int64_t chunk, int64_t threads) {
    const int64_t groups = parts_of(k, group_size), rows = parts_of(m, 16) * 16;
    const Product product{y, panels, scales, zeros,      bias,   scale_a, packed,
                          sums, m,  n,      k, group_size, groups, padded,  rows, chunk};
    share_items(rows / 16, threads, [&](int64_t item, int64_t) {
        for (int64_t row = item * 16; row < item * 16 + 16; ++row)
            product.pack_row(a, row);
    });
    multiply_blocks(product, totals, kept, expanded, block, threads);
}

} // namespace
