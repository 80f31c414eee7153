// The host compiler's side of the kernel layer: what CUDA C++ has and C++ has not, by the same names. It stands before
// kernels/layer.cuh when kernels are built for the simulator. Loads and stores need no names here: the compiler reports them
// itself (-fsanitize=thread, whose run-time library is not linked; the functions that it would call are at the end), and every
// basic block too (-fsanitize-coverage=trace-pc), so a kernel's text stays plain.

#define UPSWEEP_SIMULATED 1
#define __CUDA_ARCH__ 800

#define __global__ __attribute__((noinline))
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __restrict__
#define __align__(bytes) alignas(bytes)
// A worker of the simulator runs one block at a time, so what a block shares is what a thread of the host has for itself.
#define __shared__ static thread_local

#if defined(__clang__)
#define UPSWEEP_UNSEEN __attribute__((noinline, no_sanitize("thread", "coverage")))
#else
#define UPSWEEP_UNSEEN __attribute__((noinline, no_sanitize("thread"), no_sanitize_coverage))
#endif

extern "C" {
void* memcpy(void*, const void*, unsigned long);
float expf(float);
float exp2f(float);
float logf(float);
float fmaf(float, float, float);
float fmaxf(float, float);
float fminf(float, float);
double exp(double);
double exp2(double);
double log(double);
double fma(double, double, double);
}
inline float fma(float a, float b, float c) { return fmaf(a, b, c); }

