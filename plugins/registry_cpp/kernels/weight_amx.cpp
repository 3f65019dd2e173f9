// Activations times a weight of 1 to 8 bits, or of bfloat16, in AMX tiles of bfloat16.
namespace {

inline void weight_amx(T *y, const T *a, const int32_t *panels, const T *scales, const Z *zeros, const int32_t *order,
                       const T *bias, uint16_t *packed, float *sums, float *totals, float *kept, int8_t *expanded,
                       int64_t m, int64_t n, int64_t k, int64_t group_size, int64_t padded, int64_t block,
                       int64_t chunk, int64_t threads) {
    const int64_t groups = parts_of(k, group_size), rows = parts_of(m, 16) * 16;
    const Product product{y, panels, scales, zeros,      bias,   order, packed,
                          sums, m,  n,      k, group_size, groups, padded, rows, chunk, {}};
    share_items(rows / 16, threads, [&](int64_t item, int64_t) {
        for (int64_t row = item * 16; row < item * 16 + 16; ++row)
            product.pack_row(a, row);
    });
    multiply_blocks(product, totals, kept, expanded, block, threads);
}

} // namespace
