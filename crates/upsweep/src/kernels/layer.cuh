// The kernel layer: everything a kernel uses beyond plain CUDA C++, named once. Kernel files contain no inline
// assembly and include nothing; the assembly is here, each piece beside the plain form that a host compiler can use
// (UPSWEEP_SIMULATED: the simulator's build, before which upsweep-sim's simulated.h stands).

namespace upsweep {

using i8 = signed char;
using u8 = unsigned char;
using u16 = unsigned short;
using i32 = int;
using u32 = unsigned int;
using i64 = long long;
using u64 = unsigned long long;

#define UPSWEEP_KERNEL __global__ void
#define UPSWEEP_DEVICE __device__ __forceinline__

constexpr u32 WARP = 32;
constexpr u32 FULL_WARP = 0xffffffffu;

// ------------------------------------------------------------------ 16-bit floats, without the toolkit's headers

struct f16 {
  u16 bits;
};
struct bf16 {
  u16 bits;
};

UPSWEEP_DEVICE float widen(f16 x) {
#ifdef UPSWEEP_SIMULATED
  return upsweep_sim::float_of_half(x.bits);
#else
  float result;
  asm("cvt.f32.f16 %0, %1;" : "=f"(result) : "h"(x.bits));
  return result;
#endif
}
UPSWEEP_DEVICE float widen(bf16 x) { return __uint_as_float(u32(x.bits) << 16); }
UPSWEEP_DEVICE float widen(float x) { return x; }
UPSWEEP_DEVICE double widen(double x) { return x; }
UPSWEEP_DEVICE i32 widen(i8 x) { return x; }
UPSWEEP_DEVICE u32 widen(u8 x) { return x; }
UPSWEEP_DEVICE u32 widen(bool x) { return x ? 1u : 0u; }
UPSWEEP_DEVICE i32 widen(i32 x) { return x; }
UPSWEEP_DEVICE u32 widen(u32 x) { return x; }
UPSWEEP_DEVICE i64 widen(i64 x) { return x; }
UPSWEEP_DEVICE u64 widen(u64 x) { return x; }

// Rounds once, to nearest even; integers keep their low bits.
template <class T> struct Narrow {
  template <class S> static UPSWEEP_DEVICE T from(S x) { return T(x); }
};
template <> struct Narrow<bool> {
  template <class S> static UPSWEEP_DEVICE bool from(S x) { return x != 0; }
};
template <> struct Narrow<f16> {
  static UPSWEEP_DEVICE f16 from(float x) {
#ifdef UPSWEEP_SIMULATED
    return {upsweep_sim::half_of_float(x)};
#else
    f16 result;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(result.bits) : "f"(x));
    return result;
#endif
  }
  static UPSWEEP_DEVICE f16 from(double x) {
#ifdef UPSWEEP_SIMULATED
    return {upsweep_sim::half_of_float(upsweep_sim::odd_float_of_double(x))};
#else
    f16 result;
    asm("cvt.rn.f16.f64 %0, %1;" : "=h"(result.bits) : "d"(x));
    return result;
#endif
  }
};
template <> struct Narrow<bf16> {
  static UPSWEEP_DEVICE bf16 from(float x) {
    bf16 result;
    u32 bits = __float_as_uint(x);
    // A NaN must not round to infinity: quiet it and keep its top bits.
    if (x != x) result.bits = u16((bits >> 16) | 0x40u);
    else result.bits = u16((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
    return result;
  }
  static UPSWEEP_DEVICE bf16 from(double x) {
    // Round to odd in f32 first, so that the second rounding is the only one that shows.
    float nearest = float(x);
    u32 bits = __float_as_uint(nearest);
    double back = double(nearest);
    bool toward_zero_needed = (x < 0 ? back < x : back > x);
    if (toward_zero_needed && x == x) bits -= 1;
    if (back != x && x == x) bits |= 1;
    return from(__uint_as_float(bits));
  }
};

// ------------------------------------------------------------------ types that follow from an element type

// Wide<T>: what an element becomes in a register, at least 4 bytes. Acc<T>: what sums and products are carried in.
template <class T> struct Traits;
#define UPSWEEP_TRAITS(T, WIDE, ACC, TOTAL, REAL, LOWEST, HIGHEST) \
  template <> struct Traits<T> {                                   \
    using Wide = WIDE;                                             \
    using Acc = ACC;                                               \
    using Total = TOTAL;                                           \
    using Real = REAL;                                             \
    static UPSWEEP_DEVICE WIDE lowest() { return LOWEST; }         \
    static UPSWEEP_DEVICE WIDE highest() { return HIGHEST; }       \
  };
#define UPSWEEP_INF32 __int_as_float(0x7f800000)
#define UPSWEEP_INF64 __longlong_as_double(0x7ff0000000000000ll)
UPSWEEP_TRAITS(float, float, float, float, float, -UPSWEEP_INF32, UPSWEEP_INF32)
UPSWEEP_TRAITS(double, double, double, double, double, -UPSWEEP_INF64, UPSWEEP_INF64)
UPSWEEP_TRAITS(f16, float, float, f16, float, -UPSWEEP_INF32, UPSWEEP_INF32)
UPSWEEP_TRAITS(bf16, float, float, bf16, float, -UPSWEEP_INF32, UPSWEEP_INF32)
UPSWEEP_TRAITS(i32, i32, i64, i64, double, i32(0x80000000u), 0x7fffffff)
UPSWEEP_TRAITS(i64, i64, i64, i64, double, i64(0x8000000000000000ull), 0x7fffffffffffffffll)
UPSWEEP_TRAITS(u32, u32, u64, u64, double, 0u, 0xffffffffu)
UPSWEEP_TRAITS(u64, u64, u64, u64, double, 0ull, 0xffffffffffffffffull)
UPSWEEP_TRAITS(u8, u32, u64, u64, double, 0u, 255u)
UPSWEEP_TRAITS(i8, i32, i64, i64, double, -128, 127)
UPSWEEP_TRAITS(bool, u32, u64, u64, double, 0u, 1u)
#undef UPSWEEP_TRAITS

template <class V> UPSWEEP_DEVICE bool is_nan(V x) { return x != x; }

// ------------------------------------------------------------------ order: NaN before everything, zeros equal

// The less or the greater of two; NaN if one of them is NaN.
template <bool LESS, class V> UPSWEEP_DEVICE V extreme(V a, V b) { return ((LESS ? a < b : a > b) || is_nan(a)) ? a : b; }
#if __CUDA_ARCH__ >= 800 && !defined(UPSWEEP_SIMULATED)
template <bool LESS> UPSWEEP_DEVICE float extreme(float a, float b) {
  float result;
  if constexpr (LESS) asm("min.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
  else asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
  return result;
}
#endif

// An unsigned key for a value: greater for the greater value (LESS: for the lesser one), greatest for NaN.
template <class V> struct KeyOf {
  using type = u32;
};
template <> struct KeyOf<double> {
  using type = u64;
};
template <> struct KeyOf<i64> {
  using type = u64;
};
template <> struct KeyOf<u64> {
  using type = u64;
};
template <bool LESS> UPSWEEP_DEVICE u32 rank(float x) {
  const u32 bits = __float_as_uint((LESS ? -x : x) + 0.0f);  // the sum makes a positive zero of a negative one
  return is_nan(x) ? ~0u : bits ^ (u32(i32(bits) >> 31) | 0x80000000u);
}
template <bool LESS> UPSWEEP_DEVICE u64 rank(double x) {
  const u64 bits = u64(__double_as_longlong((LESS ? -x : x) + 0.0));
  return is_nan(x) ? ~0ull : bits ^ (u64(i64(bits) >> 63) | 0x8000000000000000ull);
}
template <bool LESS> UPSWEEP_DEVICE u32 rank(u32 x) { return LESS ? ~x : x; }
template <bool LESS> UPSWEEP_DEVICE u64 rank(u64 x) { return LESS ? ~x : x; }
template <bool LESS> UPSWEEP_DEVICE u32 rank(i32 x) { return rank<LESS>(u32(x) ^ 0x80000000u); }
template <bool LESS> UPSWEEP_DEVICE u64 rank(i64 x) { return rank<LESS>(u64(x) ^ 0x8000000000000000ull); }

// ------------------------------------------------------------------ packs: aligned groups of elements

template <class T, u32 N> struct alignas(sizeof(T) * N) Pack {
  T items[N];
};
// Elements of one 16-byte access.
template <class T> constexpr u32 pack_size() { return 16 / sizeof(T); }

struct alignas(16) Bits128 {
  u32 word[4];
};

UPSWEEP_DEVICE bool is_aligned16(const void* pointer) { return (reinterpret_cast<u64>(pointer) & 15) == 0; }

// The bits of one element as the element. Spelled out by size, so that packs of bytes stay in registers.
template <class T> UPSWEEP_DEVICE T element_of(const Bits128& bits, u32 i) {
  T x;
  if constexpr (sizeof(T) == 8) {
    u64 both = (u64(bits.word[2 * i + 1]) << 32) | bits.word[2 * i];
    memcpy(&x, &both, 8);
  } else if constexpr (sizeof(T) == 4) {
    memcpy(&x, &bits.word[i], 4);
  } else if constexpr (sizeof(T) == 2) {
    u16 half = u16(bits.word[i / 2] >> (16 * (i % 2)));
    memcpy(&x, &half, 2);
  } else {
    x = T(u8(bits.word[i / 4] >> (8 * (i % 4))));
  }
  return x;
}
template <class T> UPSWEEP_DEVICE Pack<T, pack_size<T>()> unpack(const Bits128& bits) {
  Pack<T, pack_size<T>()> pack;
#pragma unroll
  for (u32 i = 0; i < pack_size<T>(); ++i) pack.items[i] = element_of<T>(bits, i);
  return pack;
}

// Reads 16 aligned bytes that nothing writes during the kernel.
UPSWEEP_DEVICE Bits128 load_bits(const void* pointer) {
#ifdef UPSWEEP_SIMULATED
  return upsweep_sim::load<Bits128>(pointer, upsweep_sim::LOAD);
#else
  Bits128 bits;
  asm("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];"
      : "=r"(bits.word[0]), "=r"(bits.word[1]), "=r"(bits.word[2]), "=r"(bits.word[3])
      : "l"(pointer));
  return bits;
#endif
}
// The same elements from an address that is only element-aligned: narrower loads, same lanes.
template <class T> UPSWEEP_DEVICE Bits128 gather_bits(const T* pointer) {
  Bits128 bits = {{0, 0, 0, 0}};
#pragma unroll
  for (u32 i = 0; i < pack_size<T>(); ++i) {
    T x = pointer[i];
    if constexpr (sizeof(T) == 8) {
      u64 both;
      memcpy(&both, &x, 8);
      bits.word[2 * i] = u32(both);
      bits.word[2 * i + 1] = u32(both >> 32);
    } else if constexpr (sizeof(T) == 4) {
      memcpy(&bits.word[i], &x, 4);
    } else if constexpr (sizeof(T) == 2) {
      u16 half;
      memcpy(&half, &x, 2);
      bits.word[i / 2] |= u32(half) << (16 * (i % 2));
    } else {
      bits.word[i / 4] |= u32(u8(x)) << (8 * (i % 4));
    }
  }
  return bits;
}
template <class T> UPSWEEP_DEVICE Bits128 read_bits(const T* pointer, bool aligned) {
  return aligned ? load_bits(pointer) : gather_bits(pointer);
}

template <u32 WORDS> struct alignas(4 * WORDS) RawWords {
  u32 word[WORDS];
};
// A struct that is aligned to its size, by one access. A host compiler would take it to pieces.
template <class V> UPSWEEP_DEVICE V read_whole(const void* pointer) {
#ifdef UPSWEEP_SIMULATED
  return upsweep_sim::load<V>(pointer, upsweep_sim::LOAD);
#else
  return *static_cast<const V*>(pointer);
#endif
}
template <class V> UPSWEEP_DEVICE void write_whole(void* pointer, const V& value) {
#ifdef UPSWEEP_SIMULATED
  upsweep_sim::store(pointer, value, upsweep_sim::STORE);
#else
  *static_cast<V*>(pointer) = value;
#endif
}
// Loads whose lines leave the second-level cache last. For a kernel that reads every element once and writes as much, this
// was measured on an H200 to make a plain copy 1.3 % faster and a softmax 2 to 4 %; what the cache does instead of evicting
// read lines early is not documented. Compute 7.5 has no such hint.
template <u32 COUNT> UPSWEEP_DEVICE RawWords<COUNT> load_evict_last(const void* pointer) {
#if __CUDA_ARCH__ >= 800 && !defined(UPSWEEP_SIMULATED)
  RawWords<COUNT> raw;
  u64 policy;
  asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
  if constexpr (COUNT == 4) {
    asm volatile("ld.global.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
                 : "=r"(raw.word[0]), "=r"(raw.word[1]), "=r"(raw.word[2]), "=r"(raw.word[3])
                 : "l"(pointer), "l"(policy)
                 : "memory");
  } else if constexpr (COUNT == 2) {
    asm volatile("ld.global.L2::cache_hint.v2.u32 {%0, %1}, [%2], %3;" : "=r"(raw.word[0]), "=r"(raw.word[1]) : "l"(pointer), "l"(policy) : "memory");
  } else {
    asm volatile("ld.global.L2::cache_hint.u32 %0, [%1], %2;" : "=r"(raw.word[0]) : "l"(pointer), "l"(policy) : "memory");
  }
  return raw;
#else
  return read_whole<RawWords<COUNT>>(pointer);
#endif
}

// Reads COUNT neighbours, 1 to 16 bytes, by one access that is aligned to its size.
template <class T, u32 COUNT, bool EVICT_LAST = false> UPSWEEP_DEVICE Bits128 read_group(const T* pointer) {
  constexpr u32 BYTES = COUNT * sizeof(T);
  static_assert(BYTES == 1 || BYTES == 2 || BYTES == 4 || BYTES == 8 || BYTES == 16, "one access");
  Bits128 bits = {{0, 0, 0, 0}};
  if constexpr (BYTES == 1) {
    bits.word[0] = *reinterpret_cast<const u8*>(pointer);
  } else if constexpr (BYTES == 2) {
    bits.word[0] = *reinterpret_cast<const u16*>(pointer);
  } else {
    const void* words = pointer;
    const RawWords<BYTES / 4> raw =
        EVICT_LAST ? load_evict_last<BYTES / 4>(words) : read_whole<RawWords<BYTES / 4>>(words);
#pragma unroll
    for (u32 i = 0; i < BYTES / 4; ++i) bits.word[i] = raw.word[i];
  }
  return bits;
}
// Of 32 bytes, the 16 that begin `bytes` (fewer than 16, a multiple of SIZE) behind the first.
template <u32 SIZE> UPSWEEP_DEVICE Bits128 bits_behind(const Bits128& low, const Bits128& high, u32 bytes) {
  u32 word[8];
#pragma unroll
  for (u32 i = 0; i < 8; ++i) word[i] = i < 4 ? low.word[i] : high.word[i - 4];
  // By two words, by one, by bytes.
#pragma unroll
  for (u32 i = 0; i < 6; ++i) word[i] = (bytes & 8) != 0 ? word[i + 2] : word[i];
  if (SIZE < 8) {
#pragma unroll
    for (u32 i = 0; i < 5; ++i) word[i] = (bytes & 4) != 0 ? word[i + 1] : word[i];
  }
  Bits128 bits;
#pragma unroll
  for (u32 i = 0; i < 4; ++i) bits.word[i] = SIZE < 4 ? __funnelshift_r(word[i], word[i + 1], 8 * (bytes & 3)) : word[i];
  return bits;
}
// As `read_group`, from global memory, for kernels that read once and write. Unlike `load_bits` it may read memory that the kernel
// writes later.
template <class T, u32 COUNT> UPSWEEP_DEVICE Bits128 load_group(const T* pointer) { return read_group<T, COUNT, true>(pointer); }
// Writes 16 aligned bytes.
UPSWEEP_DEVICE void store_bits(void* pointer, const Bits128& bits) {
  write_whole<RawWords<4>>(pointer, {{bits.word[0], bits.word[1], bits.word[2], bits.word[3]}});
}
// Writes COUNT neighbours, 1 to 16 bytes, to global memory by one access that is aligned to its size. 16 bytes are spelled out:
// kernels that hold much would else have the compiler work out many results before it stores the first, and spill.
template <class T, u32 COUNT> UPSWEEP_DEVICE void store_group(T* pointer, const T (&items)[COUNT]) {
  constexpr u32 BYTES = COUNT * sizeof(T);
  if constexpr (BYTES == 16) {
    const Bits128 bits = gather_bits<T>(items);
#ifdef UPSWEEP_SIMULATED
    write_whole(pointer, bits);
#else
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(pointer), "r"(bits.word[0]), "r"(bits.word[1]), "r"(bits.word[2]), "r"(bits.word[3])
                 : "memory");
#endif
  } else {
    Pack<T, COUNT> pack;
#pragma unroll
    for (u32 i = 0; i < COUNT; ++i) pack.items[i] = items[i];
    write_whole(pointer, pack);
  }
}

// ------------------------------------------------------------------ ordered accesses to global memory

UPSWEEP_DEVICE void store_relaxed(u64* pointer, u64 value) {
#ifdef UPSWEEP_SIMULATED
  upsweep_sim::store_ordered(pointer, value);
#else
  asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(pointer), "l"(value) : "memory");
#endif
}
UPSWEEP_DEVICE u64 load_relaxed(const u64* pointer) {
#ifdef UPSWEEP_SIMULATED
  return upsweep_sim::load_ordered(pointer);
#else
  u64 value;
  asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(value) : "l"(pointer) : "memory");
  return value;
#endif
}
// Two neighbours whose address is a multiple of 16; each is whole, the two need not be of one moment.
UPSWEEP_DEVICE void load_relaxed(const u64* pointer, u64& first, u64& second) {
#ifdef UPSWEEP_SIMULATED
  first = upsweep_sim::load_ordered(pointer);
  second = upsweep_sim::load_ordered(pointer + 1);
#else
  asm volatile("ld.relaxed.gpu.global.v2.u64 {%0, %1}, [%2];" : "=l"(first), "=l"(second) : "l"(pointer) : "memory");
#endif
}
UPSWEEP_DEVICE void store_relaxed(u32* pointer, u32 value) {
#ifdef UPSWEEP_SIMULATED
  upsweep_sim::store_ordered(pointer, value);
#else
  asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(pointer), "r"(value) : "memory");