namespace upsweep_sim {

using u32 = unsigned int;
using u64 = unsigned long long;

// What the simulator offers (engine/abi.rs has the other side, in the same order).
struct Engine {
  void (*access)(const void* address, u32 bytes, u32 kind, const void* site);
  void (*basic_block)(const void* site);
  void (*barrier)(u32 number, u32 threads, const void* site);
  u64 (*collective)(u32 operation, u32 mask, u64 value, u32 argument, u32 width, const void* site);
  void (*fence)(const void* site);
  u64 (*clock)();
  u32 (*coordinate)(u32 which);
  void* (*dynamic_shared)();
};
static const Engine* engine;

enum Access : u32 { LOAD, STORE, ATOMIC, ORDERED_LOAD, ORDERED_STORE, VOLATILE_LOAD, VOLATILE_STORE };
enum Operation : u32 { SHUFFLE_FROM, SHUFFLE_UP, SHUFFLE_DOWN, SHUFFLE_XOR, BALLOT, ANY, ALL, MATCH_ANY, REDUCE_MAX, REDUCE_MIN, REDUCE_ADD, REDUCE_AND, REDUCE_OR, REDUCE_XOR, SYNC };

// Every function that reports something is not inlined, so that its return address is the place in the kernel.
#define UPSWEEP_HERE __builtin_return_address(0)

// The same for the whole life of a thread, so the compiler may ask once.
__attribute__((const)) UPSWEEP_UNSEEN static u32 coordinate(u32 which) { return engine->coordinate(which); }
template <u32 WHICH> struct Coordinate {
  __attribute__((always_inline)) operator u32() const { return coordinate(WHICH); }
};
template <u32 FIRST> struct Coordinates {
  Coordinate<FIRST> x;
  static constexpr u32 y = FIRST < 4 ? 0 : 1, z = y;
};

// One access of the whole of T, however wide it is.
template <class T> UPSWEEP_UNSEEN T load(const void* address, u32 kind) {
  engine->access(address, sizeof(T), kind, UPSWEEP_HERE);
  T value;
  memcpy(&value, address, sizeof(T));
  return value;
}
template <class T> UPSWEEP_UNSEEN void store(void* address, T value, u32 kind) {
  engine->access(address, sizeof(T), kind, UPSWEEP_HERE);
  memcpy(address, &value, sizeof(T));
}
template <class T> UPSWEEP_UNSEEN T load_ordered(const T* address) {
  engine->access(address, sizeof(T), ORDERED_LOAD, UPSWEEP_HERE);
  return __atomic_load_n(address, __ATOMIC_SEQ_CST);
}
template <class T> UPSWEEP_UNSEEN void store_ordered(T* address, T value) {
  engine->access(address, sizeof(T), ORDERED_STORE, UPSWEEP_HERE);
  __atomic_store_n(address, value, __ATOMIC_SEQ_CST);
}

template <u32 BYTES> struct BitsOf {
  using type = u32;
};
template <> struct BitsOf<8> {
  using type = u64;
};
// Replaces what is there by a function of it, and returns what was there.
template <class T, class Change> UPSWEEP_UNSEEN T exchange(T* address, Change change, const void* site) {
  engine->access(address, sizeof(T), ATOMIC, site);
  using Bits = typename BitsOf<sizeof(T)>::type;
  Bits* bits = reinterpret_cast<Bits*>(address);
  Bits seen = __atomic_load_n(bits, __ATOMIC_SEQ_CST);
  for (;;) {
    T before;
    memcpy(&before, &seen, sizeof(T));
    const T after = change(before);
    Bits wanted;
    memcpy(&wanted, &after, sizeof(T));
    if (__atomic_compare_exchange_n(bits, &seen, wanted, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) return before;
  }
}

template <class T> UPSWEEP_UNSEEN T shuffle(u32 operation, u32 mask, T value, u32 argument, u32 width) {
  static_assert(sizeof(T) <= 8, "one register, or two");
  u64 bits = 0;
  memcpy(&bits, &value, sizeof(T));
  bits = engine->collective(operation, mask, bits, argument, width, UPSWEEP_HERE);
  memcpy(&value, &bits, sizeof(T));
  return value;
}
UPSWEEP_UNSEEN static u32 vote(u32 operation, u32 mask, u32 value) { return u32(engine->collective(operation, mask, value, 0, 32, UPSWEEP_HERE)); }
UPSWEEP_UNSEEN static void barrier(u32 number, u32 threads) { engine->barrier(number, threads, UPSWEEP_HERE); }
UPSWEEP_UNSEEN static void fence() { engine->fence(UPSWEEP_HERE); }

// Conversions of 16-bit floats, to nearest even, which host compilers do not all have.
inline float float_of_bits(u32 bits) {
  float value;
  __builtin_memcpy(&value, &bits, 4);
  return value;
}
inline u32 bits_of_float(float value) {
  u32 bits;
  __builtin_memcpy(&bits, &value, 4);
  return bits;
}
inline float float_of_half(unsigned short half) {
  const u32 sign = u32(half & 0x8000u) << 16, exponent = half >> 10 & 31u, fraction = half & 0x3ffu;
  if (exponent == 31) return float_of_bits(sign | 0x7f800000u | fraction << 13);
  // The quotient of a subnormal number and of a normal one by 2^24 are exact in f32.
  if (exponent == 0) return float_of_bits(sign | bits_of_float(float(fraction) * 0x1p-24f));
  return float_of_bits(sign | (exponent + 112) << 23 | fraction << 13);
}
inline unsigned short half_of_float(float value) {
  const u32 bits = bits_of_float(value), sign = bits >> 16 & 0x8000u, rest = bits & 0x7fffffffu;
  if (rest > 0x7f800000u) return (unsigned short)(0x7fffu);
  if (rest >= 0x47800000u) return (unsigned short)(sign | 0x7c00u);
  // Below 2^-14 the half is a multiple of 2^-24: the sum with 0.5 puts its bits last, rounded by the addition.
  if (rest < 0x38800000u) return (unsigned short)(sign | (bits_of_float(float_of_bits(rest) + 0.5f) - 0x3f000000u));
  const u32 rounded = rest + 0xfffu + (rest >> 13 & 1u);
  return (unsigned short)(sign | (rounded - 0x38000000u) >> 13);
}
// Toward the odd neighbour in f32, so that the rounding to 16 bits is the only one that shows.
inline float odd_float_of_double(double value) {
  const float nearest = float(value);
  u32 bits = bits_of_float(nearest);
  const double back = double(nearest);
  if (value != value || back == value) return nearest;
  if (value < 0 ? back < value : back > value) bits -= 1;
  return float_of_bits(bits | 1);
}

// A kernel's arguments from the words of a launch: each begins a word of its own.
template <class T> UPSWEEP_UNSEEN T argument(const u64* words, u32& at) {
  T value;
  memcpy(&value, words + at, sizeof(T));
  at += (sizeof(T) + 7) / 8;
  return value;
}
template <class... A> struct Call {
  UPSWEEP_UNSEEN Call(void (*kernel)(A...), A... arguments) { kernel(arguments...); }
};
template <class... A> UPSWEEP_UNSEEN void call(void (*kernel)(A...), const u64* words) {
  u32 at = 0;
  Call<A...>{kernel, argument<A>(words, at)...};  // braces evaluate from left to right
}

}  // namespace upsweep_sim

static constexpr upsweep_sim::Coordinates<0> threadIdx{};
static constexpr upsweep_sim::Coordinates<1> blockIdx{};
static constexpr upsweep_sim::Coordinates<4> blockDim{};
static constexpr upsweep_sim::Coordinates<5> gridDim{};

// ------------------------------------------------------------------ CUDA's functions, by their names

#define __syncthreads() ::upsweep_sim::barrier(0, 0)
#define __threadfence() ::upsweep_sim::fence()
#define __syncwarp(...) ((void)::upsweep_sim::vote(::upsweep_sim::SYNC, ::upsweep_sim::mask_or_all(__VA_ARGS__), 0))
namespace upsweep_sim {
inline __attribute__((always_inline)) u32 mask_or_all(u32 mask = ~0u) { return mask; }
}
template <class T> inline __attribute__((always_inline)) T __shfl_sync(unsigned mask, T value, int lane, int width = 32) {
  return upsweep_sim::shuffle(upsweep_sim::SHUFFLE_FROM, mask, value, unsigned(lane), unsigned(width));
}
template <class T> inline __attribute__((always_inline)) T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  return upsweep_sim::shuffle(upsweep_sim::SHUFFLE_UP, mask, value, delta, unsigned(width));
}
template <class T> inline __attribute__((always_inline)) T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  return upsweep_sim::shuffle(upsweep_sim::SHUFFLE_DOWN, mask, value, delta, unsigned(width));
}
template <class T> inline __attribute__((always_inline)) T __shfl_xor_sync(unsigned mask, T value, int lanes, int width = 32) {
  return upsweep_sim::shuffle(upsweep_sim::SHUFFLE_XOR, mask, value, unsigned(lanes), unsigned(width));
}
#define __ballot_sync(mask, predicate) ::upsweep_sim::vote(::upsweep_sim::BALLOT, mask, (predicate) ? 1u : 0u)
#define __any_sync(mask, predicate) int(::upsweep_sim::vote(::upsweep_sim::ANY, mask, (predicate) ? 1u : 0u))
#define __all_sync(mask, predicate) int(::upsweep_sim::vote(::upsweep_sim::ALL, mask, (predicate) ? 1u : 0u))
#define __match_any_sync(mask, value) unsigned(::upsweep_sim::shuffle(::upsweep_sim::MATCH_ANY, mask, (unsigned long long)(value), 0, 32))
#define __reduce_max_sync(mask, value) ::upsweep_sim::vote(::upsweep_sim::REDUCE_MAX, mask, value)
#define __reduce_min_sync(mask, value) ::upsweep_sim::vote(::upsweep_sim::REDUCE_MIN, mask, value)
#define __reduce_add_sync(mask, value) ::upsweep_sim::vote(::upsweep_sim::REDUCE_ADD, mask, value)
#define __reduce_and_sync(mask, value) ::upsweep_sim::vote(::upsweep_sim::REDUCE_AND, mask, value)
#define __reduce_or_sync(mask, value) ::upsweep_sim::vote(::upsweep_sim::REDUCE_OR, mask, value)
#define __reduce_xor_sync(mask, value) ::upsweep_sim::vote(::upsweep_sim::REDUCE_XOR, mask, value)

