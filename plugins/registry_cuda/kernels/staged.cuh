// Parts of INPUTS rows in shared memory, where the copy engine brings them tile by tile: each is read from memory once,
// however often it is gone through, and no register waits for it. The barriers of the tiles lie in front.

constexpr int TILE_BYTES = TILE * sizeof(T);
constexpr int INPUT_BYTES = TILES * TILE_BYTES;
constexpr int BARRIER_BYTES = (8 * TILES + 127) / 128 * 128;
static_assert(VEC * sizeof(T) == 16 && ROWS == 1 && (CLUSTER - 1) * SLICE < COLS, "whole vectors, and some for each block");

struct Stage {
  unsigned base;

  __device__ Stage() : base(shared_address(dynamic_shared())) {}
  __device__ unsigned barrier(int tile) const { return base + 8 * tile; }
  __device__ unsigned place(int input, int tile) const { return base + BARRIER_BYTES + input * INPUT_BYTES + tile * TILE_BYTES; }

  // By all threads: one asks for all tiles at once.
  __device__ void fill(const T *const (&rows)[INPUTS], const Position &position) const {
    if (threadIdx.x == 0) {
#pragma unroll 1
      for (int tile = 0; tile < TILES; ++tile) init_barrier(barrier(tile), 1);
      asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#pragma unroll 1
      for (int tile = 0; tile < TILES; ++tile) {
        const int first = position.first + tile * TILE, columns = min(TILE, position.end - first);
        if (columns <= 0) break;
        arrive_expecting(barrier(tile), INPUTS * columns * (int)sizeof(T));
#pragma unroll
        for (int input = 0; input < INPUTS; ++input)
          copy_bytes(place(input, tile), rows[input] + first, columns * (int)sizeof(T), barrier(tile));
      }
    }
    __syncthreads();
  }

  __device__ void await_tile(int tile, const Position &position) const {
    if (position.first + tile * TILE < position.end) await(barrier(tile), 0);
  }

  // What lies beyond the row becomes `padding`.
  __device__ void load(Tile &into, int input, int tile, const Position &position, float padding) const {
#pragma unroll
    for (int item = 0; item < ITEMS; ++item) {
      if (position.column(tile, item) < position.end) {
        const Words words = load_shared<Words>(place(input, tile) + (item * THREADS + position.thread) * 16);
        into.held[item] = reinterpret_cast<const Vector &>(words);
      } else {
        into.held[item].fill(padding);
      }
    }
  }
};
