// Rows of a ("tokens") as the shared memory of gemm_int4_wgmma.cu holds them: tiles of TOKENS rows, steps of 64 k's, 8
// columns of 8 k's each, the rows of a column side by side. Within a chunk of 32 k's the order is that of the prepared
// weight: place 8 * h + 2 * t + e of product `step` has k = 8 * t + 4 * step + 2 * h + e. Beyond K there are zeros.
// `sums` has the sum over each unit of k's that share a scale: [tile, unit, row]. A warp has 8 rows of 4 chunks.

struct alignas(16) Words { unsigned word[4]; };

constexpr int LANES = 32, CHUNK = 32, ROWS = 8, WARP_CHUNKS = 4;
constexpr int UNIT_CHUNKS = UNIT / CHUNK;

__device__ inline float sum_of(const Words &words) {
  float sum = 0;
#pragma unroll
  for (int k = 0; k < 4; ++k) sum += to_float(from_bits<T>(words.word[k])) + to_float(from_bits<T>(words.word[k] >> 16));
  return sum;
}

extern "C" __global__ void __launch_bounds__(THREADS)
    token_tiles(Words *__restrict__ tiles, float *__restrict__ sums, const Words *__restrict__ a, long long m) {
  const int lane = threadIdx.x % LANES, warp = (int)blockIdx.y * (THREADS / LANES) + threadIdx.x / LANES;
  const long long row = (long long)blockIdx.x * ROWS + lane % ROWS;
  const int chunk = warp * WARP_CHUNKS + lane / ROWS;
  Words from[4] = {};
  float sum = 0;
#pragma unroll
  for (int t = 0; t < 4; ++t) {
    const int k = chunk * CHUNK + t * 8;
    if (row < m && k < K) from[t] = a[(row * K + k) / 8];
    sum += sum_of(from[t]);
  }
#pragma unroll
  for (int distance = ROWS; distance < ROWS * UNIT_CHUNKS; distance *= 2) sum += __shfl_xor_sync(~0u, sum, distance);
  if (row >= m || chunk >= CHUNKS) return;
  const long long tile = row / TOKENS;
  if (chunk % UNIT_CHUNKS == 0) sums[(tile * (CHUNKS / UNIT_CHUNKS) + chunk / UNIT_CHUNKS) * TOKENS + row % TOKENS] = sum;
  Words *to = tiles + ((tile * CHUNKS + chunk) * 4) * TOKENS + row % TOKENS;
#pragma unroll
  for (int column = 0; column < 4; ++column)
    to[column * TOKENS] = {from[0].word[column], from[1].word[column], from[2].word[column], from[3].word[column]};
}