#define UPSWEEP_ATOMIC(NAME, AFTER)                                             \
  template <class T, class V> UPSWEEP_UNSEEN T NAME(T* address, V given) {      \
    const T value = T(given);                                                   \
    return upsweep_sim::exchange(address, [value](T old) -> T { return AFTER; }, UPSWEEP_HERE); \
  }
UPSWEEP_ATOMIC(atomicAdd, old + value)
UPSWEEP_ATOMIC(atomicSub, old - value)
UPSWEEP_ATOMIC(atomicMin, value < old ? value : old)
UPSWEEP_ATOMIC(atomicMax, old < value ? value : old)
UPSWEEP_ATOMIC(atomicExch, ((void)old, value))
UPSWEEP_ATOMIC(atomicAnd, old & value)
UPSWEEP_ATOMIC(atomicOr, old | value)
UPSWEEP_ATOMIC(atomicXor, old ^ value)
UPSWEEP_ATOMIC(atomicInc, old >= value ? T(0) : T(old + 1))
#undef UPSWEEP_ATOMIC
template <class T> UPSWEEP_UNSEEN T atomicCAS(T* address, T expected, T value) {
  return upsweep_sim::exchange(address, [=](T old) -> T { return old == expected ? value : old; }, UPSWEEP_HERE);
}