#endif
}
UPSWEEP_DEVICE u32 load_relaxed(const u32* pointer) {
#ifdef UPSWEEP_SIMULATED
  return upsweep_sim::load_ordered(pointer);
#else
  u32 value;
  asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(pointer) : "memory");
  return value;
#endif
}

// ------------------------------------------------------------------ moving states of any struct between threads

template <class S> struct Words {
  static_assert(sizeof(S) % 4 == 0, "a state is a whole number of 32-bit words");
  static constexpr u32 COUNT = sizeof(S) / 4;
  u32 word[COUNT];
};
template <class S> UPSWEEP_DEVICE Words<S> to_words(S state) {
  Words<S> words;
  memcpy(&words, &state, sizeof(S));
  return words;
}
template <class S> UPSWEEP_DEVICE S from_words(Words<S> words) {
  S state;
  memcpy(&state, &words, sizeof(S));
  return state;
}
// The state of the lane `delta` above; every lane of the warp takes part.
template <class S> UPSWEEP_DEVICE S shuffle_down(S state, u32 delta) {
  Words<S> words = to_words(state);
#pragma unroll
  for (u32 i = 0; i < Words<S>::COUNT; ++i) words.word[i] = __shfl_down_sync(FULL_WARP, words.word[i], delta);
  return from_words<S>(words);
}

