// Rung 10, column_ahead: steps of columns as tiles of rung 7: one block a multiprocessor, a ring of steps filled by asynchronous copies, totals published some steps before they are needed, and two warps that by turns add up, column by column, those in front.
// input: elements whose columns are neighbours, at the strides that ColumnsShape gives; output: contiguous; initial: the state of the initial value; control: the prepared plan's block (epoch, tickets, then tagged words: totals of each step, then what stands in front of each GROUP steps)
// launch: grid at most one block a multiprocessor, block (WARPS + 2 + LOOKERS) * 32; dynamic shared memory: STAGES times ColumnStage::BYTES
// cost: one read and one write of every element, whatever the number of columns; 1 atomic a step, 1 tagged write a column and step, GROUP / 2 tagged reads of it; the order of combinations is that of rung 9, to the bit
// source: D. Merrill and M. Garland, Single-pass Parallel Prefix Scan with Decoupled Look-back (2016), on tickets and tagged words; PTX ISA, cp.async and mbarrier

namespace upsweep {

// Warps that look ahead, by turns: one has columns enough to add up that it would hold the others up.
constexpr u32 LOOKERS = 2;

template <class Op, class Step> struct ColumnStage {
  using T = typename Op::Input;
  using State = typename Op::State;
  using Held = typename Carry<Op>::State;
  static constexpr u32 TILE_BYTES = Step::LENGTH * Step::COLUMNS * sizeof(T);

  u64 full;    // the step is there (or known to be none)
  u64 summed;  // every warp has left its totals
  u64 ready;   // what stands in front of every warp is known
  u64 empty;   // every warp has read the step for the last time
  u32 strip;   // over all matrices
  u32 part;    // the step's number in its strip, in the order of the scan
  SharedStates<Held, Step::COLUMNS> fronts;                // of the steps before it
  SharedStates<State, Step::WARPS * Step::COLUMNS> totals;  // of each warp, then what stands in front of the warp in its step

  static constexpr u32 BYTES = TILE_BYTES + (48 + Step::COLUMNS * (sizeof(Held) + Step::WARPS * sizeof(State)) + 15) / 16 * 16;
};

// The tagged words of COLUMNS neighbouring states, of which a lane has one column.
template <class State, u32 COLUMNS> struct ColumnWords {
  static constexpr u32 COUNT = Words<State>::COUNT;

  static UPSWEEP_DEVICE u64 place(u64 number, u32 k, u32 column) { return (number * COUNT + k) * COLUMNS + column; }
  static UPSWEEP_DEVICE void publish(u64* words, u64 number, u32 column, u32 tag, State state) {
    const Words<State> mine = to_words(state);
#pragma unroll
    for (u32 k = 0; k < COUNT; ++k) store_relaxed(words + place(number, k, column), (u64(tag) << 32) | mine.word[k]);
  }
};

template <class Op, u32 ACROSS, u32 ROWS, u32 N, u32 WARPS, u32 STAGES, u32 AHEAD, u32 GROUP, bool REVERSE>
__global__ void __launch_bounds__((WARPS + 2 + LOOKERS) * WARP, 1) scan_column_ahead(const void* input, void* output, ColumnsShape shape, Control* control) {
#if __CUDA_ARCH__ >= 900
  using T = typename Op::Input;
  using State = typename Op::State;
  using Output = typename Op::Output;
  using C = Carry<Op>;
  using Step = ColumnStep<Op, ACROSS, ROWS, N, WARPS * WARP, REVERSE>;
  using Stage = ColumnStage<Op, Step>;
  constexpr u32 COLUMNS = Step::COLUMNS;
  using TotalWords = ColumnWords<State, COLUMNS>;
  using FrontWords = ColumnWords<typename C::State, COLUMNS>;
  static_assert(GROUP * TotalWords::COUNT <= 32, "a bit a word");
  static_assert(AHEAD < STAGES && sizeof(Stage) <= Stage::BYTES - Stage::TILE_BYTES && Stage::TILE_BYTES % 128 == 0, "the plan's bytes of shared memory");
  extern __shared__ __align__(128) char shared[];
  __shared__ u32 call;  // the tag of this call's words
  auto staged = [&](u32 s) { return reinterpret_cast<T*>(shared + u64(s) * Stage::TILE_BYTES); };
  auto stage_of = [&](u32 s) -> Stage& { return *reinterpret_cast<Stage*>(shared + u64(STAGES) * Stage::TILE_BYTES + u64(s) * (Stage::BYTES - Stage::TILE_BYTES)); };
  const u32 strips_of_matrix = u32((shape.inner + COLUMNS - 1) / COLUMNS), strips = strips_of_matrix * u32(shape.outer), steps = u32(shape.steps);
  const u32 groups = (steps + GROUP - 1) / GROUP;
  u64* total_words = control_words(control);
  u64* front_words = total_words + u64(strips) * steps * TotalWords::COUNT * COLUMNS;
  const u32 warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
  auto wait = [&](u64& barrier, u32 turn) { return wait_for(barrier, turn, control); };
  auto matrix_of = [&](u32 strip) { return strip / strips_of_matrix; };
  auto column_of = [&](u32 strip) { return u64(strip % strips_of_matrix) * COLUMNS; };
  auto rows_of = [&](u32 part) { return u32(shape.length - u64(part) * Step::LENGTH < Step::LENGTH ? shape.length - u64(part) * Step::LENGTH : Step::LENGTH); };

  u32 ticket = 0, last_epoch = 0;
  if (threadIdx.x == WARPS * WARP) {
    ticket = atomicAdd(&control->counter, 1u);
    last_epoch = load_relaxed(&control->epoch);
    for (u32 s = 0; s < STAGES; ++s) {
      barrier_init(&stage_of(s).full, WARP + 1);
      barrier_init(&stage_of(s).summed, WARPS * ARRIVALS_OF_WARP);
      barrier_init(&stage_of(s).ready, 2 * ARRIVALS_OF_WARP);
      barrier_init(&stage_of(s).empty, WARPS * ARRIVALS_OF_WARP);
    }
    barrier_init_fence();
    call = tag_behind(last_epoch);
  }
  __syncthreads();
  const u32 tag = call;

  // The producer: steps are numbered in the order in which they are asked for, neighbouring strips first, so a step waits for
  // running blocks only.
  if (warp == WARPS) {
    constexpr u32 CHUNK = 16 / sizeof(T), CHUNKS = COLUMNS / CHUNK;
    const bool chunks = is_aligned16(input) && shape.row_stride % CHUNK == 0 && shape.outer_stride % CHUNK == 0 && shape.inner % CHUNK == 0;
    for (u32 k = 0;; ++k) {
      const u32 s = k % STAGES;
      Stage& stage = stage_of(s);
      ticket = shuffle_from(ticket, 0);
      if (k >= STAGES && !wait(stage.empty, k / STAGES - 1)) return;
      const u32 part = ticket / strips, strip = ticket - part * strips;
      if (part >= steps) {
        // Whoever takes every LOOKERS-th step finds the end, too.
        for (u32 end = k; end < k + LOOKERS; ++end) {
          Stage& last = stage_of(end % STAGES);
          if (end > k && end >= STAGES && !wait(last.empty, end / STAGES - 1)) return;
          if (lane == 0) {
            last.part = NONE;
            barrier_arrive(&last.full);
          }
          barrier_arrive(&last.full);
        }
        if (lane == 0) leave(control, tag);
        return;
      }
      if (lane == 0) {
        stage.strip = strip;
        stage.part = part;
        barrier_arrive(&stage.full);  // the copies' arrivals release nothing but what they copy
        ticket = atomicAdd(&control->counter, 1u);
      }
      const u64 column = column_of(strip), first = u64(part) * Step::LENGTH;
      const u32 rows = rows_of(part), columns = u32(shape.inner - column < COLUMNS ? shape.inner - column : COLUMNS);
      const T* elements = static_cast<const T*>(input) + i64(matrix_of(strip)) * shape.outer_stride + column;
      const i64 next_row = REVERSE ? -shape.row_stride : shape.row_stride;
      const T* first_row = elements + i64(Step::place(first, shape.length)) * shape.row_stride;
      if (chunks) {
        constexpr u32 AT_ONCE = WARP / CHUNKS;  // rows
        const u32 row = lane / CHUNKS, at = lane % CHUNKS * CHUNK;
        const T* from = first_row + i64(row) * next_row + at;
        T* to = staged(s) + row * COLUMNS + at;
        const u32 count = at < columns && row < rows ? (rows - row + AT_ONCE - 1) / AT_ONCE : 0;
#pragma unroll 8
        for (u32 i = 0; i < count; ++i, from += AT_ONCE * next_row) copy_async<16>(to + i * WARP * CHUNK, from);
      } else {
        constexpr u32 SIDE_BY_SIDE = COLUMNS < WARP ? COLUMNS : WARP, AT_ONCE = WARP / SIDE_BY_SIDE;
        const u32 row = lane / SIDE_BY_SIDE;
        for (u32 at = lane % SIDE_BY_SIDE; at < columns; at += SIDE_BY_SIDE) {
          const T* from = first_row + i64(row) * next_row + at;
          T* to = staged(s) + row * COLUMNS + at;
          const u32 count = row < rows ? (rows - row + AT_ONCE - 1) / AT_ONCE : 0;
#pragma unroll 8
          for (u32 i = 0; i < count; ++i, from += AT_ONCE * next_row) {
            if constexpr (sizeof(T) >= 4) {
              copy_async<sizeof(T)>(to + i * AT_ONCE * COLUMNS, from);
            } else {
              to[i * AT_ONCE * COLUMNS] = *from;
            }
          }
        }
      }
      if (sizeof(T) < 4 && !chunks) {
        barrier_arrive(&stage.full);
      } else {
        barrier_arrive_after_copies(&stage.full);
      }
    }
  }
  if (warp == WARPS + 1) {  // the publisher
    for (u32 k = 0;; ++k) {
      Stage& stage = stage_of(k % STAGES);
      if (!wait(stage.full, k / STAGES) || stage.part == NONE) return;
      if (!wait(stage.summed, k / STAGES)) return;
      for (u32 column = lane; column < COLUMNS; column += WARP) {
        State state = Op::identity();
#pragma unroll
        for (u32 w = 0; w < WARPS; ++w) {
          const State total = stage.totals.get()[w * COLUMNS + column];
          stage.totals.get()[w * COLUMNS + column] = state;
          state = Op::combine(state, total);
        }
        TotalWords::publish(total_words, u64(stage.strip) * steps + stage.part, column, tag, state);
      }
      warp_arrive(&stage.ready);
    }
  }
  if (warp >= WARPS + 2) {  // a look-ahead: from the front of the step's group on, one step after the other
    for (u32 k = warp - (WARPS + 2);; k += LOOKERS) {
      Stage& stage = stage_of(k % STAGES);
      if (!wait(stage.full, k / STAGES) || stage.part == NONE) return;
      // The others have come about as far: before, their totals would only be asked for in vain.
      if (!wait(stage.summed, k / STAGES)) return;
      const u32 group = stage.part / GROUP, count = stage.part % GROUP;
      // The last step of a group tells the front of the next one, for which it takes its own total, too.
      const bool tells = count == GROUP - 1 && stage.part + 1 < steps;
      const u64 first = u64(stage.strip) * steps + u64(group) * GROUP, its_group = u64(stage.strip) * groups + group;
      const u32 needed = (1u << count) - 1 | (tells ? 1u << (GROUP - 1) : 0);
#pragma unroll 1
      for (u32 column = lane; column < COLUMNS; column += WARP) {
        constexpr u32 COUNT = TotalWords::COUNT, FRONT_COUNT = FrontWords::COUNT, AT_ONCE = GROUP * COUNT < 16 ? GROUP * COUNT : 16;
        u32 total[GROUP * COUNT], known[FRONT_COUNT];
        u32 missing = 0, missing_front = group == 0 ? 0 : (1u << FRONT_COUNT) - 1;  // a bit a word
#pragma unroll
        for (u32 i = 0; i < GROUP; ++i) {
          if ((needed >> i & 1) != 0) missing |= ((1u << COUNT) - 1) << (i * COUNT);
        }
        for (u32 spins = 0; (missing | missing_front) != 0; ++spins) {
          if (spins == SPIN_LIMIT) {
            report_error(control, ERROR_SPIN_RAN_OUT);
            return;
          }
          // What is asked for does not depend on what has come: all loads are under way at once.
          u64 front_word[FRONT_COUNT];
#pragma unroll
          for (u32 i = 0; i < FRONT_COUNT; ++i) {
            if ((missing_front >> i & 1) != 0) front_word[i] = load_relaxed(front_words + FrontWords::place(its_group, i, column));
          }
          u32 found = 0;
#pragma unroll
          for (u32 low = 0; low < GROUP * COUNT; low += AT_ONCE) {
            u64 word[AT_ONCE];
#pragma unroll
            for (u32 i = 0; i < AT_ONCE; ++i) {
              const u32 j = low + i;
              if ((missing >> j & 1) != 0) word[i] = load_relaxed(total_words + TotalWords::place(first + j / COUNT, j % COUNT, column));
            }
#pragma unroll
            for (u32 i = 0; i < AT_ONCE; ++i) {
              const u32 j = low + i;
              if ((missing >> j & 1) == 0 || u32(word[i] >> 32) != tag) continue;
              total[j] = u32(word[i]);
              found |= 1u << j;
            }
          }
          missing &= ~found;
#pragma unroll
          for (u32 i = 0; i < FRONT_COUNT; ++i) {
            if ((missing_front >> i & 1) == 0 || u32(front_word[i] >> 32) != tag) continue;
            known[i] = u32(front_word[i]);
            missing_front &= ~(1u << i);
          }
        }
        auto total_of = [&](u32 i) {
          Words<State> words;
#pragma unroll
          for (u32 k = 0; k < COUNT; ++k) words.word[k] = total[i * COUNT + k];
          return C::raise(from_words<State>(words));
        };
        typename C::State front = C::empty();
        if (group > 0) {
          Words<typename C::State> words;
#pragma unroll
          for (u32 k = 0; k < FRONT_COUNT; ++k) words.word[k] = known[k];
          front = from_words<typename C::State>(words);
        }
#pragma unroll
        for (u32 i = 0; i < GROUP; ++i) {
          if (i < count) front = C::join(front, total_of(i));
        }
        stage.fronts.get()[column] = front;
        if (tells) FrontWords::publish(front_words, its_group + 1, column, tag, C::join(front, total_of(GROUP - 1)));
      }
      warp_arrive(&stage.ready);
    }
  }

  // The warps that scan: of step k + AHEAD the totals, then step k.
  const Results<Op> result = {shape.initial, shape.exclusive != 0};
  const typename C::State initial = C::raise(result.start());
  const u32 mine = Step::across() * N;
  const bool stores_packs = (reinterpret_cast<u64>(output) & (N * sizeof(Output) - 1)) == 0 && shape.inner % N == 0;
  // Else, between addresses of 16 bytes, neighbours put their results together.
  constexpr bool JOINS = N * sizeof(Output) == 16;
  auto columns_left = [&](u32 strip) {
    const u64 first = column_of(strip) + mine;
    return first >= shape.inner ? 0 : (shape.inner - first < N ? u32(shape.inner - first) : N);
  };
  u32 known = NONE - AHEAD;  // steps of this block, once the last one has been seen
  for (u32 k = 0; k < known + AHEAD; ++k) {
    if (k < known) {
      Stage& stage = stage_of(k % STAGES);
      if (!wait(stage.full, k / STAGES)) return;
      if (stage.part == NONE) {
        known = k;
      } else {
        Step step;
        State total[N];
        step.load_staged(staged(k % STAGES), rows_of(stage.part), columns_left(stage.strip));
        step.scan(total);
        if (lane >= WARP - ACROSS) write_states(stage.totals.get() + warp * COLUMNS + mine, total);
        warp_arrive(&stage.summed);
      }
    }
    if (k < AHEAD || k - AHEAD >= known) continue;
    const u32 turn = k - AHEAD;
    Stage& stage = stage_of(turn % STAGES);
    if (!wait(stage.ready, turn / STAGES)) return;
    const u32 rows = rows_of(stage.part), columns = columns_left(stage.strip);
    Step step;
    State above[N];
    step.load_staged(staged(turn % STAGES), rows, columns);
    const u64 first = u64(stage.part) * Step::LENGTH + Step::first_row();
    Output* results = static_cast<Output*>(output) + u64(matrix_of(stage.strip)) * shape.length * shape.inner + column_of(stage.strip) + mine;
    typename C::State front[N];
    State warps[N];
    read_states(stage.fronts.get() + mine, front);
    read_states(stage.totals.get() + warp * COLUMNS + mine, warps);
    warp_arrive(&stage.empty);
    step.scan(above);
#pragma unroll
    for (u32 i = 0; i < N; ++i) {
      step.front[i] = Op::combine(C::lower(C::join(initial, front[i])), Op::combine(warps[i], step.front[i]));
      above[i] = step.front[i];
    }
#pragma unroll
    for (u32 r = 0; r < ROWS; ++r) {
      Output row[N];
      step.results(r, above, result, row);
      const u32 stored = Step::first_row() + r < rows ? columns : 0;
      Output* target = results + Step::place(first + r, shape.length) * shape.inner;
      if (stores_packs) {
        if (stored == N) store_group<Output, N>(target, row);
        continue;
      }
      const u32 over = u32(reinterpret_cast<u64>(target) % (N * sizeof(Output)));
      bool is_joined = false, next_joins = false;
      const u32 left = over / sizeof(Output);
      if constexpr (JOINS) {
        const u32 next_columns = shuffle_down(stored, 1);
        const Bits128 bits = gather_bits<Output>(row);
        Bits128 before;
#pragma unroll
        for (u32 i = 0; i < 4; ++i) before.word[i] = shuffle_up(bits.word[i], 1);
        is_joined = over != 0 && stored == N && Step::across() > 0;
        next_joins = over != 0 && stored == N && Step::across() < ACROSS - 1 && next_columns == N;
        if (is_joined) store_bits(reinterpret_cast<char*>(target) - over, bits_behind<sizeof(Output)>(before, bits, 16 - over));
      }
#pragma unroll
      for (u32 i = 0; i < N; ++i) {
        if (i < stored && !(i >= N - left ? next_joins : is_joined)) target[i] = row[i];
      }
    }
  }
#endif
}

}  // namespace upsweep
