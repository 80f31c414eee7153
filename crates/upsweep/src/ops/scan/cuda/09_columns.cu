// Rung 9, columns: any axis but the last: a thread scans a few neighbouring columns down some rows, a block a strip of columns down many; long columns are cut into steps of fixed length.
// input: elements whose columns are neighbours, at the strides that ColumnsShape gives; output: contiguous; initial: the state of the initial value
// launch: scan_columns alone, grid strips * outer; or scan_column_totals (grid strips * outer * steps), scan_column_spine, scan_columns (the same grid); block BLOCK
// cost: one read and one write of every element, or two reads where the steps are spread over blocks; one barrier a step; a column's bits depend on its values and its length alone
// source: Y. Dotsenko et al., Fast Scan Algorithms on Graphics Processors (2008), on matrices of elements a block; our own association by steps

namespace upsweep {

template <class Op, u32 N> UPSWEEP_DEVICE bool rows_are_aligned(const void* input, const void* beside, const ColumnsShape& shape) {
  const u64 addresses = reinterpret_cast<u64>(input) | (BESIDE<Op> == Beside::COEFFICIENTS ? reinterpret_cast<u64>(beside) : 0);
  return (addresses & (N * sizeof(typename Op::Input) - 1)) == 0 && (u64(shape.outer_stride) & (N - 1)) == 0 && (u64(shape.row_stride) & (N - 1)) == 0;
}

// What the warps of a block tell each other, by turns, so that one barrier a step is enough.
template <class Step> struct ColumnsShared {
  using State = typename Step::State;
  SharedStates<State, Step::WARPS * Step::COLUMNS> totals[2];
  SharedStates<typename Step::C::State, Step::COLUMNS> carries[2];  // of the steps before
};

// Leaves the warp's totals for the others.
template <class Step, class State, u32 N> UPSWEEP_DEVICE void tell_totals(ColumnsShared<Step>& shared, u32 turn, const State (&total)[N]) {
  if (threadIdx.x % WARP < WARP - Step::COLUMNS / N) return;
  write_states(shared.totals[turn % 2].get() + threadIdx.x / WARP * Step::COLUMNS + Step::across() * N, total);
}
// Of the step's first `count` warps, in the thread's columns.
template <class Op, class Step, u32 N> UPSWEEP_DEVICE void first_warps_of(ColumnsShared<Step>& shared, u32 turn, u32 count, typename Op::State (&state)[N]) {
  const typename Op::State* totals = shared.totals[turn % 2].get() + Step::across() * N;
#pragma unroll
  for (u32 i = 0; i < N; ++i) state[i] = Op::identity();
#pragma unroll
  for (u32 w = 0; w < Step::WARPS; ++w) {
    if (w >= count) break;
    typename Op::State total[N];
    read_states(totals + w * Step::COLUMNS, total);
#pragma unroll
    for (u32 i = 0; i < N; ++i) state[i] = Op::combine(state[i], total[i]);
  }
}

// The total of every step: states in order of outer, step, column.
template <class Op, u32 ACROSS, u32 ROWS, u32 N, u32 BLOCK, bool REVERSE>
__global__ void __launch_bounds__(BLOCK) scan_column_totals(const void* input, const void* beside, void* totals, ColumnsShape shape) {
  using T = typename Op::Input;
  using Step = ColumnStep<Op, ACROSS, ROWS, N, BLOCK, REVERSE>;
  __shared__ ColumnsShared<Step> shared;
  const Strip<ACROSS, N> strip(shape);
  Step step;
  typename Op::State total[N];
  const i64 origin = i64(strip.outer) * shape.outer_stride + i64(strip.column);
  step.load(static_cast<const T*>(input) + origin, static_cast<const T*>(beside) + origin, shape, strip.part, rows_are_aligned<Op, N>(input, beside, shape), strip.has_columns);
  step.scan(total);
  tell_totals(shared, 0, total);
  __syncthreads();
  if (threadIdx.x >= ACROSS || !strip.has_columns) return;
  typename Op::State* target = static_cast<typename Op::State*>(totals) + (strip.outer * shape.steps + strip.part) * shape.inner + strip.column;
  first_warps_of<Op>(shared, 0, Step::WARPS, total);
#pragma unroll
  for (u32 i = 0; i < N; ++i) target[i] = total[i];
}

// What stands in front of every step: a thread walks down a column of totals.
template <class Op, u32 BLOCK> UPSWEEP_KERNEL scan_column_spine(const void* totals, void* fronts, ColumnsShape shape) {
  using C = Carry<Op>;
  const u64 column = u64(blockIdx.x) * BLOCK + threadIdx.x;
  if (column >= shape.outer * shape.inner) return;
  const u64 first = column / shape.inner * shape.steps * shape.inner + column % shape.inner;
  const typename Op::State* from = static_cast<const typename Op::State*>(totals) + first;
  typename C::State* to = static_cast<typename C::State*>(fronts) + first;
  // Many loads at once: only the combinations wait for each other.
  constexpr u32 AT_ONCE = 32;
  typename C::State carry = C::empty();
  for (u64 first_step = 0; first_step < shape.steps; first_step += AT_ONCE) {
    typename Op::State total[AT_ONCE];
#pragma unroll
    for (u32 i = 0; i < AT_ONCE; ++i) total[i] = first_step + i < shape.steps ? from[(first_step + i) * shape.inner] : Op::identity();
#pragma unroll
    for (u32 i = 0; i < AT_ONCE; ++i) {
      if (first_step + i < shape.steps) to[(first_step + i) * shape.inner] = carry;
      carry = C::join(carry, C::raise(total[i]));
    }
  }
}

// Threads of a multiprocessor that the kernel is compiled to hold: coefficients, and elements of a byte, which are widened one
// by one, take more registers than 64.
template <class Op> constexpr u32 COLUMN_THREADS = BESIDE<Op> == Beside::NOTHING && sizeof(typename Op::Input) > 1 ? 1024 : 640;

// A block scans `steps_of_block` steps of a strip; all of them, or those whose fronts it is given.
template <class Op, u32 ACROSS, u32 ROWS, u32 N, u32 BLOCK, bool REVERSE>
__global__ void __launch_bounds__(BLOCK, COLUMN_THREADS<Op> / BLOCK) scan_columns(const void* input, const void* beside, void* output, const void* fronts, ColumnsShape shape) {
  using T = typename Op::Input;
  using State = typename Op::State;
  using Output = typename Op::Output;
  using C = Carry<Op>;
  using Step = ColumnStep<Op, ACROSS, ROWS, N, BLOCK, REVERSE>;
  __shared__ ColumnsShared<Step> shared;
  const Strip<ACROSS, N> strip(shape);
  const i64 origin = i64(strip.outer) * shape.outer_stride + i64(strip.column);
  const T *columns = static_cast<const T*>(input) + origin, *coefficients = static_cast<const T*>(beside) + origin;
  const Results<Op> result = {shape.initial, shape.exclusive != 0};
  Output* results = static_cast<Output*>(output) + strip.outer * shape.length * shape.inner + strip.column;
  const bool loads_packs = rows_are_aligned<Op, N>(input, beside, shape);
  const bool stores_packs = (reinterpret_cast<u64>(output) & (N * sizeof(Output) - 1)) == 0;
  const typename C::State initial = C::raise(result.start());
  const u32 mine = Step::across() * N;  // of the strip's columns
  if (threadIdx.x < ACROSS) {
    const typename C::State* given = static_cast<const typename C::State*>(fronts) + (strip.outer * shape.steps + strip.part * shape.steps_of_block) * shape.inner + strip.column;
#pragma unroll
    for (u32 i = 0; i < N; ++i) shared.carries[0].get()[mine + i] = fronts != nullptr && strip.has_columns ? given[i] : C::empty();
  }
  for (u32 turn = 0; turn < shape.steps_of_block; ++turn) {
    const u64 number = strip.part * shape.steps_of_block + turn, first = number * Step::LENGTH + Step::first_row();
    Step step;
    State above[N];
    step.load(columns, coefficients, shape, number, loads_packs, strip.has_columns);
    step.scan(above);
    tell_totals(shared, turn, above);
    __syncthreads();
    const typename C::State* carries = shared.carries[turn % 2].get() + mine;
    if (threadIdx.x < ACROSS && turn + 1 < shape.steps_of_block) {
      State total[N];
      first_warps_of<Op>(shared, turn, Step::WARPS, total);
#pragma unroll
      for (u32 i = 0; i < N; ++i) shared.carries[(turn + 1) % 2].get()[mine + i] = C::join(carries[i], C::raise(total[i]));
    }
    State warps[N];
    first_warps_of<Op>(shared, turn, threadIdx.x / WARP, warps);
#pragma unroll
    for (u32 i = 0; i < N; ++i) {
      step.front[i] = Op::combine(C::lower(C::join(initial, carries[i])), Op::combine(warps[i], step.front[i]));
      above[i] = step.front[i];
    }
#pragma unroll
    for (u32 r = 0; r < ROWS; ++r) {
      if (!strip.has_columns || first + r >= shape.length) break;
      Output row[N];
      step.results(r, above, result, row);
      Output* target = results + Step::place(first + r, shape.length) * shape.inner;
      if (stores_packs) {
        store_group<Output, N>(target, row);
      } else {
#pragma unroll
        for (u32 i = 0; i < N; ++i) target[i] = row[i];
      }
    }
  }
}

}  // namespace upsweep
