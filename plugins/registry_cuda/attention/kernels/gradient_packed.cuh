// Sequences of unlike lengths one after another. Of a head's `tiles` some may have no row. Up to MOST_SORTED are put in order,
// those with the most blocks first: few tiles of unlike lengths would leave some blocks of threads with much more to do than
// others.
struct Sequences {
  static constexpr bool PACKED = true;
  PackedBlocks held, streamed, queries;
  int tiles;

  // The sequence that has tile number `place`, which becomes its place in this sequence.
  __device__ Sequence find(int &place, int) const {
    const int own = held.of_block(place);
    place -= held.first(own);
    return {held.length(own), streamed.length(own), held.token(own), streamed.token(own), 0, queries.first(own)};
  }
  __device__ bool are_sorted() const { return tiles <= MOST_SORTED; }
  __device__ int blocks() const { return are_sorted() ? order()[0] : tiles; }
  __device__ int in_order(int rank) const { return are_sorted() ? order()[1 + rank] : BY_KEYS ? rank : tiles - 1 - rank; }
  // By every thread of a block, before its first barrier.
  __device__ void sort() const;

private:
  // In shared memory behind the barriers: how many tiles have a row, then these.
  __device__ static int *order() {
    const unsigned from = first_pattern() - shared_address(dynamic_shared()) + BARRIER_BYTES;
    return reinterpret_cast<int *>(dynamic_shared()) + from / 4;
  }
};
