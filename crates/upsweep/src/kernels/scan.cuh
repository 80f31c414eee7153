// What scan kernels share: the carry of an operator, scans of a warp, tiles of rows, and how blocks meet. Operators need
// to be associative, not commutative: a combination always has the earlier elements on the left.

namespace upsweep {

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

// The initial value: the low bytes of a kernel argument.
template <class State> UPSWEEP_DEVICE State initial_state(u64 bits) {
  static_assert(sizeof(State) == 4 || sizeof(State) == 8, "the state of a scan is one number");
  State state;
  memcpy(&state, &bits, sizeof(State));
  return state;
}
// One element; -inf, which adds nothing to any other, stands for none as well.
template <> UPSWEEP_DEVICE MaxSum<float> initial_state<MaxSum<float>>(u64 bits) { return {__uint_as_float(u32(bits)), 1.0f}; }
template <> UPSWEEP_DEVICE MaxSum<double> initial_state<MaxSum<double>>(u64 bits) { return {__longlong_as_double(i64(bits)), 1.0}; }

// ------------------------------------------------------------------ warps

// Each lane's state with those of all lanes below.
template <class Op> UPSWEEP_DEVICE typename Op::State warp_scan(typename Op::State state) {
  const u32 lane = threadIdx.x % WARP;
#pragma unroll
  for (u32 delta = 1; delta < WARP; delta *= 2) {
    const typename Op::State before = shuffle_up(state, delta);
    if (lane >= delta) state = Op::combine(before, state);
  }
  return state;
}

// The warp's state in lane 0, in the order of the lanes.
template <class Op> UPSWEEP_DEVICE typename Op::State warp_total(typename Op::State state) {
#pragma unroll
  for (u32 delta = 1; delta < WARP; delta *= 2) state = Op::combine(state, shuffle_down(state, delta));
  return state;
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

  State items[ROWS][N];  // after `scan`: each with all those before it in its warp
  u64 first;             // memory index of the tile's lowest element
  bool full;

  static UPSWEEP_DEVICE u32 offset(u32 row) {
    const u32 position = ((threadIdx.x / WARP * ROWS + row) * WARP + threadIdx.x % WARP) * N;
    return REVERSE ? ELEMENTS - N - position : position;
  }

  UPSWEEP_DEVICE void load(const void* input, u64 n, u64 tile, u64 tiles) {
    const T* elements = static_cast<const T*>(input);
    first = (REVERSE ? tiles - 1 - tile : tile) * ELEMENTS;
    full = n - first >= ELEMENTS;
    if (full && reinterpret_cast<u64>(input) % (N * sizeof(T)) == 0) {
      Bits128 bits[ROWS];
#pragma unroll
      for (u32 row = 0; row < ROWS; ++row) bits[row] = load_group<T, N>(elements + first + offset(row));
#pragma unroll
      for (u32 row = 0; row < ROWS; ++row) {
#pragma unroll
        for (u32 k = 0; k < N; ++k) items[row][k] = Op::lift(element_of<T>(bits[row], REVERSE ? N - 1 - k : k), 0);
      }
      return;
    }
#pragma unroll
    for (u32 row = 0; row < ROWS; ++row) {
#pragma unroll
      for (u32 k = 0; k < N; ++k) {
        const u64 index = first + offset(row) + (REVERSE ? N - 1 - k : k);
        items[row][k] = index < n ? Op::lift(elements[index], 0) : Op::identity();
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
  UPSWEEP_DEVICE void store(void* output, u64 n, State base, bool exclusive) const {
    Output* outputs = static_cast<Output*>(output);
    const bool aligned = full && is_aligned16(output);
#pragma unroll
    for (u32 row = 0; row < ROWS; ++row) {
      State earlier = base;
      if (exclusive) {
        const State below = shuffle_up(items[row][N - 1], 1);
        const State row_below = row == 0 ? Op::identity() : shuffle_from(items[row == 0 ? 0 : row - 1][N - 1], WARP - 1);
        earlier = Op::combine(base, threadIdx.x % WARP == 0 ? row_below : below);
      }
      Output results[N];
#pragma unroll
      for (u32 k = 0; k < N; ++k) {
        const State inclusive = Op::combine(base, items[row][k]);
        results[REVERSE ? N - 1 - k : k] = Op::finish(exclusive ? earlier : inclusive, 0);
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

  UPSWEEP_DEVICE void load(const T* columns, const ColumnsShape& shape, u64 step, bool packs, bool has_columns) {
    const u64 first = step * LENGTH + first_row();
    Bits128 bits[ROWS];
#pragma unroll
    for (u32 r = 0; r < ROWS; ++r) {
      if (packs && has_columns && first + r < shape.length) bits[r] = load_group<T, N>(columns + i64(place(first + r, shape.length)) * shape.row_stride);
    }
#pragma unroll
    for (u32 r = 0; r < ROWS; ++r) {
#pragma unroll
      for (u32 i = 0; i < N; ++i) items[r][i] = Op::identity();
      if (has_columns && first + r < shape.length) {
        const T* row = columns + i64(place(first + r, shape.length)) * shape.row_stride;
#pragma unroll
        for (u32 i = 0; i < N; ++i) items[r][i] = Op::lift(packs ? element_of<T>(bits[r], i) : row[i], 0);
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
  UPSWEEP_DEVICE void results(u32 r, State (&above)[N], bool exclusive, Output (&row)[N]) const {
#pragma unroll
    for (u32 i = 0; i < N; ++i) {
      const State inclusive = Op::combine(front[i], items[r][i]);
      row[i] = Op::finish(exclusive ? above[i] : inclusive, 0);
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
