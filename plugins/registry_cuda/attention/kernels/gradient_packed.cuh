// Sequences of unlike lengths one after another. Of a head's `tiles` some may have no row.
struct Sequences {
  static constexpr bool PACKED = true;
  PackedBlocks<ROWS> held;
  PackedBlocks<QUERIES> queries;
  const int *streamed_begins;
  int streamed_total, tiles;

  // The sequence that has tile number `place`, which becomes its place in this sequence.
  __device__ Sequence find(int &place, int) const {
    const int own = held.of_block(place);
    const PackedBlocks<BLOCK> streamed{streamed_begins, held.count, streamed_total};
    place -= held.first(own);
    return {held.length(own), streamed.length(own), held.token(own), streamed.token(own), 0, queries.first(own)};
  }
  __device__ int blocks() const { return tiles; }
  __device__ int in_order(int rank) const { return BY_KEYS ? rank : tiles - 1 - rank; }
};
