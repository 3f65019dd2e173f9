// y = x / sqrt(mean(x * x) + eps) * weight over each row. With TILES == 1 the row stays in registers.
// With MIXED the weight is float beside halves.

#if MIXED
using Gain = float;
struct alignas(VEC < 4 ? VEC * sizeof(float) : 16) Gains {
  float value[VEC];
  __device__ float get(int k) const { return value[k]; }
};
#else
using Gain = T;
using Gains = Vector;
#endif

struct Squares {
  static constexpr int COUNT = 1;
  float part[COUNT] = {0.0f};

  __device__ void merge(const Squares &other) { part[0] += other.part[0]; }
};

__device__ Squares squares_of(Tile &tile) {
  Squares found;
  tile.each([&](float x) { found.part[0] = fmaf(x, x, found.part[0]); });
  return found;
}

__device__ void store(T *row, const Gain *weight, Tile &tile, const Position &position, int number, float inverse) {
#pragma unroll
  for (int item = 0; item < ITEMS; ++item) {
    const int column = position.column(number, item);
    if (column >= position.end) continue;
    const Gains gain = *reinterpret_cast<const Gains *>(weight + column);
    tile.held[item].transform([&](int k, float x) { return x * inverse * gain.get(k); });
    *reinterpret_cast<Vector *>(row + column) = tile.held[item];
  }
}

extern "C" __global__ void __launch_bounds__(THREADS *ROWS, BLOCKS)
    rms_norm(T *__restrict__ y, const T *__restrict__ x, const Gain *__restrict__ weight, float eps, long long rows) {
#if CLUSTER > 1
  cluster_arrive();
#endif
  const Position position;
  // threads beyond the last row read it again, so that they meet the others at the barriers
  const bool mine = position.row < rows;
  const long long offset = (mine ? position.row : rows - 1) * COLS;
  Tile tile;
  tile.load(x + offset, position, 0, 0.0f);
  Squares total = squares_of(tile);
  for (int number = 1; number < TILES; ++number) {
    tile.load(x + offset, position, number, 0.0f);
    total.merge(squares_of(tile));
  }
  const float inverse = 1.0f / sqrtf(reduce_row(total, position).part[0] / COLS + eps);
  if (!mine) return;
  // the last tile is still here; the others come from the L2 cache, the latest first
  for (int number = TILES - 1; number > 0; --number) {
    store(y + offset, weight, tile, position, number, inverse);
    tile.load(x + offset, position, number - 1, 0.0f);
  }
  store(y + offset, weight, tile, position, 0, inverse);
}
