// grad_weight from `count` rows of partial sums: the lanes of a warp have neighbouring columns, its warps take rows in turn.
extern "C" __global__ void __launch_bounds__(32 * WARPS)
    sum_partial(T *__restrict__ grad_weight, const float *__restrict__ partial, long long columns, long long count) {
  __shared__ float sums[WARPS][32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const long long column = blockIdx.x * 32ll + lane;
  float sum = 0.0f;
  if (column < columns)
#pragma unroll 4
    for (int row = warp; row < (int)count; row += WARPS) sum += partial[row * columns + column];
  sums[warp][lane] = sum;
  __syncthreads();
  if (warp > 0 || column >= columns) return;
  for (int other = 1; other < WARPS; ++other) sum += sums[other][lane];
  grad_weight[column] = from_float<T>(sum);
}