// ------------------------------------------------------------------ a warp's extremes, in all lanes; every lane takes part

#if __CUDA_ARCH__ >= 800
UPSWEEP_DEVICE u32 warp_max(u32 x) { return __reduce_max_sync(FULL_WARP, x); }
#else
UPSWEEP_DEVICE u32 warp_max(u32 x) {
#pragma unroll
  for (u32 lane = WARP / 2; lane > 0; lane /= 2) {
    const u32 other = __shfl_xor_sync(FULL_WARP, x, lane);
    x = other > x ? other : x;
  }
  return x;
}
#endif
UPSWEEP_DEVICE u32 warp_min(u32 x) { return ~warp_max(~x); }
UPSWEEP_DEVICE u64 warp_max(u64 x) {
  const u32 high = warp_max(u32(x >> 32));
  return (u64(high) << 32) | warp_max(u32(x >> 32) == high ? u32(x) : 0u);
}

// ------------------------------------------------------------------ states from other lanes

// The state of the lane `delta` below; the lowest lanes get their own back.
template <class S> UPSWEEP_DEVICE S shuffle_up(S state, u32 delta) {
  Words<S> words = to_words(state);
#pragma unroll
  for (u32 i = 0; i < Words<S>::COUNT; ++i) words.word[i] = __shfl_up_sync(FULL_WARP, words.word[i], delta);
  return from_words<S>(words);
}
// The state of one lane, in every lane.
template <class S> UPSWEEP_DEVICE S shuffle_from(S state, u32 lane) {
  Words<S> words = to_words(state);
#pragma unroll
  for (u32 i = 0; i < Words<S>::COUNT; ++i) words.word[i] = __shfl_sync(FULL_WARP, words.word[i], lane);
  return from_words<S>(words);
}

