// The C++ side of the operator table (the Rust side: ops/reduce/operators.rs). An operator over elements T has
//   State                          what is carried: a struct of whole 32-bit words
//   Output                         what comes out
//   identity()                     the state of no elements
//   lift(x, index)                 the state of the element at `index` along the reduced axes
//   combine(a, b)                  the state of both; associative up to rounding, commutative
//   Stream                         what a thread carries over the packs that it reads, in rising order:
//     begin(index)                   nothing yet; the first pack, if there is one, will be at `index`
//     fold(stream, bits, count, index, stride)   and the first `count` packs, pack k being neighbours from
//                                  index + k * stride on, in a fixed order of combines
//     end(stream, elements)          its state, for a thread that has read a pack; `elements` are the input
//   warp_reduce(state)             the state of a warp's lanes, valid in lane 0; every lane takes part
//   finish(state, count)           the result for `count` elements

namespace upsweep {

// The state of COUNT neighbours by a tree: additions overlap, the error grows with log2(COUNT). Halves are finished in
// turn, so few states are alive at a time.
template <class Op, u32 FIRST, u32 COUNT, class T, u32 N> UPSWEEP_DEVICE typename Op::State tree_of(const T (&items)[N], u64 index) {
  if constexpr (COUNT == 1) return Op::lift(items[FIRST], index + FIRST);
  else
    return Op::combine(tree_of<Op, FIRST, COUNT / 2>(items, index), tree_of<Op, FIRST + COUNT / 2, COUNT - COUNT / 2>(items, index));
}
template <class Op> UPSWEEP_DEVICE typename Op::State shuffle_reduce(typename Op::State state) {
#pragma unroll
  for (u32 delta = WARP / 2; delta > 0; delta /= 2) state = Op::combine(state, shuffle_down(state, delta));
  return state;
}
// Pack after pack, each by the operator's `neighbours`.
template <class Op, u32 PACKS>
UPSWEEP_DEVICE typename Op::State fold_each(typename Op::State state, const Bits128 (&bits)[PACKS], u32 count, u64 index, u32 stride) {
  using T = typename Op::Input;
#pragma unroll
  for (u32 k = 0; k < PACKS; ++k) {
    if (k >= count) break;
    state = Op::template neighbours<pack_size<T>()>(state, unpack<T>(bits[k]).items, index + k * stride);
  }
  return state;
}

// A stream that is the state itself, pack after pack, each by the operator's `neighbours(state, items, index)`; and a
// warp that is reduced by shuffles.
#define UPSWEEP_BY_PACKS(SELF)                                                                                       \
  using Stream = State;                                                                                              \
  static UPSWEEP_DEVICE Stream begin(u64) { return identity(); }                                                     \
  template <u32 PACKS>                                                                                               \
  static UPSWEEP_DEVICE Stream fold(Stream state, const Bits128 (&bits)[PACKS], u32 count, u64 index, u32 stride) {  \
    return fold_each<SELF, PACKS>(state, bits, count, index, stride);                                                \
  }                                                                                                                  \
  static UPSWEEP_DEVICE State end(Stream state, const Input*) { return state; }                                      \
  static UPSWEEP_DEVICE State warp_reduce(State state) { return shuffle_reduce<SELF>(state); }
// As most operators do: the neighbours by a tree.
#define UPSWEEP_BY_TREES(SELF)                                                                                       \
  template <u32 N> static UPSWEEP_DEVICE State neighbours(State state, const Input (&items)[N], u64 index) {         \
    return SELF::combine(state, tree_of<SELF, 0, N>(items, index));                                                  \
  }                                                                                                                  \
  UPSWEEP_BY_PACKS(SELF)

template <class T> struct Sum {
  using Input = T;
  using State = typename Traits<T>::Acc;
  using Output = typename Traits<T>::Total;
  static UPSWEEP_DEVICE State identity() { return State(0); }
  static UPSWEEP_DEVICE State lift(T x, u64) { return State(widen(x)); }
  static UPSWEEP_DEVICE State combine(State a, State b) { return a + b; }
  static UPSWEEP_DEVICE Output finish(State state, u64) { return Narrow<Output>::from(state); }
  UPSWEEP_BY_TREES(Sum)
};

template <class T> struct Prod {
  using Input = T;
  using State = typename Traits<T>::Acc;
  using Output = typename Traits<T>::Total;
  static UPSWEEP_DEVICE State identity() { return State(1); }
  static UPSWEEP_DEVICE State lift(T x, u64) { return State(widen(x)); }
  static UPSWEEP_DEVICE State combine(State a, State b) { return a * b; }
  static UPSWEEP_DEVICE Output finish(State state, u64) { return Narrow<Output>::from(state); }
  UPSWEEP_BY_TREES(Prod)
};

// In the input's own width: sums and products modulo 2^64 have the same low bits.
template <class T> struct WrappingSum : Sum<T> {
  using Input = T;
  using State = typename Sum<T>::State;
  using Output = T;
  static UPSWEEP_DEVICE Output finish(State state, u64) { return Narrow<T>::from(state); }
};
template <class T> struct WrappingProd : Prod<T> {
  using Input = T;
  using State = typename Prod<T>::State;
  using Output = T;
  static UPSWEEP_DEVICE Output finish(State state, u64) { return Narrow<T>::from(state); }
};

// Knuth's two-sum: high + low is the sum without its rounding error.
struct DoubleDouble {
  double high, low;
};
template <class T> struct CompensatedSum {
  using Input = T;
  using State = DoubleDouble;
  using Output = typename Traits<T>::Total;
  static UPSWEEP_DEVICE State identity() { return {0.0, 0.0}; }
  static UPSWEEP_DEVICE State lift(T x, u64) { return {double(widen(x)), 0.0}; }
  static UPSWEEP_DEVICE State combine(State a, State b) {
    double high = a.high + b.high;
    double virtual_b = high - a.high;
    double error = (a.high - (high - virtual_b)) + (b.high - virtual_b);
    double low = error + (a.low + b.low);
    double total = high + low;
    // Infinite or NaN: there is no rounding error to carry.
    if (!(total - total == 0.0)) return {high, 0.0};
    return {total, (high - total) + low};
  }
  static UPSWEEP_DEVICE Output finish(State state, u64) { return Narrow<Output>::from(state.high + state.low); }
  UPSWEEP_BY_TREES(CompensatedSum)
};

// The result type of a mean: the type itself for floats, f64 for integers and bool.
template <class T> struct MeanOutput {
  using type = double;
};
template <> struct MeanOutput<float> {
  using type = float;
};
template <> struct MeanOutput<f16> {
  using type = f16;
};
template <> struct MeanOutput<bf16> {
  using type = bf16;
};

template <class T> struct Mean {
  using Input = T;
  using State = typename Traits<T>::Real;
  using Output = typename MeanOutput<T>::type;
  static UPSWEEP_DEVICE State identity() { return State(0); }
  static UPSWEEP_DEVICE State lift(T x, u64) { return State(widen(x)); }
  static UPSWEEP_DEVICE State combine(State a, State b) { return a + b; }
  static UPSWEEP_DEVICE Output finish(State state, u64 count) { return Narrow<Output>::from(state / State(count)); }
  UPSWEEP_BY_TREES(Mean)
};
template <class T> struct CompensatedMean : CompensatedSum<T> {
  using Input = T;
  using State = DoubleDouble;
  using Output = typename MeanOutput<T>::type;
  static UPSWEEP_DEVICE Output finish(State state, u64 count) {
    return Narrow<Output>::from((state.high + state.low) / double(count));
  }
};

// A NaN on the left stays; a NaN on the right loses no comparison, so it is taken.
template <class T> struct Min {
  using Input = T;
  using State = typename Traits<T>::Wide;
  using Output = T;
  static UPSWEEP_DEVICE State identity() { return Traits<T>::highest(); }
  static UPSWEEP_DEVICE State lift(T x, u64) { return widen(x); }
  static UPSWEEP_DEVICE State combine(State a, State b) { return (a < b || is_nan(a)) ? a : b; }
  static UPSWEEP_DEVICE Output finish(State state, u64) { return Narrow<T>::from(state); }
  UPSWEEP_BY_TREES(Min)
};
template <class T> struct Max {
  using Input = T;
  using State = typename Traits<T>::Wide;
  using Output = T;
  static UPSWEEP_DEVICE State identity() { return Traits<T>::lowest(); }
  static UPSWEEP_DEVICE State lift(T x, u64) { return widen(x); }
  static UPSWEEP_DEVICE State combine(State a, State b) { return (a > b || is_nan(a)) ? a : b; }
  static UPSWEEP_DEVICE Output finish(State state, u64) { return Narrow<T>::from(state); }
  UPSWEEP_BY_TREES(Max)
};

// `seen` tells an element from the identity, so that all-NaN input gives NaN and integers need no spare value.
template <class V> struct Seen {
  V value;
  u32 seen;
  u32 nan;  // keeps the struct free of padding for 8-byte values
};
template <class T, bool LESS> struct NanExtremum {
  using Input = T;
  using V = typename Traits<T>::Wide;
  using State = Seen<V>;
  using Output = T;
  static UPSWEEP_DEVICE State identity() { return {V(0), 0u, 0u}; }
  static UPSWEEP_DEVICE State lift(T x, u64) {
    V value = widen(x);
    return {value, is_nan(value) ? 0u : 1u, is_nan(value) ? 1u : 0u};
  }
  static UPSWEEP_DEVICE State combine(State a, State b) {
    if (a.seen && b.seen) return (LESS ? a.value < b.value : a.value > b.value) ? a : b;
    if (a.seen) return a;
    if (b.seen) return b;
    return a.nan ? a : b;
  }
  static UPSWEEP_DEVICE Output finish(State state, u64) { return Narrow<T>::from(state.value); }
  UPSWEEP_BY_TREES(NanExtremum)
};
template <class T> struct NanMin : NanExtremum<T, true> {};
template <class T> struct NanMax : NanExtremum<T, false> {};

// The best value as an unsigned key, and where it stands: of two states the greater key wins, of equal keys the lower
// index. The identity has the least key and an index that is no element's, so every element wins against it.
template <class K> struct Indexed {
  K key;
  u32 low, high;  // the index, in two words so that a 4-byte key leaves no padding
  UPSWEEP_DEVICE u64 index() const { return (u64(high) << 32) | low; }
};
template <class T, bool LESS> struct ArgExtremum {
  using Input = T;
  using V = typename Traits<T>::Wide;
  using K = typename KeyOf<V>::type;
  using State = Indexed<K>;
  using Output = u64;
  static constexpr u32 NOWHERE = 0xffffffffu;  // the identity's index, in both words
  static UPSWEEP_DEVICE State at(K key, u64 index) { return {key, u32(index), u32(index >> 32)}; }
  static UPSWEEP_DEVICE State identity() { return {0, NOWHERE, NOWHERE}; }
  static UPSWEEP_DEVICE State lift(T x, u64 index) { return at(rank<LESS>(widen(x)), index); }
  static UPSWEEP_DEVICE State combine(State a, State b) {
    return (a.key > b.key || (a.key == b.key && a.index() < b.index())) ? a : b;
  }
  // Over packs a thread carries the best value and where its pack begins, no more: packs come in rising order, so a later
  // one wins by a strict comparison alone, and as long as none has won, the first pack holds nothing but the least value.
  // Which element of the pack it was is found out once, at the end, by reading the pack again.
  struct Stream {
    V best;
    u64 pack;
  };
  static UPSWEEP_DEVICE Stream begin(u64 index) { return {LESS ? Traits<T>::highest() : Traits<T>::lowest(), index}; }
  template <u32 PACKS>
  static UPSWEEP_DEVICE Stream fold(Stream stream, const Bits128 (&bits)[PACKS], u32 count, u64 index, u32 stride) {
    constexpr u32 N = pack_size<T>();
    u32 place = NOWHERE;
#pragma unroll
    for (u32 k = 0; k < PACKS; ++k) {
      if (k >= count) break;
      V best = widen(element_of<T>(bits[k], 0));
#pragma unroll
      for (u32 i = 1; i < N; ++i) best = extreme<LESS>(best, widen(element_of<T>(bits[k], i)));
      // Not `best > stream.best`: a NaN wins too, unless there was one before.
      const bool wins = !(LESS ? best >= stream.best : best <= stream.best) && !is_nan(stream.best);
      stream.best = wins ? best : stream.best;
      place = wins ? k * stride : place;
    }
    if (place != NOWHERE) stream.pack = index + place;
    return stream;
  }
  static UPSWEEP_DEVICE State end(Stream stream, const T* elements) {
    const Bits128 bits = read_bits(elements + stream.pack, is_aligned16(elements));
    const K key = rank<LESS>(stream.best);
    u32 place = 0;
#pragma unroll
    for (u32 i = pack_size<T>(); i-- > 0;)
      if (rank<LESS>(widen(element_of<T>(bits, i))) == key) place = i;
    return at(key, stream.pack + place);
  }
  // Three reductions in hardware in place of five rounds of shuffles, each of a whole state.
  static UPSWEEP_DEVICE State warp_reduce(State state) {
    const K key = warp_max(state.key);
    const bool best = state.key == key;
    const u32 high = warp_min(best ? state.high : NOWHERE);
    const u32 low = warp_min(best && state.high == high ? state.low : NOWHERE);
    return {key, low, high};
  }
  static UPSWEEP_DEVICE Output finish(State state, u64) { return state.index(); }
};
template <class T> struct ArgMin : ArgExtremum<T, true> {};
template <class T> struct ArgMax : ArgExtremum<T, false> {};

// The maximum and the sum of exponentials relative to it (online softmax's state). A maximum is never subtracted from
// itself when infinite: two empty states stay empty.
template <class R> struct MaxSum {
  R max, sum;
};
template <class T> struct LogSumExp {
  using Input = T;
  using R = typename Traits<T>::Real;
  using State = MaxSum<R>;
  using Output = T;
  static UPSWEEP_DEVICE R log2e() { return R(1.4426950408889634); }
  static UPSWEEP_DEVICE R max2(R a, R b) { return (a > b || is_nan(a)) ? a : b; }
  static UPSWEEP_DEVICE R lowest() { return Traits<R>::lowest(); }
  static UPSWEEP_DEVICE State identity() { return {lowest(), R(0)}; }
  static UPSWEEP_DEVICE State lift(T x, u64) { return {R(widen(x)), R(1)}; }
  static UPSWEEP_DEVICE R scaled(State state, R max) {
    return state.max == max ? state.sum : state.sum * exp2_fast((state.max - max) * log2e());
  }
  static UPSWEEP_DEVICE State combine(State a, State b) {
    R max = max2(a.max, b.max);
    return {max, scaled(a, max) + scaled(b, max)};
  }
  // One exponential an element: the maximum of the neighbours first, then all terms relative to it.
  template <u32 N> static UPSWEEP_DEVICE State neighbours(State state, const T (&items)[N], u64) {
    R value[N];
    R max = state.max;
#pragma unroll
    for (u32 i = 0; i < N; ++i) {
      value[i] = R(widen(items[i]));
      max = max2(max, value[i]);
    }
    if (max == lowest()) return state;  // only -inf so far: nothing to add, and -inf - -inf must not be formed
#pragma unroll
    for (u32 i = 0; i < N; ++i) value[i] = exp2_fast((value[i] - max) * log2e());
    return {max, scaled(state, max) + tree_of<Sum<R>, 0, N>(value, 0)};
  }
  UPSWEEP_BY_PACKS(LogSumExp)
  static UPSWEEP_DEVICE Output finish(State state, u64) {
    bool finite = state.max - state.max == R(0);
    return Narrow<T>::from(finite ? state.max + natural_log(state.sum) : state.max);
  }
};

}  // namespace upsweep
