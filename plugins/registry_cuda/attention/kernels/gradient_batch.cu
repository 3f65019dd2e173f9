// `heads` counts the held ones of all batches.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    attention_gradient(TENSOR_MAP(held_first), TENSOR_MAP(held_second), TENSOR_MAP(first), TENSOR_MAP(second),
                       ELEMENT *grad_first, ELEMENT *grad_second, const float *terms, const float scale, const float softcap,
                       const long long held_len, const long long streamed_len, const long long tiles,
                       const long long queries, const long long term_blocks, const long long heads,
                       const long long together) {
  const Sequences sequences{(int)held_len, (int)streamed_len, (int)tiles};
  differentiate({(Map)&held_first, (Map)&held_second, (Map)&first, (Map)&second},
                Tiles{sequences, (int)heads, (int)together}, Terms{terms, BY_KEYS ? BLOCK : (int)queries, (int)term_blocks}, grad_first,
                grad_second, scale, softcap);
}