inline float __uint_as_float(unsigned bits) { return upsweep_sim::float_of_bits(bits); }
inline float __int_as_float(int bits) { return upsweep_sim::float_of_bits(unsigned(bits)); }
inline unsigned __float_as_uint(float value) { return upsweep_sim::bits_of_float(value); }
inline int __float_as_int(float value) { return int(upsweep_sim::bits_of_float(value)); }
inline double __longlong_as_double(long long bits) {
  double value;
  __builtin_memcpy(&value, &bits, 8);
  return value;
}
inline long long __double_as_longlong(double value) {
  long long bits;
  __builtin_memcpy(&bits, &value, 8);
  return bits;
}
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __clz(int x) { return x == 0 ? 32 : __builtin_clz(unsigned(x)); }
inline int __clzll(long long x) { return x == 0 ? 64 : __builtin_clzll((unsigned long long)x); }
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
  return unsigned(((unsigned long long)high << 32 | low) >> (shift & 31));
}
inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift) {
  return unsigned((((unsigned long long)high << 32 | low) << (shift & 31)) >> 32);
}
UPSWEEP_UNSEEN static long long clock64() { return (long long)upsweep_sim::engine->clock(); }

// ------------------------------------------------------------------ what the compiler calls, and what the simulator looks up

#define UPSWEEP_HOOK extern "C" __attribute__((visibility("hidden"))) UPSWEEP_UNSEEN
#define UPSWEEP_HOOKS(BYTES)                                                                                                    \
  UPSWEEP_HOOK void __tsan_read##BYTES(void* p) { upsweep_sim::engine->access(p, BYTES, upsweep_sim::LOAD, UPSWEEP_HERE); }             \
  UPSWEEP_HOOK void __tsan_volatile_read##BYTES(void* p) { upsweep_sim::engine->access(p, BYTES, upsweep_sim::VOLATILE_LOAD, UPSWEEP_HERE); }   \
  UPSWEEP_HOOK void __tsan_volatile_write##BYTES(void* p) { upsweep_sim::engine->access(p, BYTES, upsweep_sim::VOLATILE_STORE, UPSWEEP_HERE); } \
  UPSWEEP_HOOK void __tsan_write##BYTES(void* p) { upsweep_sim::engine->access(p, BYTES, upsweep_sim::STORE, UPSWEEP_HERE); }           \
  UPSWEEP_HOOK void __tsan_unaligned_read##BYTES(void* p) { upsweep_sim::engine->access(p, BYTES, upsweep_sim::LOAD, UPSWEEP_HERE); }   \
  UPSWEEP_HOOK void __tsan_unaligned_write##BYTES(void* p) { upsweep_sim::engine->access(p, BYTES, upsweep_sim::STORE, UPSWEEP_HERE); }
