// The gradients of rms_norm. With unit = x * inverse, inverse = 1 / sqrt(mean(x * x) + eps) and weighted = grad_y * weight:
// grad_x = (weighted - unit * mean(weighted * unit)) * inverse, and grad_weight = sum(grad_y * unit) over rows.
//
// Blocks stay and take a row at a time, whose x and grad_y the copy engine brings to shared memory: STAGES rows are there or on
// their way. A thread has the same columns of every row: it sums up their part of grad_weight, which a last launch adds over the
// blocks, in order. Sums of a row alternate between the slots of two, so that one barrier a row is enough.

static_assert(CLUSTER == 1 && TILES == 1 && ROWS == 2 && VEC * sizeof(T) == 16 && COLS % VEC == 0, "whole rows of whole vectors");

constexpr int OWN = ITEMS * VEC;  // columns of a thread
constexpr int ROW_BYTES = COLS * sizeof(T);
constexpr int STAGE_BYTES = 2 * ROW_BYTES;
constexpr int BARRIER_BYTES = 128;
static_assert(8 * STAGES <= BARRIER_BYTES, "a barrier a stage");

struct Sums {
  static constexpr int COUNT = 2;
  float part[COUNT] = {0.0f, 0.0f};  // of x * x, and of weighted * x

  __device__ void merge(const Sums &other) {
    part[0] += other.part[0];
    part[1] += other.part[1];
  }
};

struct Ring {
  unsigned base;
  int stage = 0;
  unsigned parity = 0;

  __device__ Ring() : base(shared_address(dynamic_shared())) {}
  __device__ void advance() {
    if (++stage == STAGES) stage = 0, parity ^= 1;
  }
  __device__ unsigned barrier(int stage) const { return base + 8 * stage; }
  __device__ unsigned x(int stage) const { return base + BARRIER_BYTES + stage * STAGE_BYTES; }
  __device__ unsigned gradient(int stage) const { return x(stage) + ROW_BYTES; }

  // By one thread.
  __device__ void fill(int stage, const T *x_row, const T *gradient_row) const {
    arrive_expecting(barrier(stage), STAGE_BYTES);
    copy_bytes(x(stage), x_row, ROW_BYTES, barrier(stage));
    copy_bytes(gradient(stage), gradient_row, ROW_BYTES, barrier(stage));
  }
};

__device__ inline void load_row(Tile &into, unsigned row, const Position &position) {
#pragma unroll
  for (int item = 0; item < ITEMS; ++item) {
    const int column = position.column(0, item);
    if (column < COLS) {
      const Words words = load_shared<Words>(row + column * (int)sizeof(T));
      into.held[item] = reinterpret_cast<const Vector &>(words);
    } else {
      into.held[item].fill(0.0f);
    }
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
    rms_norm_backward(
#if NEED_WEIGHT
        float *__restrict__ partial,
#endif
        T *__restrict__ grad_x, const T *__restrict__ grad_y, const T *__restrict__ x, const T *__restrict__ weight, float eps,
        long long rows) {
  Position position;
  Ring ring;
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < STAGES; ++stage) init_barrier(ring.barrier(stage), 1);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    for (int stage = 0; stage < STAGES; ++stage) {
      const long long row = blockIdx.x + (long long)stage * gridDim.x;
      if (row < rows) ring.fill(stage, x + row * COLS, grad_y + row * COLS);
    }
  }
  Tile gain;
  gain.load(weight, position, 0, 0.0f);
  float total[OWN] = {};
  __syncthreads();
#pragma unroll 1
  for (long long row = blockIdx.x; row < rows; row += gridDim.x, ring.advance()) {
    Tile value, gradient;
    await(ring.barrier(ring.stage), ring.parity);
    load_row(value, ring.x(ring.stage), position);
    load_row(gradient, ring.gradient(ring.stage), position);
    Sums sums;
#pragma unroll
    for (int item = 0; item < ITEMS; ++item) {
#pragma unroll
      for (int k = 0; k < VEC; ++k) {
        const float v = value.held[item].get(k), g = gradient.held[item].get(k);
        sums.part[0] = fmaf(v, v, sums.part[0]);
        if (NEED_X) sums.part[1] = fmaf(g * gain.held[item].get(k), v, sums.part[1]);
      }
      value.held[item].stay_packed();
      gradient.held[item].stay_packed();
      gain.held[item].stay_packed();
    }
    position.group ^= 1;
    sums = reduce_row(sums, position);
    // all have read the stage: they have met at the sums' barrier
    const long long later = row + (long long)STAGES * gridDim.x;
    if (threadIdx.x == 0 && later < rows) {
      asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
      ring.fill(ring.stage, x + later * COLS, grad_y + later * COLS);
    }
    const float inverse = 1.0f / sqrtf(sums.part[0] / COLS + eps), mean = sums.part[1] / COLS * inverse;
#pragma unroll
    for (int item = 0; item < ITEMS; ++item) {
      const int column = position.column(0, item);
      gradient.held[item].transform([&](int k, float g) {
        const float unit = value.held[item].get(k) * inverse;
        if (NEED_WEIGHT) total[item * VEC + k] = fmaf(g, unit, total[item * VEC + k]);
        return (g * gain.held[item].get(k) - unit * mean) * inverse;
      });
      if (NEED_X && column < COLS) *reinterpret_cast<Vector *>(grad_x + row * COLS + column) = gradient.held[item];
    }
  }
#if NEED_WEIGHT
#pragma unroll
  for (int item = 0; item < ITEMS; ++item) {
    const int column = position.column(0, item);
    if (column >= COLS) continue;
#pragma unroll
    for (int k = 0; k < VEC; ++k) partial[(long long)blockIdx.x * COLS + column + k] = total[item * VEC + k];
  }
#endif
}
