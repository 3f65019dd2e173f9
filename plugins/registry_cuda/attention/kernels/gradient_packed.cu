extern "C" __global__ void __launch_bounds__(THREADS, 1)
    attention_varlen_gradient(TENSOR_MAP(held_first), TENSOR_MAP(held_second), TENSOR_MAP(first), TENSOR_MAP(second),
                              ELEMENT *grad_first, ELEMENT *grad_second, const float *terms, const int *held_begins,
                              const int *streamed_begins, const float scale, const float softcap, const long long count,
                              const long long held_total, const long long streamed_total, const long long tiles,
                              const long long term_blocks, const long long together) {
  const PackedBlocks<ROWS> held{held_begins, (int)count, (int)held_total};
  const PackedBlocks<QUERIES> queries{BY_KEYS ? streamed_begins : held_begins, (int)count,
                                      (int)(BY_KEYS ? streamed_total : held_total)};
  const Sequences sequences{held, queries, streamed_begins, (int)streamed_total, (int)tiles};
  differentiate({(Map)&held_first, (Map)&held_second, (Map)&first, (Map)&second},
                Tiles{sequences, HELD_HEADS, (int)together}, terms, (int)term_blocks, grad_first, grad_second, scale,
                softcap);
}
