// A tile of held rows of a head, the blocks of streamed rows that some of these see, and the thread that has both fetched.
//
// A text before this one has `struct Sequences`, which knows where the rows of a tile begin and end.

// There are `count` blocks from number `begin` on. Of those from `whole_begin` on `whole` come first, of which all held rows see
// all rows; then those behind, and those before them. Streamed queries that are not there have terms of which weights are 0,
// so that their block is as a whole one.
struct Tile {
  static constexpr bool ALL_WHOLE = BY_KEYS && AFTER < 0;  // from `whole_begin` on
  Sequence sequence;
  int row, head, begin, whole_begin, whole, count;

  __device__ Tile(int place, int flat, const Sequences &sequences)
      : sequence(sequences.find(place, flat)), row(place * ROWS), head(flat % HELD_HEADS), begin(0), whole_begin(0) {
    const int own = row + sequence.shift(), last = min(row + ROWS, sequence.held_len) - 1 + sequence.shift();
    const int seen = min(over(last), sequence.streamed_len), all = min(over(own), sequence.streamed_len);
    const int end = seen > 0 ? (seen + BLOCK - 1) / BLOCK : 0, whole_end = ALL_WHOLE ? end : all > 0 ? all / BLOCK : 0;
    if (BEFORE >= 0) {
      begin = min(max(under(own), 0) / BLOCK, end);
      whole_begin = min((max(under(row + ROWS - 1 + sequence.shift()), 0) + BLOCK - 1) / BLOCK, end);
    }
    count = end - begin;
    whole = max(whole_end - whole_begin, 0);
  }
  // The block that is taken as number `turn`.
  __device__ int block(int turn) const {
    const int found = whole_begin + turn;
    return found < begin + count ? found : found - count;
  }
  // No row: of packed sequences some tiles are not filled, and where offsets are wrong a row may be below 0.
  __device__ bool is_empty() const { return (unsigned)row >= (unsigned)sequence.held_len; }
  // The first and behind the last streamed row that the held one whose own is `own` sees.
  __device__ int under(int own) const { return BEFORE >= 0 ? own - BEFORE : 0; }
  __device__ int over(int own) const { return AFTER >= 0 ? own + AFTER + 1 : sequence.streamed_len; }
  // Of the heads that stream by, number `member`, and the one of queries of the two.
  __device__ int streamed_head(int member) const { return BY_KEYS ? head * GROUP + member : head / GROUP; }
  __device__ int query_head(int member) const { return BY_KEYS ? streamed_head(member) : head; }
};

// The tiles of a block of threads. Heads are taken `together` at a time; of these, tiles with many blocks run first, each in
// as many turns as there are heads. Every other turn goes the other way, so that two turns have as many blocks for each.
struct Tiles {
  Sequences sequences;
  int heads, together, turn = 0;

  __device__ int index() const {
    const int place = turn % 2 ? gridDim.x - 1 - blockIdx.x : blockIdx.x;
    return turn * gridDim.x + place;
  }
  __device__ int count() const { return heads * sequences.blocks(); }
  // Whether there is such a turn: the other way a block of threads may have none in the last one.
  __device__ bool exists() const { return turn * gridDim.x < count(); }
  __device__ bool is_mine() const { return index() < count(); }
  __device__ Tile tile() const {
    const int band = index() / (together * sequences.blocks()), rest = index() % (together * sequences.blocks());
    const int width = min(together, heads - band * together);
    return Tile(sequences.in_order(rest / width), band * together + rest % width, sequences);
  }
};

// Shared memory: barriers, the held tiles, stages of two blocks, and the stages' terms.
struct Ring {
  unsigned base;
  int stage = 0;
  unsigned parity = 0;

  __device__ explicit Ring(unsigned base) : base(base) {}
  __device__ void advance() {
    if (++stage == STAGES) stage = 0, parity ^= 1;
  }
  __device__ int before() const { return stage ? stage - 1 : STAGES - 1; }
  __device__ unsigned full() const { return base + 8 * stage; }
  __device__ unsigned empty(int stage) const { return base + 8 * (STAGES + stage); }
  __device__ unsigned held_full() const { return base + 16 * STAGES; }
  __device__ unsigned held_empty() const { return base + 16 * STAGES + 8; }
  __device__ unsigned held(int second) const { return base + PATTERN + second * HELD_BYTES; }
  __device__ unsigned block(int second) const { return held(2) + (2 * stage + second) * BLOCK_BYTES; }
  __device__ unsigned terms() const { return held(2) + STAGES * 2 * BLOCK_BYTES + stage * TERM_BYTES; }
};

// Terms of blocks of `queries` rows: as many log-sum-exps in units of the exponential with base 2, then as many deltas. A head
// of all sequences has `blocks`. Where queries stream, a block of them has one of terms.
struct Terms {
  const float *from;
  int queries, blocks;

  __device__ const float *of_block(const Tile &tile, int member, int block) const {
    const int head = tile.sequence.batch * HEADS + tile.query_head(member);
    return from + (long long)(head * blocks + tile.sequence.first_terms + block) * 2 * queries;
  }
};

// By one thread of a block: ask for the held rows of all its tiles, and for streamed ones in the order of their use.
struct Fetcher {
  Map held_first, held_second, first, second;
  Terms terms;
  Ring ring;
  unsigned parity = 1;

  __device__ void run(Tiles tiles) {
    for (; tiles.exists(); ++tiles.turn) {
      if (!tiles.is_mine()) continue;
      const Tile tile = tiles.tile();
      if (tile.is_empty() || !tile.count) continue;
      fetch_held(tile);
#pragma unroll 1
      for (int member = 0; member < MEMBERS; ++member)
#pragma unroll 1
        for (int turn = 0; turn < tile.count; ++turn) fetch(tile, member, tile.block(turn));
    }
  }
  __device__ void fetch_held(const Tile &tile) {
    await(ring.held_empty(), parity);
    parity ^= 1;
    arrive_expecting(ring.held_full(), 2 * HELD_BYTES);
#pragma unroll
    for (int part = 0; part < 2 * PARTS; ++part)
      load_head_tile(ring.held(0) + part * ROWS * WIDTH, part < PARTS ? held_first : held_second, part % PARTS * 64,
                     tile.sequence.first_held + tile.row, tile.head, tile.sequence.batch, ring.held_full());
  }
  __device__ void fetch(const Tile &tile, int member, int block) {
    await(ring.empty(ring.stage), ring.parity ^ 1);
    arrive_expecting(ring.full(), 2 * BLOCK_BYTES + TERM_BYTES);
#pragma unroll
    for (int part = 0; part < 2 * PARTS; ++part)
      load_head_tile(ring.block(0) + part * BLOCK * WIDTH, part < PARTS ? first : second, part % PARTS * 64,
                     tile.sequence.first_streamed + block * BLOCK, tile.streamed_head(member), tile.sequence.batch,
                     ring.full());
    if (BY_KEYS) copy_bytes(ring.terms(), terms.of_block(tile, member, block), TERM_BYTES, ring.full());
    ring.advance();
  }
};
