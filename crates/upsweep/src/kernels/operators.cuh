// The C++ side of the operator table (the Rust side: ops/reduce/operators.rs). An operator over elements T has
//   State                          what is carried: a struct of whole 32-bit words
//   Output                         what comes out
//   identity()                     the state of no elements
//   lift(x, index)                 the state of the element at `index` along the reduced axes
//   combine(a, b)                  the state of both; associative up to rounding, commutative
//   fold(state, items, index)      `state` and N neighbours from `index` on, in a fixed order of combines
//   finish(state, count)           the result for `count` elements

namespace upsweep {

// The state of COUNT neighbours by a tree: additions overlap, the error grows with log2(COUNT). Halves are finished in
// turn, so few states are alive at a time.
template <class Op, u32 FIRST, u32 COUNT, class T, u32 N> UPSWEEP_DEVICE typename Op::State tree_of(const T (&items)[N], u64 index) {
  if constexpr (COUNT == 1) return Op::lift(items[FIRST], index + FIRST);
  else
    return Op::combine(tree_of<Op, FIRST, COUNT / 2>(items, index), tree_of<Op, FIRST + COUNT / 2, COUNT - COUNT / 2>(items, index));
}
template <class Op, u32 N, class T> UPSWEEP_DEVICE typename Op::State tree_fold(typename Op::State state, const T (&items)[N], u64 index) {
  return Op::combine(state, tree_of<Op, 0, N>(items, index));
}

#define UPSWEEP_TREE_FOLD(SELF)                                                                             \
  template <u32 N> static UPSWEEP_DEVICE State fold(State state, const Input (&items)[N], u64 index) {      \
    return tree_fold<SELF, N>(state, items, index);                                                         \
  }

template <class T> struct Sum {
  using Input = T;
  using State = typename Traits<T>::Acc;
  using Output = typename Traits<T>::Total;
  static UPSWEEP_DEVICE State identity() { return State(0); }
  static UPSWEEP_DEVICE State lift(T x, u64) { return State(widen(x)); }
  static UPSWEEP_DEVICE State combine(State a, State b) { return a + b; }
  static UPSWEEP_DEVICE Output finish(State state, u64) { return Narrow<Output>::from(state); }
  UPSWEEP_TREE_FOLD(Sum)
};

template <class T> struct Prod {
  using Input = T;
  using State = typename Traits<T>::Acc;
  using Output = typename Traits<T>::Total;
  static UPSWEEP_DEVICE State identity() { return State(1); }
  static UPSWEEP_DEVICE State lift(T x, u64) { return State(widen(x)); }
  static UPSWEEP_DEVICE State combine(State a, State b) { return a * b; }
  static UPSWEEP_DEVICE Output finish(State state, u64) { return Narrow<Output>::from(state); }
  UPSWEEP_TREE_FOLD(Prod)
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
  UPSWEEP_TREE_FOLD(CompensatedSum)
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
  UPSWEEP_TREE_FOLD(Mean)
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
  UPSWEEP_TREE_FOLD(Min)
};
template <class T> struct Max {
  using Input = T;
  using State = typename Traits<T>::Wide;
  using Output = T;
  static UPSWEEP_DEVICE State identity() { return Traits<T>::lowest(); }
  static UPSWEEP_DEVICE State lift(T x, u64) { return widen(x); }
  static UPSWEEP_DEVICE State combine(State a, State b) { return (a > b || is_nan(a)) ? a : b; }
  static UPSWEEP_DEVICE Output finish(State state, u64) { return Narrow<T>::from(state); }
  UPSWEEP_TREE_FOLD(Max)
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
  UPSWEEP_TREE_FOLD(NanExtremum)
};
template <class T> struct NanMin : NanExtremum<T, true> {};
template <class T> struct NanMax : NanExtremum<T, false> {};

// A value and where it stands. The identity's index is no element's, so on a tie with its value the element wins.
template <class V> struct Indexed {
  V value;
  u32 low, high;  // the index, in two words so that a 4-byte value leaves no padding
  UPSWEEP_DEVICE u64 index() const { return (u64(high) << 32) | low; }
};
template <class T, bool LESS> struct ArgExtremum {
  using Input = T;
  using V = typename Traits<T>::Wide;
  using State = Indexed<V>;
  using Output = u64;
  static UPSWEEP_DEVICE State at(V value, u64 index) { return {value, u32(index), u32(index >> 32)}; }
  static UPSWEEP_DEVICE State identity() { return at(LESS ? Traits<T>::highest() : Traits<T>::lowest(), ~0ull); }
  static UPSWEEP_DEVICE State lift(T x, u64 index) { return at(widen(x), index); }
  static UPSWEEP_DEVICE State combine(State a, State b) {
    bool a_nan = is_nan(a.value), b_nan = is_nan(b.value);
    bool before = a.index() < b.index();
    bool tie = a_nan ? b_nan : a.value == b.value;
    bool better = a_nan ? !b_nan : (LESS ? a.value < b.value : a.value > b.value);
    if (b_nan && !a_nan) better = false;
    return (better || (tie && before)) ? a : b;
  }
  // Neighbours come in rising order, so within them the first best wins by a strict comparison alone.
  template <u32 N> static UPSWEEP_DEVICE State fold(State state, const T (&items)[N], u64 index) {
    V best = widen(items[0]);
    u32 place = 0;
#pragma unroll
    for (u32 i = 1; i < N; ++i) {
      V value = widen(items[i]);
      bool better = LESS ? value < best : value > best;
      if (!is_nan(best) && (better || is_nan(value))) {
        best = value;
        place = i;
      }
    }
    return combine(state, at(best, index + place));
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
  template <u32 N> static UPSWEEP_DEVICE State fold(State state, const T (&items)[N], u64) {
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
  static UPSWEEP_DEVICE Output finish(State state, u64) {
    bool finite = state.max - state.max == R(0);
    return Narrow<T>::from(finite ? state.max + natural_log(state.sum) : state.max);
  }
};

}  // namespace upsweep
