// What scan kernels share: the carry of an operator, scans of a warp, tiles of rows, and how blocks meet. Operators need
// to be associative, not commutative: a combination always has the earlier elements on the left.

namespace upsweep {

// ------------------------------------------------------------------ operators of two arrays

// What a scan reads beside its input: nothing, a coefficient an element (laid out as the input is, but at an address of its
// own), or a bit an element, set where a segment begins in the order of the scan (words of 32 elements in memory order).
enum class Beside : u32 { NOTHING, COEFFICIENTS, HEADS };
template <class Op> constexpr Beside BESIDE = Beside::NOTHING;

// What a run of elements does to the state h in front of it: it becomes product * h + value.
template <class R> struct Affine {
  R product, value;
};
// h[i] = a[i] * h[i - 1] + b[i]; the elements are b.
template <class T> struct LinearRecurrence {
  using Input = T;
  using Real = typename Traits<T>::Acc;
  using State = Affine<Real>;
  using Output = T;
  static UPSWEEP_DEVICE State identity() { return {Real(1), Real(0)}; }
  static UPSWEEP_DEVICE State lift(T x, T coefficient) { return {Real(widen(coefficient)), Real(widen(x))}; }
  static UPSWEEP_DEVICE State combine(State a, State b) { return {a.product * b.product, fma(b.product, a.value, b.value)}; }
  static UPSWEEP_DEVICE Output finish(State state, u64) { return Narrow<T>::from(state.value); }
};
template <class T> constexpr Beside BESIDE<LinearRecurrence<T>> = Beside::COEFFICIENTS;

// The state since the last head, and whether there was one: what stands in front of a head does not pass it.
template <class V, u32 SIZE> struct SinceHead {
  V value;
  u32 head;
};
template <class V> struct SinceHead<V, 8> {
  V value;
  u32 head, none;  // no padding, whose bits would travel
};
template <class V> struct SinceHead<V, 16> : SinceHead<V, 8> {};
template <class Op> struct Segmented {
  using Input = typename Op::Input;
  using Base = Op;
  using State = SinceHead<typename Op::State, sizeof(typename Op::State)>;
  using Output = typename Op::Output;
  static UPSWEEP_DEVICE State since(typename Op::State value, u32 head) {
    State state = {};
    state.value = value;
    state.head = head;
    return state;
  }
  static UPSWEEP_DEVICE State identity() { return since(Op::identity(), 0); }
  static UPSWEEP_DEVICE State lift(Input x, u32 head) { return since(Op::lift(x, 0), head); }
  static UPSWEEP_DEVICE State combine(State a, State b) {
    const typename Op::State both = Op::combine(a.value, b.value);
    return since(b.head != 0 ? b.value : both, a.head | b.head);
  }
};
template <class Op> constexpr Beside BESIDE<Segmented<Op>> = Beside::HEADS;

// ------------------------------------------------------------------ carries

// What passes from tile to tile (the Rust side: ops/scan/operators.rs). Long chains of rounding sums are carried in a
// wider type, so that a chain of a million tiles rounds no more than a tree would.
template <class Op> struct Carry {
  using State = typename Op::State;
  static UPSWEEP_DEVICE State empty() { return Op::identity(); }
  static UPSWEEP_DEVICE State raise(typename Op::State state) { return state; }
  static UPSWEEP_DEVICE State join(State a, State b) { return Op::combine(a, b); }
  static UPSWEEP_DEVICE typename Op::State lower(State carry) { return carry; }
};
struct FloatCarry {
  using State = double;
  static UPSWEEP_DEVICE double empty() { return 0.0; }
  static UPSWEEP_DEVICE double raise(float state) { return double(state); }
  static UPSWEEP_DEVICE double join(double a, double b) { return a + b; }
  static UPSWEEP_DEVICE float lower(double carry) { return float(carry); }
};
template <> struct Carry<Sum<float>> : FloatCarry {};
template <> struct Carry<Sum<f16>> : FloatCarry {};
template <> struct Carry<Sum<bf16>> : FloatCarry {};
template <> struct Carry<Sum<double>> {
  using State = DoubleDouble;
  static UPSWEEP_DEVICE State empty() { return {0.0, 0.0}; }
  static UPSWEEP_DEVICE State raise(double state) { return {state, 0.0}; }
  static UPSWEEP_DEVICE State join(State a, State b) { return CompensatedSum<double>::combine(a, b); }
  static UPSWEEP_DEVICE double lower(State carry) { return carry.high + carry.low; }
};

// A number at most one below the maximum, and the sum of exponentials relative to it: in double-double, whatever the state's
// type. Relative to the maximum itself, a chain along which it rises slowly would round at every step.
struct MaxSumCarry {
  double max;
  DoubleDouble sum;
};
template <class T> struct Carry<LogSumExp<T>> {
  using Op = LogSumExp<T>;
  using R = typename Op::R;
  using State = MaxSumCarry;
  static UPSWEEP_DEVICE State empty() { return {-UPSWEEP_INF64, {0.0, 0.0}}; }
  static UPSWEEP_DEVICE State raise(typename Op::State state) { return {double(state.max), {double(state.sum), 0.0}}; }
  static UPSWEEP_DEVICE DoubleDouble scaled(State state, double max) {
    if (state.max == max) return state.sum;
    const double factor = exp2((state.max - max) * 1.4426950408889634);
    return {state.sum.high * factor, state.sum.low * factor};
  }
  static UPSWEEP_DEVICE State join(State a, State b) {
    const double most = LogSumExp<double>::max2(a.max, b.max), max = most - a.max <= 1.0 ? a.max : most;
    return {max, CompensatedSum<double>::combine(scaled(a, max), scaled(b, max))};
  }
  static UPSWEEP_DEVICE typename Op::State lower(State carry) { return {R(carry.max), R(carry.sum.high + carry.sum.low)}; }
};

template <class Op> struct Carry<Segmented<Op>> {
  using Base = Carry<Op>;
  struct State {
    typename Base::State value;
    u64 head;
  };
  static UPSWEEP_DEVICE State empty() { return {Base::empty(), 0}; }
  static UPSWEEP_DEVICE State raise(typename Segmented<Op>::State state) { return {Base::raise(state.value), state.head}; }
  static UPSWEEP_DEVICE State join(State a, State b) {
    const typename Base::State both = Base::join(a.value, b.value);
    return {b.head != 0 ? b.value : both, a.head | b.head};
  }
  static UPSWEEP_DEVICE typename Segmented<Op>::State lower(State carry) { return Segmented<Op>::since(Base::lower(carry.value), u32(carry.head)); }
};

// ------------------------------------------------------------------ initial values and results

// The low bytes of a kernel argument.
template <class State> UPSWEEP_DEVICE State initial_state(u64 bits) {
  static_assert(sizeof(State) == 4 || sizeof(State) == 8, "the state is one number");
  State state;
  memcpy(&state, &bits, sizeof(State));
  return state;
}
// One element; -inf, which adds nothing to any other, stands for none as well.
template <> UPSWEEP_DEVICE MaxSum<float> initial_state<MaxSum<float>>(u64 bits) { return {__uint_as_float(u32(bits)), 1.0f}; }
template <> UPSWEEP_DEVICE MaxSum<double> initial_state<MaxSum<double>>(u64 bits) { return {__longlong_as_double(i64(bits)), 1.0}; }
// What stands in front of a row, and an element's result by the states with and without the element.
template <class Op> struct Results {
  u64 initial;  // the bits of a State
  bool exclusive;
  UPSWEEP_DEVICE typename Op::State start() const { return initial_state<typename Op::State>(initial); }
  UPSWEEP_DEVICE typename Op::Output of(typename Op::State earlier, typename Op::State inclusive, bool) const {
    return Op::finish(exclusive ? earlier : inclusive, 0);
  }
};
// The bits are the state h in front.
template <class T> struct Results<LinearRecurrence<T>> {
  using Op = LinearRecurrence<T>;
  u64 initial;
  bool exclusive;
  UPSWEEP_DEVICE typename Op::State start() const { return {typename Op::Real(1), initial_state<typename Op::Real>(initial)}; }
  UPSWEEP_DEVICE T of(typename Op::State earlier, typename Op::State inclusive, bool) const { return Op::finish(exclusive ? earlier : inclusive, 0); }
};
// The initial value stands in front of every segment, so it enters at the end.
template <class Base> struct Results<Segmented<Base>> {
  using State = typename Segmented<Base>::State;
  u64 initial;  // the bits of a Base::State
  bool exclusive;
  UPSWEEP_DEVICE State start() const { return Segmented<Base>::identity(); }
  UPSWEEP_DEVICE typename Base::Output of(State earlier, State inclusive, bool is_head) const {
    const typename Base::State before = is_head ? Base::identity() : earlier.value;
    return Base::finish(Base::combine(initial_state<typename Base::State>(initial), exclusive ? before : inclusive.value), 0);
  }
};

// The state of an element with what stands beside it: its coefficient, if the operator has them.
template <class Op> UPSWEEP_DEVICE typename Op::State lift_with(typename Op::Input x, typename Op::Input coefficient) {
  if constexpr (BESIDE<Op> == Beside::COEFFICIENTS) return Op::lift(x, coefficient);
  else return Op::lift(x, 0);
}

// ------------------------------------------------------------------ warps

// Each lane's state with those of all lanes below. Where heads are, one vote tells every lane from which one on its segment
// reaches, and values alone travel.
template <class Op> UPSWEEP_DEVICE typename Op::State warp_scan(typename Op::State state) {
  const u32 lane = threadIdx.x % WARP;
  if constexpr (BESIDE<Op> == Beside::HEADS) {
    const u32 heads = __ballot_sync(FULL_WARP, state.head != 0) & (FULL_WARP >> (WARP - 1 - lane));
    const u32 first = heads == 0 ? 0 : WARP - 1 - u32(__clz(int(heads)));
#pragma unroll
    for (u32 delta = 1; delta < WARP; delta *= 2) {
      const auto before = shuffle_up(state.value, delta);
      if (lane >= first + delta) state.value = Op::Base::combine(before, state.value);
    }
    return Op::since(state.value, heads != 0);
  } else {
#pragma unroll
    for (u32 delta = 1; delta < WARP; delta *= 2) {
      const typename Op::State before = shuffle_up(state, delta);
      if (lane >= delta) state = Op::combine(before, state);
    }
    return state;
  }
}

// The warp's state in lane 0, in the order of the lanes.
template <class Op> UPSWEEP_DEVICE typename Op::State warp_total(typename Op::State state) {
  if constexpr (BESIDE<Op> == Beside::HEADS) {
    // Only lanes from the last head on count.
    const u32 heads = __ballot_sync(FULL_WARP, state.head != 0);
    const bool counts = heads == 0 || threadIdx.x % WARP >= WARP - 1 - u32(__clz(int(heads)));
    return Op::since(warp_total<typename Op::Base>(counts ? state.value : Op::Base::identity()), heads != 0);
  } else {
#pragma unroll
    for (u32 delta = 1; delta < WARP; delta *= 2) state = Op::combine(state, shuffle_down(state, delta));
    return state;
  }
}

// ------------------------------------------------------------------ the block scans of the first rungs

// One result: of elements, the inclusive scan, finished; of the blocks' totals, the exclusive scan, as carries.
template <class Op, class Source> struct Scanned;
template <class Op> struct Scanned<Op, Elements> {
  static UPSWEEP_DEVICE void emit(void* output, u64 index, u64 n, typename Op::State inclusive, typename Op::State) {
    if (index < n) static_cast<typename Op::Output*>(output)[index] = Op::finish(inclusive, 0);
  }
};
template <class Op> struct Scanned<Op, Partials> {
  static UPSWEEP_DEVICE void emit(void* output, u64 index, u64 n, typename Op::State, typename Op::State exclusive) {
    if (index < n) static_cast<typename Op::State*>(output)[index] = exclusive;
  }
};

// Adds the carry of each PER_BLOCK items to them. Items are states: those of totals, or outputs of the same type.
template <class Op, u32 BLOCK, u32 PER_BLOCK> UPSWEEP_KERNEL scan_add(void* items, u64 n, const void* carries) {
  using State = typename Op::State;
  static_assert(sizeof(State) == sizeof(typename Op::Output), "outputs are combined again as states");
  const State carry = static_cast<const State*>(carries)[blockIdx.x];
#pragma unroll
  for (u32 k = 0; k < PER_BLOCK; k += BLOCK) {
    const u64 index = u64(blockIdx.x) * PER_BLOCK + k + threadIdx.x;
    State* item = static_cast<State*>(items) + index;
    if (index < n) *item = Op::combine(carry, *item);
  }
}

// ------------------------------------------------------------------ heads of segments

template <u32 SIZE> struct KeyBits;
template <> struct KeyBits<1> {
  using type = u8;
};
template <> struct KeyBits<4> {
  using type = u32;
};
template <> struct KeyBits<8> {
  using type = u64;
};

// The heads of n elements by their keys of SIZE bytes: an element whose key is not that of the element before it, in the order
// of the scan. A warp has 1024 elements, 16 bytes a lane and load, and stores a word a lane; beyond n no bit is set.
template <u32 SIZE, bool REVERSE> UPSWEEP_KERNEL scan_heads_of_keys(const void* input, u64 n, void* heads) {
  using Key = typename KeyBits<SIZE>::type;
  using Moved = typename KeyBits<(SIZE < 4 ? 4 : SIZE)>::type;
  constexpr u32 N = 16 / SIZE, LOADS = 32 / N, LANES_OF_WORD = 32 / N;
  const Key* keys = static_cast<const Key*>(input);
  const u32 lane = threadIdx.x % WARP;
  const u64 number = (u64(blockIdx.x) * blockDim.x + threadIdx.x) / WARP, first = number * 1024;
  auto at = [&](u32 load) { return first + (load * WARP + lane) * N; };
  Moved key[LOADS][N];
  if (is_aligned16(input) && first + 1024 <= n) {
    Bits128 bits[LOADS];
#pragma unroll
    for (u32 k = 0; k < LOADS; ++k) bits[k] = load_bits(keys + at(k));
#pragma unroll
    for (u32 k = 0; k < LOADS; ++k) {
#pragma unroll
      for (u32 i = 0; i < N; ++i) key[k][i] = element_of<Key>(bits[k], i);
    }
  } else {
#pragma unroll
    for (u32 k = 0; k < LOADS; ++k) {
#pragma unroll
      for (u32 i = 0; i < N; ++i) key[k][i] = at(k) + i < n ? keys[at(k) + i] : Key(0);
    }
  }
  // Where the warp's elements meet those of the warp before it in the order of the scan.
  Moved edge = 0;
  if (REVERSE ? first + 1024 < n : first > 0 && first < n) edge = keys[REVERSE ? first + 1024 : first - 1];
  const u64 start = REVERSE ? n - 1 : 0;
  u32 mine = 0;
#pragma unroll
  for (u32 k = 0; k < LOADS; ++k) {
    Moved before = REVERSE ? shuffle_down(key[k][0], 1) : shuffle_up(key[k][N - 1], 1);
    const u32 next = REVERSE ? k + 1 : k - 1;
    const Moved other = next < LOADS ? shuffle_from(key[next % LOADS][REVERSE ? 0 : N - 1], REVERSE ? 0 : WARP - 1) : edge;
    if (lane == (REVERSE ? WARP - 1 : 0)) before = other;
    u32 bits = 0;
#pragma unroll
    for (u32 i = 0; i < N; ++i) {
      const u64 index = at(k) + i;
      const Moved left = REVERSE ? (i + 1 < N ? key[k][(i + 1) % N] : before) : (i > 0 ? key[k][(i + N - 1) % N] : before);
      if (index < n && (index == start || key[k][i] != left)) bits |= 1u << i;
    }
    bits <<= lane % LANES_OF_WORD * N;
#pragma unroll
    for (u32 delta = 1; delta < LANES_OF_WORD; delta *= 2) bits |= shuffle_xor(bits, delta);
    // The load's words, of which N lanes keep one each.
    const u32 word = shuffle_from(bits, lane % N * LANES_OF_WORD);
    if (lane / N == k) mine = word;
  }
  static_cast<u32*>(heads)[number * WARP + lane] = mine;
}

// How many of `count` rising numbers are below `bound`; a warp asks together, for 32 of them at a time.
UPSWEEP_DEVICE u64 count_below(const u64* numbers, u64 count, u64 bound) {
  u64 low = 0, high = count;  // those before `low` are below, from `high` on none is
  while (low < high) {
    const u64 step = (high - low + WARP - 1) / WARP, mine = low + threadIdx.x % WARP * step;
    const u32 below = __popc(__ballot_sync(FULL_WARP, mine < high && numbers[mine < high ? mine : low] < bound));
    if (below == 0) return low;
    const u64 last = low + (below - 1) * step;
    low = last + 1;
    if (last + step < high) high = last + step;
  }
  return low;
}
// The heads of n elements by the `segments` + 1 offsets of segments: a block has SPAN elements.
template <u32 SPAN, bool REVERSE> UPSWEEP_KERNEL scan_heads_of_offsets(const void* input, u64 segments, u64 n, void* heads) {
  __shared__ u32 words[SPAN / 32];
  __shared__ u64 edges[2];
  const u64* offsets = static_cast<const u64*>(input);
  const u64 first = u64(blockIdx.x) * SPAN;
  for (u32 i = threadIdx.x; i < SPAN / 32; i += blockDim.x) words[i] = 0;
  // In reverse, a segment begins with the element in front of its end.
  if (threadIdx.x < 2 * WARP) {
    const u64 found = count_below(offsets, segments + 1, first + threadIdx.x / WARP * SPAN + REVERSE);
    if (threadIdx.x % WARP == 0) edges[threadIdx.x / WARP] = found;
  }
  __syncthreads();
  for (u64 i = edges[0] + threadIdx.x; i < edges[1]; i += blockDim.x) {
    const u64 place = offsets[i] - REVERSE - first;
    if (place < SPAN && first + place < n) atomicOr(words + place / 32, 1u << (place % 32));
  }
  __syncthreads();
  for (u32 i = threadIdx.x; i < SPAN / 32; i += blockDim.x) static_cast<u32*>(heads)[first / 32 + i] = words[i];
}

// ------------------------------------------------------------------ tiles

// A block's tile: ROWS rows a warp, in a row N neighbours a lane, which are one 16-byte store. Reversed, position p of
// the tile is the element at ELEMENTS - 1 - p, and the tiles are taken from the end of the memory: their addresses stay
// multiples of a tile.
template <class Op, u32 BLOCK, u32 ROWS, bool REVERSE> struct ScanTile {
  using T = typename Op::Input;
  using State = typename Op::State;
  using Output = typename Op::Output;
  static constexpr u32 N = pack_size<Output>();
  static constexpr u32 ELEMENTS = BLOCK * ROWS * N;
  static constexpr u32 WARPS = BLOCK / WARP;
  static_assert(BLOCK % WARP == 0 && WARPS <= WARP, "whole warps, at most 32 of them");

  static constexpr bool HAS_HEADS = BESIDE<Op> == Beside::HEADS;

  State items[ROWS][N];  // after `scan`: each with all those before it in its warp
  u32 heads[HAS_HEADS ? ROWS : 1];  // a bit an element of the row's neighbours, in memory order
  u64 first;             // memory index of the tile's lowest element
  bool full;

  static UPSWEEP_DEVICE u32 offset(u32 row) {
    const u32 position = ((threadIdx.x / WARP * ROWS + row) * WARP + threadIdx.x % WARP) * N;
    return REVERSE ? ELEMENTS - N - position : position;
  }

  UPSWEEP_DEVICE bool is_head(u32 row, u32 k) const {
    if constexpr (HAS_HEADS) return (heads[row] >> (REVERSE ? N - 1 - k : k) & 1) != 0;
    else return false;
  }
  // An element's state; `k` counts in the order of the scan.
  UPSWEEP_DEVICE State lift(T x, T coefficient, u32 row, u32 k) const {
    if constexpr (HAS_HEADS) return Op::lift(x, is_head(row, k));
    else return lift_with<Op>(x, coefficient);
  }

  UPSWEEP_DEVICE void load(const void* input, const void* beside, u64 n, u64 tile, u64 tiles) {
    const T* elements = static_cast<const T*>(input);
    constexpr bool HAS_COEFFICIENTS = BESIDE<Op> == Beside::COEFFICIENTS;
    const T* coefficients = HAS_COEFFICIENTS ? static_cast<const T*>(beside) : elements;
    first = (REVERSE ? tiles - 1 - tile : tile) * ELEMENTS;
    full = n - first >= ELEMENTS;
    if constexpr (HAS_HEADS) {
      // Words are of whole tiles, whatever n is.
#pragma unroll
      for (u32 row = 0; row < ROWS; ++row) {
        const u64 index = first + offset(row);
        heads[row] = static_cast<const u32*>(beside)[index / 32] >> (index % 32);
      }
    }
    if (full && (reinterpret_cast<u64>(elements) | reinterpret_cast<u64>(coefficients)) % (N * sizeof(T)) == 0) {
      Bits128 bits[ROWS], beside_bits[ROWS];
#pragma unroll
      for (u32 row = 0; row < ROWS; ++row) {
        bits[row] = load_group<T, N>(elements + first + offset(row));
        beside_bits[row] = HAS_COEFFICIENTS ? load_group<T, N>(coefficients + first + offset(row)) : bits[row];
      }
#pragma unroll
      for (u32 row = 0; row < ROWS; ++row) {
#pragma unroll
        for (u32 k = 0; k < N; ++k) {
          const u32 i = REVERSE ? N - 1 - k : k;
          items[row][k] = lift(element_of<T>(bits[row], i), element_of<T>(beside_bits[row], i), row, k);
        }
      }
      return;
    }
#pragma unroll
    for (u32 row = 0; row < ROWS; ++row) {
#pragma unroll
      for (u32 k = 0; k < N; ++k) {
        const u64 index = first + offset(row) + (REVERSE ? N - 1 - k : k);
        items[row][k] = index < n ? lift(elements[index], coefficients[index], row, k) : Op::identity();
      }
    }
  }

  // The warp's total, in every lane.
  UPSWEEP_DEVICE State scan() {
    State total[ROWS];
#pragma unroll
    for (u32 row = 0; row < ROWS; ++row) {
#pragma unroll
      for (u32 k = 1; k < N; ++k) items[row][k] = Op::combine(items[row][k - 1], items[row][k]);
      total[row] = warp_scan<Op>(items[row][N - 1]);
    }
    State sum = Op::identity();
#pragma unroll
    for (u32 row = 0; row < ROWS; ++row) {
      const State lanes = shuffle_up(total[row], 1);
      const State before = threadIdx.x % WARP == 0 ? sum : Op::combine(sum, lanes);
#pragma unroll
      for (u32 k = 0; k < N; ++k) items[row][k] = Op::combine(before, items[row][k]);
      sum = Op::combine(sum, shuffle_from(total[row], WARP - 1));
    }
    return sum;
  }

  // The warp's total alone, in lane 0.
  UPSWEEP_DEVICE State total() const {
    State sum = Op::identity();
#pragma unroll
    for (u32 row = 0; row < ROWS; ++row) {
      State lane = items[row][0];
#pragma unroll
      for (u32 k = 1; k < N; ++k) lane = Op::combine(lane, items[row][k]);
      sum = Op::combine(sum, warp_total<Op>(lane));
    }
    return sum;
  }

  // `base` is what stands in front of the warp's elements. The whole warp calls: an exclusive scan's first result of a
  // lane is what the lane below ends with, fetched here rather than kept in a register a row.
  UPSWEEP_DEVICE void store(void* output, u64 n, State base, const Results<Op>& result) const {
    Output* outputs = static_cast<Output*>(output);
    const bool aligned = full && is_aligned16(output);
#pragma unroll
    for (u32 row = 0; row < ROWS; ++row) {
      State earlier = base;
      if (result.exclusive) {
        const State below = shuffle_up(items[row][N - 1], 1);
        const State row_below = row == 0 ? Op::identity() : shuffle_from(items[row == 0 ? 0 : row - 1][N - 1], WARP - 1);
        earlier = Op::combine(base, threadIdx.x % WARP == 0 ? row_below : below);
      }
      Output results[N];
#pragma unroll
      for (u32 k = 0; k < N; ++k) {
        const State inclusive = Op::combine(base, items[row][k]);
        results[REVERSE ? N - 1 - k : k] = result.of(earlier, inclusive, is_head(row, k));
        earlier = inclusive;
      }
      const u64 index = first + offset(row);
      if (aligned) {
        store_bits(outputs + index, gather_bits<Output>(results));
      } else {
#pragma unroll
        for (u32 k = 0; k < N; ++k) {
          if (index + k < n) outputs[index + k] = results[k];
        }
      }
    }
  }
};

// The states of the first `count` of a block's WARPS warps, in order; `totals` holds one a warp, and a barrier has
// passed. Unrolled, so that all reads are under way at once.
template <class Op, u32 WARPS> UPSWEEP_DEVICE typename Op::State first_warps(const typename Op::State* totals, u32 count) {
  typename Op::State state = Op::identity();
#pragma unroll
  for (u32 i = 0; i < WARPS; ++i) {
    if (i < count) state = Op::combine(state, totals[i]);
  }
  return state;
}

// ------------------------------------------------------------------ tiles that look back

// What a tile tells the tiles behind it travels in 64-bit words (tag << 32 | 32 bits of carry), like the words of
// `publish_and_finish`: flag and value share one aligned word, so relaxed accesses are enough. The tag is twice the
// call's epoch, plus one where the word belongs to the prefix of all tiles so far and not to the tile's own total.
// A carry of several words is whole when its words have one tag; a reader that meets the overwriting looks again.
constexpr u32 EPOCH_BITS = 0x7fffffffu;

template <class C> UPSWEEP_DEVICE void publish_carry(u64* words, u64 tile, u32 tag, typename C::State carry) {
  using State = typename C::State;
  const Words<State> mine = to_words(carry);
#pragma unroll
  for (u32 i = 0; i < Words<State>::COUNT; ++i) store_relaxed(words + tile * Words<State>::COUNT + i, (u64(tag) << 32) | mine.word[i]);
}

// The carry of all tiles before `tile`, valid in lane 0 of the warp that calls. A lane looks at one tile, so a trip to
// memory covers 32; no lane waits for a tile that lies before the nearest known prefix. Looking at more tiles a trip was
// measured to cost more than it saves: many blocks poll, and their loads and registers are what a tile's own need.
template <class C> UPSWEEP_DEVICE typename C::State look_back(const u64* words, u64 tile, u32 epoch, Control* control) {
  using State = typename C::State;
  constexpr u32 COUNT = Words<State>::COUNT;
  const u32 lane = threadIdx.x % WARP;
  State prefix = C::empty();
  u64 end = tile;  // the tiles before it are not covered yet
  while (end > 0) {
    const u64 back = u64(lane) + 1;  // the lane's tile is so many in front of `end`; higher lanes hold earlier tiles
    State window;
    u32 found;
    for (u32 spins = 0;; ++spins) {
      // In front of the first tile there is nothing: the whole prefix is known.
      bool known = back > end, has_prefix = known;
      Words<State> theirs = to_words(C::empty());
      if (!known) {
        u64 word[COUNT];
#pragma unroll
        for (u32 i = 0; i < COUNT; ++i) word[i] = load_relaxed(words + (end - back) * COUNT + i);
        const u32 tag = u32(word[0] >> 32);
        known = (tag >> 1) == epoch;
#pragma unroll
        for (u32 i = 0; i < COUNT; ++i) {
          theirs.word[i] = u32(word[i]);
          known = known && u32(word[i] >> 32) == tag;
        }
        has_prefix = known && (tag & 1) != 0;
      }
      found = __ballot_sync(FULL_WARP, has_prefix);
      const u32 waiting = __ballot_sync(FULL_WARP, !known);
      const u32 nearest = found ? u32(__ffs(int(found))) - 1 : WARP;
      const u32 needed = nearest == WARP ? FULL_WARP : (1u << nearest) - 1;
      window = lane > nearest ? C::empty() : from_words<State>(theirs);
      if ((waiting & needed) == 0) break;
      if (spins == SPIN_LIMIT) {
        report_error(control, ERROR_SPIN_RAN_OUT);
        return prefix;
      }
    }
#pragma unroll
    for (u32 delta = 1; delta < WARP; delta *= 2) window = C::join(shuffle_down(window, delta), window);
    prefix = C::join(window, prefix);
    if (found) break;
    end -= WARP;
  }
  return prefix;
}

// ------------------------------------------------------------------ tiles that look ahead (compute 9.0)

constexpr u32 NONE = 0xffffffffu;  // a tile behind the last one

// The words of a new control block are zero and belong to no call.
UPSWEEP_DEVICE u32 tag_behind(u32 last_epoch) { return last_epoch == 0xffffffffu ? 1 : last_epoch + 1; }
// A block that has got a ticket behind the last tile's leaves, and takes no other. The last one makes all ready for the next
// call: no ticket is taken any more, and every block has read its epoch.
UPSWEEP_DEVICE void leave(Control* control, u32 tag) {
  if (atomicAdd(&control->leaving, 1u) == gridDim.x - 1) {
    store_relaxed(&control->counter, 0);
    store_relaxed(&control->leaving, 0);
    store_relaxed(&control->epoch, tag);
  }
}

#if __CUDA_ARCH__ >= 900
// Waits for a turn of a barrier; false if it did not come, which is reported.
UPSWEEP_DEVICE bool wait_for(u64& barrier, u32 turn, Control* control) {
  // A try suspends the thread for a while in hardware, so the limit is generous.
  for (u32 spins = 0; !barrier_try_wait(&barrier, turn & 1); ++spins) {
    if (spins == SPIN_LIMIT) {
      report_error(control, ERROR_SPIN_RAN_OUT);
      return false;
    }
  }
  return true;
}
#endif

// ------------------------------------------------------------------ columns

struct ColumnsShape {
  u64 outer, length, inner;     // output extents: scans run along `length`
  i64 outer_stride, row_stride;  // of the input, in elements; columns are neighbours
  u64 steps, steps_of_block;
  u64 initial, exclusive;
};

// What a thread has of a step: ACROSS threads lie side by side with N columns each, GROUPS of them below each other with ROWS
// rows each.
template <class Op, u32 ACROSS, u32 ROWS, u32 N, u32 BLOCK, bool REVERSE> struct ColumnStep {
  using T = typename Op::Input;
  using State = typename Op::State;
  using Output = typename Op::Output;
  using C = Carry<Op>;
  static constexpr u32 GROUPS = BLOCK / ACROSS, LENGTH = GROUPS * ROWS, WARPS = BLOCK / WARP, COLUMNS = ACROSS * N;
  static_assert(ACROSS <= WARP && BLOCK % WARP == 0, "a warp has whole groups");

  State items[ROWS][N];  // after `scan`: with those above in the thread's rows
  State front[N];        // after `scan`: of the threads above in the warp

  static UPSWEEP_DEVICE u32 across() { return threadIdx.x % ACROSS; }
  static UPSWEEP_DEVICE u32 first_row() { return threadIdx.x / ACROSS * ROWS; }
  // Row `row` in the order of the scan, as an index in memory.
  static UPSWEEP_DEVICE u64 place(u64 row, u64 length) { return REVERSE ? length - 1 - row : row; }

  // `beside`: the coefficients of the same columns, if the operator has them.
  UPSWEEP_DEVICE void load(const T* columns, const T* beside, const ColumnsShape& shape, u64 step, bool packs, bool has_columns) {
    constexpr bool HAS_COEFFICIENTS = BESIDE<Op> == Beside::COEFFICIENTS;
    const u64 first = step * LENGTH + first_row();
    Bits128 bits[ROWS], beside_bits[ROWS];
#pragma unroll
    for (u32 r = 0; r < ROWS; ++r) {
      if (packs && has_columns && first + r < shape.length) {
        const i64 at = i64(place(first + r, shape.length)) * shape.row_stride;
        bits[r] = load_group<T, N>(columns + at);
        beside_bits[r] = HAS_COEFFICIENTS ? load_group<T, N>(beside + at) : bits[r];
      }
    }
#pragma unroll
    for (u32 r = 0; r < ROWS; ++r) {
#pragma unroll
      for (u32 i = 0; i < N; ++i) items[r][i] = Op::identity();
      if (has_columns && first + r < shape.length) {
        const i64 at = i64(place(first + r, shape.length)) * shape.row_stride;
        const T *row = columns + at, *beside_row = (HAS_COEFFICIENTS ? beside : columns) + at;
#pragma unroll
        for (u32 i = 0; i < N; ++i) {
          if (packs) items[r][i] = lift_with<Op>(element_of<T>(bits[r], i), element_of<T>(beside_bits[r], i));
          else items[r][i] = lift_with<Op>(row[i], beside_row[i]);
        }
      }
    }
  }
  // The same from a stage of shared memory that holds the step's `rows` rows in the order of the scan, without gaps; the thread
  // has `columns` columns.
  UPSWEEP_DEVICE void load_staged(const T* stage, u32 rows, u32 columns) {
#pragma unroll
    for (u32 r = 0; r < ROWS; ++r) {
      const Bits128 bits = read_group<T, N>(stage + ((first_row() + r) * ACROSS + across()) * N);
#pragma unroll
      for (u32 i = 0; i < N; ++i) items[r][i] = i < columns && first_row() + r < rows ? Op::lift(element_of<T>(bits, i), 0) : Op::identity();
    }
  }
  // Scans within the warp; `total` is the warp's in its last ACROSS lanes.
  UPSWEEP_DEVICE void scan(State (&total)[N]) {
#pragma unroll
    for (u32 r = 1; r < ROWS; ++r) {
#pragma unroll
      for (u32 i = 0; i < N; ++i) items[r][i] = Op::combine(items[r - 1][i], items[r][i]);
    }
    const u32 lane = threadIdx.x % WARP;
#pragma unroll
    for (u32 i = 0; i < N; ++i) {
      total[i] = items[ROWS - 1][i];
#pragma unroll
      for (u32 delta = ACROSS; delta < WARP; delta *= 2) {
        const State above = shuffle_up(total[i], delta);
        if (lane >= delta) total[i] = Op::combine(above, total[i]);
      }
      front[i] = Op::identity();
      if (ACROSS < WARP) {
        const State above = shuffle_up(total[i], ACROSS);
        if (lane >= ACROSS) front[i] = above;
      }
    }
  }
  // Results of row r, in turn; `above` is the state of the rows above the thread's first, and is moved on.
  UPSWEEP_DEVICE void results(u32 r, State (&above)[N], const Results<Op>& result, Output (&row)[N]) const {
#pragma unroll
    for (u32 i = 0; i < N; ++i) {
      const State inclusive = Op::combine(front[i], items[r][i]);
      row[i] = result.of(above[i], inclusive, false);
      above[i] = inclusive;
    }
  }
};

// Which columns a block has, and where they begin.
template <u32 ACROSS, u32 N> struct Strip {
  u64 outer, column, part;
  bool has_columns;
  UPSWEEP_DEVICE Strip(const ColumnsShape& shape) {
    const u64 strips = (shape.inner + ACROSS * N - 1) / (ACROSS * N);
    const u64 strip = blockIdx.x % strips, rest = blockIdx.x / strips;
    outer = rest % shape.outer;
    part = rest / shape.outer;
    column = (strip * ACROSS + threadIdx.x % ACROSS) * N;
    has_columns = column < shape.inner;
  }
};

}  // namespace upsweep
