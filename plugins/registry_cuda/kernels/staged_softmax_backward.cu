// grad_x = y * (grad_y - sum(grad_y * y)) over each row, of which a cluster of blocks holds y and grad_y in its shared memory.

struct Dot {
  static constexpr int COUNT = 1;
  float part[COUNT] = {0.0f};

  __device__ void merge(const Dot &other) { part[0] += other.part[0]; }
};

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
    staged_softmax_backward(T *__restrict__ grad_x, const T *__restrict__ grad_y, const T *__restrict__ y, long long) {
#if CLUSTER > 1
  cluster_arrive();
#endif
  const Position position;
  const long long offset = position.row * COLS;
  const Stage stage;
  stage.fill({grad_y + offset, y + offset}, position);
  Tile gradient, weight;
  Dot total;
#pragma unroll 1
  for (int k = 0; k < TILES; ++k) {
    stage.await_tile(k, position);
    stage.load(gradient, 0, k, position, 0.0f);
    stage.load(weight, 1, k, position, 0.0f);
#pragma unroll
    for (int item = 0; item < ITEMS; ++item)
#pragma unroll
      for (int e = 0; e < VEC; ++e) total.part[0] = fmaf(gradient.held[item].get(e), weight.held[item].get(e), total.part[0]);
  }
  const float sum = reduce_row(total, position).part[0];
#pragma unroll 1
  for (int k = 0; k < TILES; ++k) {
    stage.load(gradient, 0, k, position, 0.0f);
    stage.load(weight, 1, k, position, 0.0f);
#pragma unroll
    for (int item = 0; item < ITEMS; ++item) {
      const int column = position.column(k, item);
      if (column >= position.end) continue;
      gradient.held[item].transform([&](int e, float value) { return weight.held[item].get(e) * (value - sum); });
      *reinterpret_cast<Vector *>(grad_x + offset + column) = gradient.held[item];
    }
  }
}
