// Blocks of terms have `queries` rows.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    attention_varlen_gradient(TENSOR_MAP(held_first), TENSOR_MAP(held_second), TENSOR_MAP(first), TENSOR_MAP(second),
                              ELEMENT *grad_first, ELEMENT *grad_second, const float *terms, const int *held_begins,
                              const int *streamed_begins, const float scale, const float softcap, const long long count,
                              const long long held_total, const long long streamed_total, const long long tiles,
                              const long long queries, const long long term_blocks, const long long together) {
  const PackedBlocks held{held_begins, (int)count, (int)held_total, ROWS};
  const PackedBlocks streamed{streamed_begins, (int)count, (int)streamed_total, BLOCK};
  const PackedBlocks of_terms{BY_KEYS ? streamed_begins : held_begins, (int)count,
                              (int)(BY_KEYS ? streamed_total : held_total), BY_KEYS ? BLOCK : (int)queries};
  differentiate({(Map)&held_first, (Map)&held_second, (Map)&first, (Map)&second},
                Tiles{{held, streamed, of_terms, (int)tiles}, HELD_HEADS, (int)together},
                Terms{terms, of_terms.size, (int)term_blocks}, grad_first, grad_second, scale, softcap);
}
