static_assert(BARRIER_BYTES + 4 + 4 * MOST_SORTED <= PATTERN && MOST_SORTED <= THREADS, "room and threads to sort");

__device__ void Sequences::sort() const {
  if (!are_sorted()) return;
  int *const counts = order() + (PATTERN - BARRIER_BYTES) / 4;  // where held rows will be
  const int place = threadIdx.x;
  int own = -1;
  if (place < tiles) {
    const Tile tile(place, 0, *this);
    if (!tile.is_empty()) own = tile.count;
    counts[place] = own;
  }
  order()[0] = __syncthreads_count(own >= 0);
  if (own >= 0) {
    int rank = 0;
    for (int other = 0; other < tiles; ++other)
      rank += counts[other] > own || (counts[other] == own && other < place);
    order()[1 + rank] = place;
  }
  show_writes();
}

// Blocks of terms have `queries` rows.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    attention_varlen_gradient(TENSOR_MAP(held_first), TENSOR_MAP(held_second), TENSOR_MAP(first), TENSOR_MAP(second),
                              ELEMENT *grad_first, ELEMENT *grad_second, const float *terms, const int *held_begins,
                              const int *streamed_begins, const float scale, const float softcap, const long long count,
                              const long long held_total, const long long streamed_total, const long long tiles,
                              const long long queries, const long long term_blocks, const long long together) {
  const PackedBlocks held{held_begins, (int)count, (int)held_total, ROWS};
  const PackedBlocks streamed{streamed_begins, (int)count, (int)streamed_total, BLOCK};
  const PackedBlocks of_terms{BY_KEYS ? streamed_begins : held_begins, (int)count,
                              (int)(BY_KEYS ? streamed_total : held_total), BY_KEYS ? BLOCK : (int)queries};
  const Sequences sequences{held, streamed, of_terms, (int)tiles};
  sequences.sort();
  differentiate({(Map)&held_first, (Map)&held_second, (Map)&first, (Map)&second},
                Tiles{sequences, HELD_HEADS, (int)together}, Terms{terms, of_terms.size, (int)term_blocks}, grad_first,
                grad_second, scale, softcap);
}