UPSWEEP_HOOKS(1)
UPSWEEP_HOOKS(2)
UPSWEEP_HOOKS(4)
UPSWEEP_HOOKS(8)
#undef UPSWEEP_HOOKS
// Structs without the alignment of their size: the device moves them in pieces of their alignment.
UPSWEEP_UNSEEN static void pieces(const char* p, unsigned long bytes, unsigned piece, unsigned kind, const void* site) {
  for (unsigned long at = 0; at < bytes; at += piece) upsweep_sim::engine->access(p + at, piece, kind, site);
}
UPSWEEP_HOOK void __tsan_read16(void* p) { pieces(static_cast<char*>(p), 16, 8, upsweep_sim::LOAD, UPSWEEP_HERE); }
UPSWEEP_HOOK void __tsan_write16(void* p) { pieces(static_cast<char*>(p), 16, 8, upsweep_sim::STORE, UPSWEEP_HERE); }
UPSWEEP_HOOK void __tsan_volatile_read16(void* p) { pieces(static_cast<char*>(p), 16, 8, upsweep_sim::VOLATILE_LOAD, UPSWEEP_HERE); }
UPSWEEP_HOOK void __tsan_volatile_write16(void* p) { pieces(static_cast<char*>(p), 16, 8, upsweep_sim::VOLATILE_STORE, UPSWEEP_HERE); }
UPSWEEP_HOOK void __tsan_unaligned_read16(void* p) { pieces(static_cast<char*>(p), 16, 8, upsweep_sim::LOAD, UPSWEEP_HERE); }
UPSWEEP_HOOK void __tsan_unaligned_write16(void* p) { pieces(static_cast<char*>(p), 16, 8, upsweep_sim::STORE, UPSWEEP_HERE); }
UPSWEEP_HOOK void __tsan_read_range(void* p, unsigned long bytes) {
  pieces(static_cast<char*>(p), bytes, bytes % 4 == 0 ? 4 : 1, upsweep_sim::LOAD, UPSWEEP_HERE);
}
UPSWEEP_HOOK void __tsan_write_range(void* p, unsigned long bytes) {
  pieces(static_cast<char*>(p), bytes, bytes % 4 == 0 ? 4 : 1, upsweep_sim::STORE, UPSWEEP_HERE);
}
UPSWEEP_HOOK void __tsan_init() {}
UPSWEEP_HOOK void __tsan_func_entry(void*) {}
UPSWEEP_HOOK void __tsan_func_exit() {}
UPSWEEP_HOOK void* __tsan_memcpy(void* to, const void* from, unsigned long bytes) {
  pieces(static_cast<const char*>(from), bytes, bytes % 4 == 0 ? 4 : 1, upsweep_sim::LOAD, UPSWEEP_HERE);
  pieces(static_cast<char*>(to), bytes, bytes % 4 == 0 ? 4 : 1, upsweep_sim::STORE, UPSWEEP_HERE);
  return memcpy(to, from, bytes);
}
// The library's constructors enter basic blocks before anybody is attached.
UPSWEEP_HOOK void __sanitizer_cov_trace_pc() {
  if (upsweep_sim::engine != nullptr) upsweep_sim::engine->basic_block(UPSWEEP_HERE);
}

#define UPSWEEP_EXPORT extern "C" __attribute__((visibility("default"))) UPSWEEP_UNSEEN
UPSWEEP_EXPORT void upsweep_attach(const void* engine) { upsweep_sim::engine = static_cast<const upsweep_sim::Engine*>(engine); }
// Makes the calling thread's copy of what blocks share, and tells an address in it.
UPSWEEP_EXPORT void* upsweep_shared() {
  static thread_local char anchor;
  return &anchor;
}
