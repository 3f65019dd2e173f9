// Rows of a ("tokens") as the shared memory of gemm_int4_wgmma.cu holds them: tiles of TOKENS rows, steps of 64 k's, 8
// columns of 8 k's each, the rows of a column side by side. Within a chunk of 32 k's the order is that of the prepared
// weight: place 8 * h + 2 * t + e of product `step` has k = 8 * t + 4 * step + 2 * h + e. Beyond K there are zeros.

struct alignas(16) Words { unsigned word[4]; };

constexpr int CHUNK = 32, COLUMNS_OF_CHUNK = 4;

extern "C" __global__ void __launch_bounds__(THREADS)
    token_tiles(Words *__restrict__ tiles, const Words *__restrict__ a, long long m) {
  const long long row = (long long)blockIdx.x * ROWS + threadIdx.x % ROWS;
  const int chunk = (int)blockIdx.y * (THREADS / ROWS) + threadIdx.x / ROWS;
  if (row >= m || chunk >= CHUNKS) return;
  Words from[4];
#pragma unroll
  for (int t = 0; t < 4; ++t) {
    const int k = chunk * CHUNK + t * 8;
    from[t] = k < K ? a[(row * K + k) / 8] : Words{};
  }
  Words *to = tiles + ((row / TOKENS * CHUNKS + chunk) * COLUMNS_OF_CHUNK) * TOKENS + row % TOKENS;
#pragma unroll
  for (int column = 0; column < COLUMNS_OF_CHUNK; ++column)
    to[column * TOKENS] = {from[0].word[column], from[1].word[column], from[2].word[column], from[3].word[column]};
}
