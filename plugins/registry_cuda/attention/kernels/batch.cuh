// A batch of sequences of one length: queries [batch, q_len, HEADS, DIM], of which a head has `tiles`.
struct Sequences {
  static constexpr bool PACKED = false;
  int q_len, kv_len, tiles;

  // The sequence of head `flat` of all batches' heads.
  __device__ Sequence find(int &, int flat) const { return {q_len, kv_len, 0, 0, flat / HEADS}; }
  __device__ int blocks() const { return tiles; }
  // The tile of a head that runs as number `rank`: the last ones see the most keys.
  __device__ int in_order(int rank) const { return tiles - 1 - rank; }
  __device__ long long place_of_sum(const Sequence &own, int head) const {
    return ((long long)own.batch * HEADS + head) * q_len;
  }
};
