// A batch of sequences of one length, of which a head has `tiles` of held rows.
struct Sequences {
  static constexpr bool PACKED = false;
  int held_len, streamed_len, tiles;

  // The sequence of head `flat` of all batches' heads.
  __device__ Sequence find(int &, int flat) const {
    return {held_len, streamed_len, 0, 0, flat / HELD_HEADS, 0};
  }
  __device__ int blocks() const { return tiles; }
  // The tile of a head that runs as number `rank`: the first keys are seen by the most queries, the last queries see the
  // most keys.
  __device__ int in_order(int rank) const { return BY_KEYS ? rank : tiles - 1 - rank; }
};
