// y = exp(x - max) / sum(exp(x - max)) over each row: one sweep finds maximum and sum together (online softmax,
// Milakov and Gimelshein 2018), a second one writes. With TILES == 1 the row stays in registers between them.

constexpr float LOG2E = 1.4426950408889634f;

struct Normaliser {
  static constexpr int COUNT = 2;
  float part[COUNT] = {-CUDART_INF_F, 0.0f};  // maximum, sum of exp(x - maximum)

  __device__ void merge(const Normaliser &other) {
    const float maximum = fmaxf(part[0], other.part[0]);
    const float origin = finite_origin(maximum);
    part[1] = part[1] * exponential(part[0] - origin) + other.part[1] * exponential(other.part[0] - origin);
    part[0] = maximum;
  }
  // -inf - -inf is NaN, and a masked beginning of a row is no reason for one
  __device__ static float finite_origin(float maximum) { return maximum == -CUDART_INF_F ? 0.0f : maximum; }
};

__device__ Normaliser normaliser_of(Tile &tile) {
  float maximum = -CUDART_INF_F, sum = 0.0f;
  tile.each([&](float x) { maximum = fmaxf(maximum, x); });
  const float origin = Normaliser::finite_origin(maximum);
  tile.each([&](float x) { sum += exponential(x - origin); });
  Normaliser found;
  found.part[0] = maximum;
  found.part[1] = sum;
  return found;
}

// Halves fold the division into the exponent. float cannot: log2(sum) errs by 2**-22 there.
struct Weight {
  float maximum, scale;

  __device__ explicit Weight(const Normaliser &total) {
    maximum = total.part[0];
    scale = FAST ? -log2f(total.part[1]) : 1.0f / total.part[1];
  }
  __device__ float operator()(float x) const {
    return FAST ? exp2f(fmaf(x - maximum, LOG2E, scale)) : expf(x - maximum) * scale;
  }
};

__device__ void store(T *row, Tile &tile, const Position &position, int number, const Weight &weight) {
#pragma unroll
  for (int item = 0; item < ITEMS; ++item) {
    const int column = position.column(number, item);
    if (column >= position.end) continue;
    tile.held[item].transform([&](int, float x) { return weight(x); });
    *reinterpret_cast<Vector *>(row + column) = tile.held[item];
  }
}

extern "C" __global__ void __launch_bounds__(THREADS *ROWS, BLOCKS) softmax(T *__restrict__ y, const T *__restrict__ x, long long rows) {
#if CLUSTER > 1
  cluster_arrive();
#endif
  const Position position;
  // threads beyond the last row read it again, so that they meet the others at the barriers
  const bool mine = position.row < rows;
  const long long offset = (mine ? position.row : rows - 1) * COLS;
  Tile tile;
  tile.load(x + offset, position, 0, -CUDART_INF_F);
  Normaliser total = normaliser_of(tile);
  for (int number = 1; number < TILES; ++number) {
    tile.load(x + offset, position, number, -CUDART_INF_F);
    total.merge(normaliser_of(tile));
  }
  const Weight weight(reduce_row(total, position));
  if (!mine) return;
  // the last tile is still here; the others come from the L2 cache, the latest first
  for (int number = TILES - 1; number > 0; --number) {
    store(y + offset, tile, position, number, weight);
    tile.load(x + offset, position, number - 1, -CUDART_INF_F);
  }
  store(y + offset, tile, position, 0, weight);
}
