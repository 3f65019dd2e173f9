static_assert(BARRIER_BYTES + 4 + 4 * MOST_SORTED <= PATTERN && MOST_SORTED <= THREADS, "room and threads to sort");

__device__ void Sequences::sort() const {
  if (!are_sorted()) return;
  int *const keys = order() + (PATTERN - BARRIER_BYTES) / 4;  // where queries will be
  const int share = threadIdx.x;
  int own = -1;  // blocks of keys
  if (share < shares) {
    const Tile tile(share, 0, *this);
    if (!tile.is_empty()) own = tile.end - tile.begin;
    keys[share] = own;
  }
  order()[0] = __syncthreads_count(own >= 0);
  if (own >= 0) {
    int rank = 0;
    for (int other = 0; other < shares; ++other) rank += keys[other] > own || (keys[other] == own && other < share);
    order()[1 + rank] = share;
  }
  show_writes();
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    attention_varlen_forward(TENSOR_MAP(q), TENSOR_MAP(k), TENSOR_MAP(v), ELEMENT *out, float *lse, const int *q_begins,
                             const int *k_begins, const float scale, const float softcap, const long long count,
                             const long long total_q, const long long total_k, const long long shares,
                             const long long together) {
  const Sequences sequences{q_begins, k_begins, (int)count, (int)total_q, (int)total_k, (int)shares};
  sequences.sort();
  attend({(Map)&q, (Map)&k, (Map)&v}, Tiles{sequences, HEADS, (int)together}, out, lse, (SOFTCAP ? softcap : scale) * LOG2E,
         scale / softcap);
}
