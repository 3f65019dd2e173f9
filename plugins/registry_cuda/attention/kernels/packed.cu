// `blocks` counts a head's shares of tiles.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    attention_varlen_forward(TENSOR_MAP(q), TENSOR_MAP(k), TENSOR_MAP(v), ELEMENT *out, float *lse, const int *q_begins,
                             const int *k_begins, const float scale, const float softcap, const long long count,
                             const long long total_q, const long long total_k, const long long together,
                             const long long blocks) {
  attend({(Map)&q, (Map)&k, (Map)&v}, Sequences{q_begins, k_begins, (int)count, (int)total_q, (int)total_k},
         Tiles{HEADS, (int)together, (int)blocks}, out, lse, (SOFTCAP ? softcap : scale) * LOG2E, scale / softcap);
}
