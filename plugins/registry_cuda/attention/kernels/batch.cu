// `heads` counts those of all batches.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    attention_forward(TENSOR_MAP(q), TENSOR_MAP(k), TENSOR_MAP(v), ELEMENT *out, float *lse, const float scale,
                      const float softcap, const long long q_len, const long long kv_len, const long long blocks,
                      const long long heads, const long long together) {
  const Sequences sequences{(int)q_len, (int)kv_len, (int)blocks};
  attend({(Map)&q, (Map)&k, (Map)&v}, Tiles{sequences, (int)heads, (int)together}, out, lse,
         (SOFTCAP ? softcap : scale) * LOG2E, scale / softcap);
}
