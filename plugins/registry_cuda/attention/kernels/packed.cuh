// Sequences of unlike lengths one after another: queries [total_q, HEADS, DIM], of which those from q_begins[i] to
// q_begins[i + 1] are sequence i's, and keys likewise. Of a head's `shares` of tiles some may have no query.
//
// Few tiles of unlike lengths would leave some blocks of threads with much more to do than others, so that up to
// MOST_SORTED are put in order, those with the most keys first; of many it averages out.
struct Sequences {
  static constexpr bool PACKED = true;
  const int *q_begins, *k_begins;
  int count, total_q, total_k, shares;

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
  __device__ bool are_sorted() const { return shares <= MOST_SORTED; }
  __device__ int blocks() const { return are_sorted() ? order()[0] : shares; }
  __device__ int in_order(int rank) const { return are_sorted() ? order()[1 + rank] : shares - 1 - rank; }
  // By every thread of a block, before its first barrier.
  __device__ void sort() const;
  __device__ long long place_of_sum(const Sequence &own, int head) const {
    return (long long)head * total_q + own.first_row;
  }

private:
  // In shared memory behind the barriers: how many shares have a query, then these.
  __device__ static int *order() {
    const unsigned from = first_pattern() - shared_address(dynamic_shared()) + BARRIER_BYTES;
    return reinterpret_cast<int *>(dynamic_shared()) + from / 4;
  }
  __device__ int first_tile(int sequence) const { return within(q_begins[sequence], total_q) / ROWS + sequence; }
  // Offsets may be wrong: then results are, too, but nothing outside of the tensors is read or written.
  __device__ static int within(int offset, int total) { return min(max(offset, 0), total); }
};
