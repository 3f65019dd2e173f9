// What every C++ kernel is compiled with: threads as a run-time argument, and the entry that the host calls.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <omp.h>
#include <type_traits>
#include <utility>

namespace registry {

// libgomp's pool does not survive a fork: a parallel region in the child waits for threads that are gone, for ever.
static bool serial = false;

struct Span {
    int64_t begin, end;
};

// The part-th of parts contiguous shares of count things; shares differ by one at most.
static inline Span share(int64_t count, int64_t part, int64_t parts) {
    return {count * part / parts, count * (part + 1) / parts};
}

// body(part, parts) on at most `threads` threads, and on no more than torch.set_num_threads or OMP_NUM_THREADS allow.
template <class Body> static inline void parallel(int64_t threads, Body &&body) {
    const int64_t allowed = serial ? 1 : omp_get_max_threads();
    const int team = static_cast<int>(threads < allowed ? threads : allowed);
    if (team <= 1) {
        body(int64_t{0}, int64_t{1});
        return;
    }
#pragma omp parallel num_threads(team)
    body(static_cast<int64_t>(omp_get_thread_num()), static_cast<int64_t>(omp_get_num_threads()));
}

namespace abi {

template <char...> struct Kinds {};

// A slot is 8 bytes: an address, an int64 or a double; the kernel's own parameter type decides what it becomes.
template <char Kind, class T> static inline T read(const char *slot) {
    if constexpr (Kind == 'p') {
        static_assert(std::is_pointer_v<T>, "the launch gives a tensor where the kernel takes no pointer");
        void *value;
        std::memcpy(&value, slot, sizeof value);
        return static_cast<T>(value);
    } else if constexpr (Kind == 'i') {
        static_assert(std::is_integral_v<T>, "the launch gives an int where the kernel takes no integer");
        int64_t value;
        std::memcpy(&value, slot, sizeof value);
        return static_cast<T>(value);
    } else {
        static_assert(std::is_floating_point_v<T>, "the launch gives a float where the kernel takes no float or double");
        double value;
        std::memcpy(&value, slot, sizeof value);
        return static_cast<T>(value);
    }
}

template <class... Ts, char... kinds, size_t... places>
static inline void spread(void (*kernel)(Ts...), Kinds<kinds...>, const char *slots, std::index_sequence<places...>) {
    kernel(read<kinds, Ts>(slots + 8 * places)...);
}

template <class... Ts, char... kinds>
static inline void call(void (*kernel)(Ts...), Kinds<kinds...> all, const char *slots) {
    static_assert(sizeof...(Ts) == sizeof...(kinds), "the launch gives another number of arguments than the kernel takes");
    spread(kernel, all, slots, std::make_index_sequence<sizeof...(Ts)>());
}

} // namespace abi
} // namespace registry

#define REGISTRY_EXPORT extern "C" __attribute__((visibility("default")))
REGISTRY_EXPORT void registry_make_serial() { registry::serial = true; }
#define REGISTRY_ENTRY(kernel, ...)                                                                                    \
    REGISTRY_EXPORT void registry_entry(const char *slots) {                                                           \
        registry::abi::call(&kernel, registry::abi::Kinds<__VA_ARGS__>(), slots);                                      \
    }