// ------------------------------------------------------------------ neighbouring states in shared memory, by wide accesses

// N neighbours whose address is a multiple of their size, or of 16 bytes.
template <class S, u32 N> struct NeighbouringStates {
  static constexpr u32 BYTES = N * sizeof(S), ACCESS = BYTES < 16 ? BYTES : 16, WORDS = ACCESS / 4;
  static_assert(BYTES % ACCESS == 0 && ACCESS % 4 == 0, "whole accesses");
  S items[N];
};
template <class S, u32 N> UPSWEEP_DEVICE void read_states(const S* shared, S (&states)[N]) {
  using Neighbours = NeighbouringStates<S, N>;
  Words<Neighbours> words;
#pragma unroll
  for (u32 c = 0; c < Neighbours::BYTES / Neighbours::ACCESS; ++c) {
    const auto raw = read_whole<RawWords<Neighbours::WORDS>>(reinterpret_cast<const RawWords<Neighbours::WORDS>*>(shared) + c);
#pragma unroll
    for (u32 i = 0; i < Neighbours::WORDS; ++i) words.word[c * Neighbours::WORDS + i] = raw.word[i];
  }
  const Neighbours neighbours = from_words<Neighbours>(words);
#pragma unroll
  for (u32 i = 0; i < N; ++i) states[i] = neighbours.items[i];
}
template <class S, u32 N> UPSWEEP_DEVICE void write_states(S* shared, const S (&states)[N]) {
  using Neighbours = NeighbouringStates<S, N>;
  Neighbours neighbours;
#pragma unroll
  for (u32 i = 0; i < N; ++i) neighbours.items[i] = states[i];
  const Words<Neighbours> words = to_words(neighbours);
#pragma unroll
  for (u32 c = 0; c < Neighbours::BYTES / Neighbours::ACCESS; ++c) {
    RawWords<Neighbours::WORDS> raw;
#pragma unroll
    for (u32 i = 0; i < Neighbours::WORDS; ++i) raw.word[i] = words.word[c * Neighbours::WORDS + i];
    write_whole(reinterpret_cast<RawWords<Neighbours::WORDS>*>(shared) + c, raw);
  }
}

