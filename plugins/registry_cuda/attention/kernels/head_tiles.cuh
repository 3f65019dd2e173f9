// Tiles of the rows of one head between global and shared memory by the copy engine: 64 elements wide, swizzled, and zeros
// beyond the tensor. The tensor map's dimensions are elements of a head, rows, heads, and batches.

// `column` counts elements. Bytes arrive at `barrier`.
__device__ inline void load_head_tile(unsigned to, Map map, int column, int row, int head, int batch, unsigned barrier) {
  asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes "
               "[%0], [%1, {%2, %3, %4, %5}], [%6];" ::"r"(to),
               "l"(map), "r"(column), "r"(row), "r"(head), "r"(batch), "r"(barrier)
               : "memory");
}

// An operand of a product whose rows are k's: 64 columns lie in a row of 128 bytes, 8 rows make a pattern of 1024, and
// the next 64 columns lie `next_columns` bytes behind.
__device__ inline unsigned long long operand_of_rows(unsigned address, unsigned next_columns) {
  return (address & 0x3FFFF) >> 4 | (unsigned long long)(next_columns >> 4) << 16 | (unsigned long long)(1024 >> 4) << 32 |
         1ull << 62;
}
