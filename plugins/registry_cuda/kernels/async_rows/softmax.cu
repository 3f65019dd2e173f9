// y = exp(x - max) / sum(exp(x - max)) over each row, which a cluster of blocks holds in its shared memory: maximum and sum
// are found together while later tiles are on their way (online softmax, Milakov and Gimelshein, 2018).

constexpr float LOG2E = 1.4426950408889634f;

// Of halves a power that is subnormal in float becomes zero: to keep it took four instructions more than the power itself.
__device__ inline float power_of_two(float x) {
  if constexpr (!FAST) return exp2f(x);
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ inline float power_of_e(float x) { return FAST ? power_of_two(x * LOG2E) : expf(x); }

struct Normaliser {
  static constexpr int COUNT = 2;
  float part[COUNT] = {-CUDART_INF_F, 0.0f};  // maximum, sum of exp(x - maximum)

  __device__ void merge(const Normaliser &other) {
    const float maximum = fmaxf(part[0], other.part[0]), origin = origin_of(maximum);
    part[1] = part[1] * power_of_e(part[0] - origin) + other.part[1] * power_of_e(other.part[0] - origin);
    part[0] = maximum;
  }
  __device__ void merge(Tile &tile) {
    float maximum = part[0], sums[2] = {};
    tile.each([&](float x) { maximum = fmaxf(maximum, x); });
    const float origin = origin_of(maximum);
    int k = 0;
    tile.each([&](float x) { sums[k++ % 2] += power_of_e(x - origin); });
    part[1] = part[1] * power_of_e(part[0] - origin) + (sums[0] + sums[1]);
    part[0] = maximum;
  }
  // -inf - -inf is NaN, and a masked beginning of a row is no reason for one
  __device__ static float origin_of(float maximum) { return maximum == -CUDART_INF_F ? 0.0f : maximum; }
};

// Halves fold the division into the exponent. float cannot: log2(sum) errs by 2**-22 there.
struct Weight {
  float maximum, scale;

  __device__ explicit Weight(const Normaliser &total) {
    maximum = total.part[0];
    scale = FAST ? -log2f(total.part[1]) : 1.0f / total.part[1];
  }
  __device__ float operator()(float x) const {
    return FAST ? power_of_two(fmaf(x - maximum, LOG2E, scale)) : expf(x - maximum) * scale;
  }
};

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
    async_softmax(T *__restrict__ y, const T *__restrict__ x, long long rows) {
  const Part part(rows);
  const Stage stage;
  const Meeting<Normaliser> meeting;
  stage.copy({x}, part);
  meeting.greet();
  Tile tile;
  Normaliser total;
#pragma unroll
  for (int k = 0; k < TILES; ++k) {
    stage.await_tile(k);
    stage.load(tile, 0, k, part, -CUDART_INF_F);
    total.merge(tile);
  }
  const Weight weight(meeting.reduce(total, part));
#pragma unroll 1
  for (int k = 0; k < TILES; ++k) {
    stage.load(tile, 0, k, part, 0.0f);
#pragma unroll
    for (int item = 0; item < ITEMS; ++item) {
      const int vector = part.vector(k, item);
      if (vector >= part.end) break;
      tile.held[item].transform([&](int, float value) { return weight(value); });
      part.store(y, vector, tile.held[item]);
    }
  }
}