// ------------------------------------------------------------------ fast exponential

// 2^x: hardware approximation in f32 (relative error 2^-22, results below 2^-126 flush to zero), exact library in f64.
UPSWEEP_DEVICE float exp2_fast(float x) {
#ifdef UPSWEEP_SIMULATED
  const float result = exp2f(x);
  return result < 0x1p-126f ? 0.0f : result;
#else
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
#endif
}
UPSWEEP_DEVICE double exp2_fast(double x) { return exp2(x); }
UPSWEEP_DEVICE float natural_log(float x) { return logf(x); }
UPSWEEP_DEVICE double natural_log(double x) { return log(x); }

// ------------------------------------------------------------------ row operations: all-lanes shuffles, maxima that keep NaN

// The state of the lane whose number differs in the bits of `delta`; every lane of the warp takes part.
template <class S> UPSWEEP_DEVICE S shuffle_xor(S state, u32 delta) {
  Words<S> words = to_words(state);
#pragma unroll
  for (u32 i = 0; i < Words<S>::COUNT; ++i) words.word[i] = __shfl_xor_sync(FULL_WARP, words.word[i], delta);
  return from_words<S>(words);
}

// The larger number, or NaN if either is.
template <class R> UPSWEEP_DEVICE R max_nan(R a, R b) { return extreme<false>(a, b); }

