// Sequences of unlike lengths one after another: queries [total_q, HEADS, DIM], of which those from q_begins[i] to
// q_begins[i + 1] are sequence i's, and keys likewise.
struct Sequences {
  static constexpr bool PACKED = true;
  const int *q_begins, *k_begins;
  int count, total_q, total_k;

  // The sequence in whose share of the tiles number `place` is, which becomes its place in this share. Sequence i has those
  // from q_begins[i] / ROWS + i on, and no fewer than it fills.
  __device__ Sequence find(int &place, int) const {
    int low = 0, high = count;
    while (high - low > 1) {
      const int middle = low + (high - low) / 2;
      (first_tile(middle) <= place ? low : high) = middle;
    }
    place -= first_tile(low);
    const int row = within(q_begins[low], total_q), key = within(k_begins[low], total_k);
    return {max(within(q_begins[low + 1], total_q) - row, 0), max(within(k_begins[low + 1], total_k) - key, 0), row, key, 0};
  }
  __device__ long long place_of_sum(const Sequence &own, int head) const {
    return (long long)head * total_q + own.first_row;
  }

private:
  __device__ int first_tile(int sequence) const { return within(q_begins[sequence], total_q) / ROWS + sequence; }
  // Offsets may be wrong: then results are, too, but nothing outside of the tensors is read or written.
  __device__ static int within(int offset, int total) { return min(max(offset, 0), total); }
};
