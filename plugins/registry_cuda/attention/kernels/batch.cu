// `heads` counts those of all batches.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    attention_forward(TENSOR_MAP(q), TENSOR_MAP(k), TENSOR_MAP(v), ELEMENT *out, float *lse, const float scale,
                      const float softcap, const long long q_len, const long long kv_len, const long long heads,
                      const long long together, const long long blocks) {
  attend({(Map)&q, (Map)&k, (Map)&v}, Sequences{(int)q_len, (int)kv_len}, Tiles{(int)heads, (int)together, (int)blocks}, out,
         lse, (SOFTCAP ? softcap : scale) * LOG2E, scale / softcap);
}
