// y = x / sqrt(mean(x * x) + eps) * weight over each row, which a cluster of blocks holds in its shared memory. With MIXED the
// weight is float beside halves.

static_assert(COLS % VEC == 0, "weights are read in vectors");

#if MIXED
using Gain = float;
struct alignas(16) Gains {
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

// The weights of a tile. They are loaded while the tile before is worked on, the first while the row is on its way: 1 to 7% of the
// time over rows of 32768 on an H200. Twice as long ones would need too many registers.
constexpr bool AHEAD = sizeof(Gain) == sizeof(T);

struct TileGains {
  Gains held[ITEMS];

  __device__ void load(const Gain *weight, int tile, const Part &part) {
#pragma unroll
    for (int item = 0; item < ITEMS; ++item) {
      const int vector = part.vector(tile, item);
      if (vector < part.end && part.whole(vector))
        held[item] = *reinterpret_cast<const Gains *>(weight + (vector * VEC - part.lead));
    }
  }
};

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
    async_rms_norm(T *__restrict__ y, const T *__restrict__ x, const Gain *__restrict__ weight, float eps, long long rows) {
  const Part part(rows);
  const Stage stage;
  const Meeting<Squares> meeting;
  stage.copy({x}, part);
  TileGains ahead;
  if (AHEAD) ahead.load(weight, 0, part);
  meeting.greet();
  Tile tile;
  Squares total;
#pragma unroll
  for (int k = 0; k < TILES; ++k) {
    stage.await_tile(k);
    stage.load(tile, 0, k, part, 0.0f);
    tile.each([&](float value) { total.part[0] = fmaf(value, value, total.part[0]); });
  }
  const float inverse = 1.0f / sqrtf(meeting.reduce(total, part).part[0] / COLS + eps);
#pragma unroll 1
  for (int k = 0; k < TILES; ++k) {
    stage.load(tile, 0, k, part, 0.0f);
    if (!AHEAD) ahead.load(weight, k, part);
    const TileGains gains = ahead;
    if (AHEAD && k + 1 < TILES) ahead.load(weight, k + 1, part);
#pragma unroll
    for (int item = 0; item < ITEMS; ++item) {
      const int vector = part.vector(k, item);
      if (vector >= part.end) break;
      if (!part.whole(vector)) continue;
      tile.held[item].transform([&](int e, float value) { return value * inverse * gains.held[item].get(e); });
      part.store(y, vector, tile.held[item]);
    }
  }
}
