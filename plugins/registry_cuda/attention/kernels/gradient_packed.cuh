// Sequences of unlike lengths one after another. Of a head's `tiles` some may have no row.
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
  __device__ int blocks() const { return tiles; }
  __device__ int in_order(int rank) const { return BY_KEYS ? rank : tiles - 1 - rank; }
};
