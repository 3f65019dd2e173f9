// Sequences one after another in blocks of `size` tokens: `begins[i]` to `begins[i + 1]` are sequence i's. It has blocks number
// begins[i] / size + i and on, and no fewer than it fills.
struct PackedBlocks {
  const int *begins;
  int count, total, size;

  // Offsets may be wrong: then results are, too, but nothing outside of the tensors is read or written.
  __device__ int token(int place) const { return min(max(begins[place], 0), total); }
  __device__ int length(int sequence) const { return max(token(sequence + 1) - token(sequence), 0); }
  __device__ int first(int sequence) const { return token(sequence) / size + sequence; }
  // The sequence that has block number `block`.
  __device__ int of_block(int block) const {
    int low = 0, high = count;
    while (high - low > 1) {
      const int middle = low + (high - low) / 2;
      (first(middle) <= block ? low : high) = middle;
    }
    return low;
  }
};
