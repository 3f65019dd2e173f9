// Of a batch of sequences of q_len rows, of which a head has `blocks`; `heads` counts those of all batches. Strides are
// elements from a batch, a token and a head to the next.
extern "C" __global__ void __launch_bounds__(THREADS)
    row_terms(float *terms, const ELEMENT *grad_out, const ELEMENT *out, const float *lse, const long long grad_batch,
              const long long grad_token, const long long grad_head, const long long out_batch, const long long out_token,
              const long long out_head, const long long q_len, const long long blocks, const long long heads) {
  const long long place = own_place(), flat = place / (blocks * QUERIES), token = place % (blocks * QUERIES);
  const bool exists = flat < heads, there = exists && token < q_len;
  const long long batch = flat / HEADS, head = flat % HEADS;
  const float delta = delta_of(grad_out + batch * grad_batch + token * grad_token + head * grad_head,
                               out + batch * out_batch + token * out_token + head * out_head, there);
  if (exists) write_terms(terms, place, there ? lse[flat * q_len + token] : -CUDART_INF_F, delta);
}
