// vector_add, square, gelu: blocks of elements; a thread takes the next one when it is done. Every shape is flat here.
// ELEMENT is the element type, OP one of the structs below.
#include <atomic>

namespace {

using T = ELEMENT;

// x * sigmoid(2u), u = sqrt(2 / pi) (x + 0.044715 x^3): the tanh form without its cancellation for negative x
inline Floats gelu_tanh(Floats x) {
    const Floats minus_2u = x * (x * x * -0.0713548163f - 1.59576912f);
    return x / (1.0f + exponential(minus_2u));
}

// x Phi(x) through erfc(t) = exp(-t^2) h(q) / (1 + 2t), t = |x| / sqrt 2, q = (t - 3) / (t + 3), as Shepherd and
// Laframboise (1981) do; h is a minimax polynomial of degree 10 (3e-9 relative), so that the tail is right as well.
inline Floats gelu_erf(Floats x) {
    Floats t = bits_as<Floats>(bits_as<Words>(x) & 0x7fffffff) * 0.707106781f;
    t = where(t > 10.6f, all(10.6f), t);
    const Floats q = (t - 3.0f) / (t + 3.0f);
    Floats h = q * -0.00026342543f - 0.00076550216f;
    h = h * q + 0.0020090571f;
    h = h * q + 0.0025630272f;
    h = h * q - 0.0238024925f;
    h = h * q + 0.0682958066f;
    h = h * q - 0.1192700565f;
    h = h * q + 0.1296464950f;
    h = h * q - 0.0475624539f;
    h = h * q - 0.1356211454f;
    h = h * q + 1.2530080080f;
    const Floats tail = 0.5f * h / (1.0f + 2.0f * t) * exponential(-t * t);
    return x * where(x < 0.0f, tail, 1.0f - tail);
}

struct Add {
    static Floats of(Floats x, Floats y) { return x + y; }
};
struct Square {
    static Floats of(Floats x, Floats) { return x * x; }
};
struct GeluTanh {
    static Floats of(Floats x, Floats) { return gelu_tanh(x); }
};
struct GeluErf {
    static Floats of(Floats x, Floats) { return gelu_erf(x); }
};

// `other` is null for a function of one argument
template <class Op, class T> struct Mapping {
    const T *x, *other;
    T *out;

    Floats second(int64_t i) const { return other ? load(other + i) : Floats{}; }

    void some(int64_t i, int64_t count) const {
        const Floats y = other ? load_some(other + i, count, 0) : Floats{};
        store_some(out + i, Op::of(load_some(x + i, count, 0), y), count);
    }

    void block(int64_t begin, int64_t end) const {
        int64_t i = begin;
#pragma GCC unroll 2
        for (; i + LANES <= end; i += LANES)
            store(out + i, Op::of(load(x + i), second(i)));
        if (i < end)
            some(i, end - i);
    }

    void block_past_caches(int64_t begin, int64_t end) const {
        const int64_t head = until_aligned(out + begin, end - begin);
        block(begin, begin + head);
        int64_t i = begin + head;
        for (; i + LANES <= end; i += LANES)
            store_past(out + i, Op::of(load(x + i), second(i)));
        block(i, end);
        fence();
    }
};

template <class Op, class T>
void map(T *out, const T *x, const T *other, int64_t n, int64_t block, bool stream, int64_t threads) {
    const Mapping<Op, T> mapping{x, other, out};
    const int64_t blocks = (n + block - 1) / block;
    std::atomic<int64_t> next{0};
    registry::parallel(threads < blocks ? threads : blocks, [&](int64_t, int64_t) {
        for (int64_t taken; (taken = next.fetch_add(1, std::memory_order_relaxed)) < blocks;) {
            const int64_t begin = taken * block, end = begin + block < n ? begin + block : n;
            if (stream)
                mapping.block_past_caches(begin, end);
            else
                mapping.block(begin, end);
        }
    });
}

inline void unary(T *y, const T *x, int64_t n, int64_t block, bool stream, int64_t threads) {
    map<OP, T>(y, x, nullptr, n, block, stream, threads);
}

inline void binary(T *out, const T *x, const T *y, int64_t n, int64_t block, bool stream, int64_t threads) {
    map<OP, T>(out, x, y, n, block, stream, threads);
}

} // namespace
