// Lists of the few logits that matter: those of the chosen bin, and those of the greater bins, which are kept anyway.

constexpr int LISTED = 256;

struct Entry { unsigned key; int column; };

struct Told { unsigned kept, inside, least, greatest; };  // of both lists the length; of the chosen bin the keys' ends

struct Lists {
  unsigned many[2];  // may be more than fit
  unsigned least, greatest;
  Entry entries[2][LISTED];
  Told told[CLUSTER];

  __device__ void clear() { many[0] = many[1] = greatest = 0, least = 0xffffffffu; }

  // List this block's logits of bin `chosen` and, of bins over the whole row, of the greater ones. Ends with a meeting.
  __device__ void fill(const Row &row, const Bins &bins, int chosen) {
    unsigned low = 0xffffffffu, high = 0;
    row.each([&](float logit, int column) {
      const int bin = bins.of(logit), inside = bin == chosen;
      if (bin < 0 || bin > chosen || !row.keeps(logit) || !(inside || bins.whole())) return;
      const unsigned key = key_of(logit);
      if (inside) low = Least()(low, key), high = Greatest()(high, key);
      // a list that is too long is of no use: the atomics would wait for each other
      if (*(volatile unsigned *)&many[inside] > LISTED) return;
      const unsigned place = atomicAdd(&many[inside], 1u);
      if (place < LISTED) entries[inside][place] = {key, column};
    });
    low = over_warp(low, Least()), high = over_warp(high, Greatest());
    if (threadIdx.x % 32 == 0) atomicMin(&least, low), atomicMax(&greatest, high);
    __syncthreads();
    tell_siblings(told, Told{many[0], many[1], least, greatest});
    meet();
  }

  // of all blocks
  __device__ Told together() const {
    Told all = told[0];
    for (int rank = 1; rank < CLUSTER; ++rank) {
      all.kept += told[rank].kept, all.inside += told[rank].inside;
      all.least = Least()(all.least, told[rank].least), all.greatest = Greatest()(all.greatest, told[rank].greatest);
    }
    return all;
  }
};

// Entries of all blocks in one, ranked by comparing each with each.
struct Ranking {
  int many;
  unsigned key[LISTED];
  int column[LISTED];
  Mass weight[LISTED], greater[LISTED], kept[LISTED];
  Mass parts[2][WARPS];
  unsigned least;
  int found;

  // Take the chosen bin's entries, and those of greater bins; they are LISTED at most. A barrier must follow.
  __device__ void gather(Lists &lists, const Row &row, bool with_kept) {
    if (threadIdx.x == 0) least = 0xffffffffu, found = COLS;
    int begin = 0;
    for (int part = 0; part < 2 * CLUSTER; ++part) {
      const int inside = part % 2, rank = part / 2;
      if (!inside && !with_kept) continue;
      const int length = inside ? lists.told[rank].inside : lists.told[rank].kept;
      // a warp a list, so that the siblings' memory is waited for once
      if (part % WARPS == threadIdx.x / 32)
        for (int i = threadIdx.x % 32; i < length; i += 32)
          take(begin + i, *at_sibling(&lists.entries[inside][i], rank), row);
      begin += length;
    }
    many = begin;
  }

  __device__ void take(int place, const Entry &entry, const Row &row) {
    key[place] = entry.key, column[place] = entry.column, weight[place] = row.weight(logit_of(entry.key));
  }

  // use(i, number, mass) of the entries j that before(j, i) is true of; 8 lanes an entry
  template <typename Before, typename Use> __device__ void rank(const Mass *masses, Before before, Use use) {
    for (int first = 0; first < many; first += THREADS / 8) {
      const int i = first + threadIdx.x / 8;
      unsigned number = 0;
      Mass mass = 0;
      if (i < many)
        for (int j = threadIdx.x % 8; j < many; j += 8)
          if (before(j, i)) ++number, mass += masses[j];
      number = over_warp<8>(number, Sum()), mass = over_warp<8>(mass, Sum());
      if (i < many && threadIdx.x % 8 == 0) use(i, number, mass);
    }
  }

  __device__ Mass sum_kept(Mass *sums) {
    Mass own = 0;
    for (int i = threadIdx.x; i < many; i += THREADS) own += kept[i];
    return sum_block(own, sums);
  }

  // The key of the least entry that is kept, where `above` is the sum of what is greater than all entries.
  template <bool BY_MASS> __device__ unsigned threshold(const Target<BY_MASS> &target, Mass above) {
    __syncthreads();
    rank(weight, [&](int j, int i) { return key[j] > key[i]; }, [&](int i, unsigned number, Mass mass) {
      if (!target.reached(above + (BY_MASS ? mass : number))) atomicMin(&least, key[i]);
    });
    __syncthreads();
    return least;
  }

  // Draw from the entries, which are all that may be kept. `number`: top_k, `whole`: the mass that `share` is of, or 0
  // for that of what top_k keeps. Returns the column.
  __device__ int draw(Mass number, float share, Mass whole, float uniform) {
    rank(weight, [&](int j, int i) { return key[j] > key[i]; }, [&](int i, unsigned above, Mass mass) {
      greater[i] = mass, kept[i] = above < number ? weight[i] : 0;
    });
    __syncthreads();
    if (TOP_P && share < 1.0f) {
      const Target<true> target = {0, share, whole ? whole : sum_kept(parts[0])};
      // each thread has what it has summed
      for (int i = threadIdx.x; i < many; i += THREADS)
        if (target.reached(greater[i])) kept[i] = 0;
    }
    const double mass = (double)uniform * (double)sum_kept(parts[1]);
    rank(kept, [&](int j, int i) { return column[j] <= column[i]; }, [&](int i, unsigned, Mass passed) {
      if (kept[i] && (double)passed > mass) atomicMin(&found, column[i]);
    });
    __syncthreads();
    return found;
  }
};
