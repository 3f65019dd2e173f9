// AMX tiles. The instructions are written out: the intrinsics of GCC 12 do not say that a load reads memory.
#if !defined(__x86_64__)
#error "AMX is of x86-64"
#endif

#define TILE_ZERO(tile) asm volatile("tilezero %%tmm" #tile ::: "memory")
#define TILE_LOAD(tile, from, bytes)                                                                                   \
    asm volatile("tileloadd (%0,%1,1), %%tmm" #tile ::"r"(from), "r"(static_cast<int64_t>(bytes)) : "memory")
#define TILE_STORE(tile, to, bytes)                                                                                    \
    asm volatile("tilestored %%tmm" #tile ", (%0,%1,1)" ::"r"(to), "r"(static_cast<int64_t>(bytes)) : "memory")
#define TILE_MULTIPLY(name, c, a, b) asm volatile(name " %%tmm" #b ", %%tmm" #a ", %%tmm" #c ::: "memory")

namespace {

// What ldtilecfg reads: tiles 0 to 3 are sums, 4 and 5 activations, 6 and 7 weights.
struct alignas(64) TileShapes {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t bytes[16] = {};
    uint8_t rows[16] = {};

    // activations of up to 16 tokens and `depth` bytes of K, weights of as much of K (4 bytes a row) and 16 columns
    TileShapes(int64_t depth, int64_t tokens) {
        for (int tile = 0; tile < 8; ++tile) {
            bytes[tile] = static_cast<uint16_t>(tile == 4 || tile == 5 ? depth : 64);
            rows[tile] = static_cast<uint8_t>(tile >= 6 ? depth / 4 : tokens);
        }
    }
};

// The tiles of this thread, from here to the end of the scope. Left as other libraries expect them: released.
struct Tiles {
    explicit Tiles(const TileShapes &shapes) { asm volatile("ldtilecfg %0" ::"m"(shapes) : "memory"); }
    ~Tiles() { asm volatile("tilerelease" ::: "memory"); }
    Tiles(const Tiles &) = delete;
    Tiles &operator=(const Tiles &) = delete;
};

inline void clear_sums() {
    TILE_ZERO(0);
    TILE_ZERO(1);
    TILE_ZERO(2);
    TILE_ZERO(3);
}

} // namespace
