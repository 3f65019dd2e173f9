// The gradients of attention (Dao, 2023; Shah et al., 2024: FlashAttention 3) on Hopper's warpgroup tensor cores, from the
// log-sum-exp of each row: two passes of one form, of which none adds by atomics.
//
// A pass holds tiles of two tensors, and blocks of rows of two others stream by:
//
//   BY_KEYS   keys and values are held, of each head of their group queries and gradients of outputs stream: grad_k, grad_v
//   else      queries and gradients of outputs are held, keys and values stream: grad_q
//
// The first of two tensors are keys and queries, whose products are logits. The second are values and gradients of outputs,
// whose products less a row's delta are the changes of weights.
//
//   BEFORE, AFTER   a held row sees streamed ones from so many before its own to so many behind it; -1: all there are

constexpr int LANES = 32, WARPS = 4, WIDTH = 128;
constexpr int MULTIPLIERS = WARPGROUPS * WARPS * LANES, THREADS = MULTIPLIERS + WARPS * LANES;
constexpr int ROWS = WARPGROUPS * 64;                      // of a held tile
constexpr int HELD_HEADS = BY_KEYS ? HEADS / GROUP : HEADS;
constexpr int MEMBERS = BY_KEYS ? GROUP : 1;               // heads that stream by a held tile
constexpr int PARTS = (DIM + 63) / 64, SPAN = PARTS * 64;  // a head in parts of 64 elements, 128 bytes, zeros behind it
constexpr int SCORES = BLOCK / 2, SUMS = SPAN / 2;         // of a thread
constexpr int PATTERN = 1024;                              // bytes after which the swizzle repeats; barriers lie in the first
constexpr int BARRIER_BYTES = 16 * STAGES + 16;            // two a stage, and two of the held tiles
constexpr int HELD_BYTES = PARTS * ROWS * WIDTH;           // of one of two tensors
constexpr int BLOCK_BYTES = PARTS * BLOCK * WIDTH;
constexpr int TERM_BYTES = BY_KEYS ? 8 * BLOCK : 0;        // that stream with a block: log-sum-exps and deltas
constexpr float LOG2E = 1.4426950408889634f;
static_assert(STAGES > 1, "a block is waited for before the one before it is given back");

// The address in shared memory where the first pattern begins.
__device__ inline unsigned first_pattern() { return (shared_address(dynamic_shared()) + PATTERN - 1) / PATTERN * PATTERN; }

// A sequence, whose first held and streamed tokens are rows `first_held` and `first_streamed` of batch `batch` of tensors,
// and whose first block of terms is a head's number `first_terms`.
struct Sequence {
  int held_len, streamed_len, first_held, first_streamed, batch, first_terms;

  // what a held row's own streamed one is behind it
  __device__ int shift() const { return streamed_len - held_len; }
  // The row of a gradient, of all batches, that is the first held token's.
  __device__ long long output_row() const { return (long long)batch * held_len + first_held; }
};
