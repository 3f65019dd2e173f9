// A batch of sequences of one length: queries [batch, q_len, HEADS, DIM].
struct Sequences {
  static constexpr bool PACKED = false;
  int q_len, kv_len;

  // The sequence of head `flat` of all batches' heads.
  __device__ Sequence find(int &, int flat) const { return {q_len, kv_len, 0, 0, flat / HEADS}; }
  __device__ long long place_of_sum(const Sequence &own, int head) const {
    return ((long long)own.batch * HEADS + head) * q_len;
  }
};
