// Of packed sequences, of which a head has `blocks`, some of them without a row. Strides are elements from a token and a head
// to the next.
extern "C" __global__ void __launch_bounds__(THREADS)
    varlen_row_terms(float *terms, const ELEMENT *grad_out, const ELEMENT *out, const float *lse, const int *q_begins,
                     const long long grad_token, const long long grad_head, const long long out_token,
                     const long long out_head, const long long count, const long long total_q, const long long blocks) {
  const PackedBlocks queries{q_begins, (int)count, (int)total_q, QUERIES};
  const long long place = own_place(), head = place / (blocks * QUERIES);
  const int block = (int)(place / QUERIES % blocks), sequence = queries.of_block(block);
  const int row = (block - queries.first(sequence)) * QUERIES + (int)(place % QUERIES);
  const bool exists = head < HEADS, there = exists && row >= 0 && row < queries.length(sequence);
  const long long token = queries.token(sequence) + row;
  const float delta = delta_of(grad_out + token * grad_token + head * grad_head,
                               out + token * out_token + head * out_head, there);
  if (exists) write_terms(terms, place, there ? lse[head * total_q + token] : -CUDART_INF_F, delta);
}
