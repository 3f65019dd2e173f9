// grad_x = y * (grad_y - sum(grad_y * y)) over each row, of which a cluster of blocks holds y and grad_y in its shared memory.

struct Dot {
  static constexpr int COUNT = 1;
  float part[COUNT] = {0.0f};

  __device__ void merge(const Dot &other) { part[0] += other.part[0]; }
};

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
    async_softmax_backward(T *__restrict__ grad_x, const T *__restrict__ grad_y, const T *__restrict__ y, long long rows) {
  const Part part(rows);
  const Stage stage;
  const Meeting<Dot> meeting;
  stage.copy({grad_y, y}, part);
  meeting.greet();
  Tile gradient, weight;
  Dot total;
#pragma unroll
  for (int k = 0; k < TILES; ++k) {
    stage.await_tile(k);
    stage.load(gradient, 0, k, part, 0.0f);
    stage.load(weight, 1, k, part, 0.0f);
#pragma unroll
    for (int item = 0; item < ITEMS; ++item)
#pragma unroll
      for (int e = 0; e < VEC; ++e) total.part[0] = fmaf(gradient.held[item].get(e), weight.held[item].get(e), total.part[0]);
  }
  const float sum = meeting.reduce(total, part).part[0];
#pragma unroll 1
  for (int k = 0; k < TILES; ++k) {
    stage.load(gradient, 0, k, part, 0.0f);
    stage.load(weight, 1, k, part, 0.0f);
#pragma unroll
    for (int item = 0; item < ITEMS; ++item) {
      const int vector = part.vector(k, item);
      if (vector >= part.end) break;
      gradient.held[item].transform([&](int e, float value) { return weight.held[item].get(e) * (value - sum); });
      part.store(grad_x, vector, gradient.held[item]);
    }
  }
}
