// What the softmax kernels share: kinds, a row's scale, exponentials of differences, reductions that all lanes get,
// a row's packs.

namespace upsweep {

// ------------------------------------------------------------------ kinds

struct Softmax {
  static constexpr bool LOGARITHM = false, ONE_A_ROW = false;
};
struct LogSoftmax {
  static constexpr bool LOGARITHM = true, ONE_A_ROW = false;
};
struct RowLogSumExp {
  static constexpr bool LOGARITHM = true, ONE_A_ROW = true;
};

// e^d. In f32 by the fast 2^x: relative error 2^-22 + 3 * 2^-24 |d| (the difference, log2(e) and the product round, and an
// error of the argument is a relative error of the result); results below 2^-126 flush to zero. The difference comes
// first: a fused x * log2(e) - max * log2(e) would have the error of the large logits instead of their difference's.
UPSWEEP_DEVICE float exp_of(float d) { return exp2_fast(d * 1.4426950408889634f); }
UPSWEEP_DEVICE double exp_of(double d) { return exp(d); }

// ------------------------------------------------------------------ from a row's maximum and sum to its outputs

template <class R> struct RowScale {
  R reference;  // what is subtracted from an element
  R factor;     // 1 / sum, or log(sum)
};
template <class R> UPSWEEP_DEVICE R not_a_number() { return R(__int_as_float(0x7fc00000)); }
template <class R> UPSWEEP_DEVICE bool is_finite(R x) { return x - x == R(0); }

// A maximum that is not finite decides alone: a row of only -inf is NaN or, if the caller says so, zero; NaN and +inf give
// NaN. The reference is then 0, so that no difference of infinities is formed and a NaN among -inf stays NaN.
template <class Kind, class R> UPSWEEP_DEVICE RowScale<R> row_scale(R max, R sum, bool zero_masked) {
  if (is_finite(max)) return {max, Kind::LOGARITHM ? natural_log(sum) : R(1) / sum};
  return {R(0), max == Traits<R>::lowest() && zero_masked ? R(0) : not_a_number<R>()};
}
// The output of an element, from the element.
template <class Kind, class R> UPSWEEP_DEVICE R row_value(R x, RowScale<R> scale) {
  R d = x - scale.reference;
  return Kind::LOGARITHM ? d - scale.factor : exp_of(d) * scale.factor;
}
// The one output of a row.
template <class R> UPSWEEP_DEVICE R row_log_sum_exp(R max, R sum) { return is_finite(max) ? max + natural_log(sum) : max; }

// What exponentials are taken relative to: never an infinity, which would make NaN of itself.
template <class R> UPSWEEP_DEVICE R finite_or_zero(R max) { return is_finite(max) ? max : R(0); }

// ------------------------------------------------------------------ reductions over LANES neighbouring threads, the result in each

struct TakeMax {
  template <class R> static UPSWEEP_DEVICE R combine(R a, R b) { return max_nan(a, b); }
};
struct TakeSum {
  template <class R> static UPSWEEP_DEVICE R combine(R a, R b) { return a + b; }
};
// Partners of a butterfly combine the same two values, so all lanes end with the same bits. Groups of more than a warp
// are the whole block; `shared` holds a value a warp, and may be written again after a later barrier.
template <class Take, u32 LANES, class R> UPSWEEP_DEVICE R all_lanes(R value, R* shared) {
  constexpr u32 WITHIN = LANES < WARP ? LANES : WARP;
#pragma unroll
  for (u32 delta = WITHIN / 2; delta > 0; delta /= 2) value = Take::combine(value, shuffle_xor(value, delta));
  if constexpr (LANES > WARP) {
    constexpr u32 WARPS = LANES / WARP;
    static_assert((WARPS & (WARPS - 1)) == 0 && WARPS <= WARP, "a power of two of warps, at most 32");
    if (threadIdx.x % WARP == 0) shared[threadIdx.x / WARP] = value;
    __syncthreads();
    value = shared[threadIdx.x % WARPS];
#pragma unroll
    for (u32 delta = WARPS / 2; delta > 0; delta /= 2) value = Take::combine(value, shuffle_xor(value, delta));
  }
  return value;
}

// ------------------------------------------------------------------ a part of a row in registers

template <class T, u32 N> UPSWEEP_DEVICE bool is_aligned_to_pack(const void* pointer) {
  return N > 1 && (reinterpret_cast<u64>(pointer) & (sizeof(T) * N - 1)) == 0;
}

// Thread `lane` of LANES holds packs lane, lane + LANES, ... of N elements each. `count` is a multiple of N, at most
// LANES * PACKS * N; beyond it the values are -inf. Which elements a lane holds follows from their indices alone, never
// from `aligned`: whether `source` is a multiple of a pack (asked of the kernel's arguments, it costs no thread anything).
// The loads are plain ones: in place the same thread overwrites what it read.
template <class T, u32 LANES, u32 PACKS, u32 N>
UPSWEEP_DEVICE void load_part(const T* source, i64 stride, bool aligned, u32 count, u32 lane, typename Traits<T>::Real (&value)[PACKS * N]) {
  using R = typename Traits<T>::Real;
  // One address and one limit: the packs are at constant distances from them.
  const T* first = source + i64(lane * N) * stride;
  const i32 limit = i32(count) - i32(lane * N);
  Pack<T, N> pack[PACKS];
  // Filled before it is loaded: a choice behind the loads would keep a predicate for each of them alive.
  const T none = Narrow<T>::from(Traits<R>::lowest());
#pragma unroll
  for (u32 k = 0; k < PACKS; ++k) {
#pragma unroll
    for (u32 i = 0; i < N; ++i) pack[k].items[i] = none;
  }
  if (aligned) {
#pragma unroll
    for (u32 k = 0; k < PACKS; ++k) {
      if (i32(k * LANES * N) < limit) {
        const Bits128 bits = load_group<T, N>(first + k * (LANES * N));
        memcpy(&pack[k], &bits, sizeof(pack[k]));
      }
    }
  } else {
#pragma unroll
    for (u32 k = 0; k < PACKS; ++k) {
      if (i32(k * LANES * N) < limit) {
#pragma unroll
        for (u32 i = 0; i < N; ++i) pack[k].items[i] = first[i64(k * (LANES * N) + i) * stride];
      }
    }
  }
#pragma unroll
  for (u32 k = 0; k < PACKS; ++k) {
#pragma unroll
    for (u32 i = 0; i < N; ++i) value[k * N + i] = R(widen(pack[k].items[i]));
  }
}
template <class T, u32 LANES, u32 PACKS, u32 N>
UPSWEEP_DEVICE void store_part(T* target, i64 stride, bool aligned, u32 count, u32 lane, const typename Traits<T>::Real (&value)[PACKS * N]) {
  T* first = target + i64(lane * N) * stride;
  const i32 limit = i32(count) - i32(lane * N);
#pragma unroll
  for (u32 k = 0; k < PACKS; ++k) {
    if (i32(k * LANES * N) >= limit) break;
    Pack<T, N> pack;
#pragma unroll
    for (u32 i = 0; i < N; ++i) pack.items[i] = Narrow<T>::from(value[k * N + i]);
    if (aligned) write_whole(first + k * (LANES * N), pack);
    else {
#pragma unroll
      for (u32 i = 0; i < N; ++i) first[i64(k * (LANES * N) + i) * stride] = pack.items[i];
    }
  }
}

// The thread's largest value.
template <class R, u32 COUNT> UPSWEEP_DEVICE R largest_of(const R (&value)[COUNT]) {
  R max = value[0];
#pragma unroll
  for (u32 i = 1; i < COUNT; ++i) max = max_nan(max, value[i]);
  return max;
}
// Turns values into their differences from the reference (for logarithms) or the exponentials of those, and returns the
// sum of the exponentials: N neighbours by a tree, packs in turn.
template <class Kind, u32 PACKS, u32 N, class R> UPSWEEP_DEVICE R exponentials_of(R (&value)[PACKS * N], R reference) {
  R sum = R(0);
#pragma unroll
  for (u32 k = 0; k < PACKS; ++k) {
    R e[N];
#pragma unroll
    for (u32 i = 0; i < N; ++i) {
      const R d = value[k * N + i] - reference;
      e[i] = exp_of(d);
      value[k * N + i] = Kind::LOGARITHM ? d : e[i];
    }
    sum += tree_of<Sum<R>, 0, N>(e, 0);
  }
  return sum;
}
// From what `exponentials_of` left to outputs.
template <class Kind, u32 COUNT, class R> UPSWEEP_DEVICE void scale_values(R (&value)[COUNT], R factor) {
#pragma unroll
  for (u32 i = 0; i < COUNT; ++i) value[i] = Kind::LOGARITHM ? value[i] - factor : value[i] * factor;
}

// ------------------------------------------------------------------ rows of any strides

struct RowsShape {
  u64 rows, cols, chunk, chunks;
  u64 inner;    // distance of a row's neighbours in the output
  i64 stride;   // and in the input
  u64 kept_rank;
  u64 kept_extent[8];
  i64 kept_stride[8];
};
UPSWEEP_DEVICE i64 row_start(const RowsShape& shape, u64 row) {
  // The outermost dimension takes what is left, so one dimension costs no division.
  i64 offset = 0;
#pragma unroll 1  // the rank is not known here: copies of the division only cost registers and time to compile
  for (u64 d = shape.kept_rank; d-- > 1;) {
    offset += i64(row % shape.kept_extent[d]) * shape.kept_stride[d];
    row /= shape.kept_extent[d];
  }
  return shape.kept_rank == 0 ? 0 : offset + i64(row) * shape.kept_stride[0];
}
UPSWEEP_DEVICE u64 row_target(const RowsShape& shape, u64 row) {
  return shape.inner == 1 ? row * shape.cols : row / shape.inner * shape.inner * shape.cols + row % shape.inner;
}

}  // namespace upsweep