// A barrier of the block's first THREADS threads, whatever the others do.
#ifdef UPSWEEP_SIMULATED
template <u32 THREADS> UPSWEEP_DEVICE void barrier_of() { upsweep_sim::barrier(1, THREADS); }
#else
template <u32 THREADS> UPSWEEP_DEVICE void barrier_of() { asm volatile("bar.sync 1, %0;" ::"n"(THREADS) : "memory"); }
#endif

// ------------------------------------------------------------------ bulk copies and their barriers (compute 9.0; not simulated)

#ifndef UPSWEEP_SIMULATED
UPSWEEP_DEVICE u32 shared_address(const void* pointer) { return u32(__cvta_generic_to_shared(pointer)); }
#endif

#if __CUDA_ARCH__ >= 900
UPSWEEP_DEVICE void barrier_init(u64* barrier, u32 arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}
// Makes initialised barriers visible to the copy engine.
UPSWEEP_DEVICE void barrier_init_fence() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
UPSWEEP_DEVICE void barrier_arrive(u64* barrier) {
  asm volatile("mbarrier.arrive.release.cta.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}
// How a warp arrives when its lanes are done with what the barrier guards: they meet, and one arrives for all.
// UPSWEEP_EVERY_LANE_ARRIVES is for compute-sanitizer's racecheck: it follows the arrival of the lane that made an access, and
// not that of another lane behind __syncwarp, which orders the two as well (PTX ISA, bar.warp.sync). An arrival a lane was
// measured to cost the scan 0.4 %.
#ifdef UPSWEEP_EVERY_LANE_ARRIVES
constexpr u32 ARRIVALS_OF_WARP = WARP;
UPSWEEP_DEVICE void warp_arrive(u64* barrier) { barrier_arrive(barrier); }
#else
constexpr u32 ARRIVALS_OF_WARP = 1;
UPSWEEP_DEVICE void warp_arrive(u64* barrier) {
  __syncwarp();
  if (threadIdx.x % WARP == 0) barrier_arrive(barrier);
}
#endif
UPSWEEP_DEVICE void barrier_arrive_expect(u64* barrier, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes) : "memory");
}
UPSWEEP_DEVICE bool barrier_try_wait(u64* barrier, u32 parity) {
  u32 done;
  asm volatile(
      "{\n\t.reg .pred p;\n\t"
      "mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 p, [%1], %2;\n\t"
      "selp.u32 %0, 1, 0, p;\n\t}"
      : "=r"(done)
      : "r"(shared_address(barrier)), "r"(parity)
      : "memory");
  return done != 0;
}
// Copies `bytes` (a multiple of 16, both addresses 16-byte aligned) and completes on `barrier`.
UPSWEEP_DEVICE void bulk_load(void* shared, const void* global, u32 bytes, u64* barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared_address(shared)),
               "l"(global), "r"(bytes), "r"(shared_address(barrier))
               : "memory");
}
// As bulk_load; the lines that are read leave the second-level cache last (see load_evict_last).
UPSWEEP_DEVICE void bulk_load_evict_last(void* shared, const void* global, u32 bytes, u64* barrier) {
  u64 policy;
  asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(
                   shared_address(shared)),
               "l"(global), "r"(bytes), "r"(shared_address(barrier)), "l"(policy)
               : "memory");
}
// Copies BYTES (4, 8 or 16; both addresses aligned to them) without a register in between.
template <u32 BYTES> UPSWEEP_DEVICE void copy_async(void* shared, const void* global) {
  static_assert(BYTES == 4 || BYTES == 8 || BYTES == 16, "one access");
  if constexpr (BYTES == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(shared)), "l"(global) : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(shared_address(shared)), "l"(global), "n"(BYTES) : "memory");
  }
}
// Arrives on `barrier` once all of the thread's copies so far are there.
UPSWEEP_DEVICE void barrier_arrive_after_copies(u64* barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(barrier)) : "memory");
}
#endif

// ------------------------------------------------------------------ the control block of a prepared plan

struct Control {
  u32 epoch;    // tag of the last finished call
  u32 counter;  // blocks that have arrived, or tickets; back to zero when a call ends
  u32 error;    // 0, or what went wrong
  u32 leaving;  // blocks that take no more tickets; back to zero when a call ends
  // followed by 64-bit words
};
UPSWEEP_DEVICE u64* control_words(Control* control) { return reinterpret_cast<u64*>(control + 1); }

constexpr u32 ERROR_SPIN_RAN_OUT = 1;
// Each turn takes a memory round trip of about a microsecond: seconds before a wait is given up.
constexpr u32 SPIN_LIMIT = 1u << 22;

UPSWEEP_DEVICE void report_error(Control* control, u32 error) { atomicMax(&control->error, error); }

}  // namespace upsweep
