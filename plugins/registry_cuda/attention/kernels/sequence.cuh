constexpr int ROWS = WARPGROUPS * 64;            // queries of a tile
constexpr int PATTERN = 1024;                    // bytes after which the swizzle repeats; barriers lie in the first
constexpr int BARRIER_BYTES = 16 * STAGES + 16;  // two a stage, and two of the queries

// The address in shared memory where the first pattern begins.
__device__ inline unsigned first_pattern() { return (shared_address(dynamic_shared()) + PATTERN - 1) / PATTERN * PATTERN; }

// A sequence of queries and keys, whose first ones are rows `first_row` and `first_key` of batch `batch` of tensors.
struct Sequence {
  int q_len, kv_len, first_row, first_key, batch;

  // what a query's own key is behind it
  __device__ int shift() const { return kv_len - q_len; }
  // The row of the output, of all batches, that is the first query's.
  __device__ long long output_row() const { return (long long)batch * q_len + first_row; }
};
