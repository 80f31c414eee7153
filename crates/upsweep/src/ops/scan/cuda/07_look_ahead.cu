// Rung 7, look_ahead: one block a multiprocessor; a ring of tiles is filled by the copy engine, a tile's total is published some tiles before the tile is scanned, and two warps add up the totals in front.
// input: rows of n elements, pitch elements apart; beside: what a scan of two arrays reads with them; output: rows of n results, one after the other; initial: the state of the initial value; control: the prepared plan's block (epoch, tickets, then tagged words for each tile)
// launch: grid at most one block a multiprocessor, block (WARPS + 4) * 32; dynamic shared memory: RingOfTiles, STAGES times STAGE_BYTES and a Stage
// cost: one read and one write of n items; 1 atomic and 1 tagged write a tile, each block reads every tile's word once; the order of combinations is fixed
// source: D. Merrill and M. Garland, Single-pass Parallel Prefix Scan with Decoupled Look-back (2016), on tickets and tagged words; PTX ISA, cp.async.bulk and mbarrier

namespace upsweep {

// What of a tile the copy engine fetches: it takes addresses and lengths of 16 bytes, and nothing outside the row is asked
// of it. Bytes count from the tile's lowest element.
struct Fetch {
  u32 behind;      // of the tile's lowest element, behind an address of 16 bytes; a stage keeps it as far behind
  i32 begin, end;  // multiples of 16 bytes apart; equal: nothing
};

// An array's part of a stage, of which lanes read N neighbours.
template <class T, u32 N, bool PLAIN> struct StagedArray {
  const T* stage;
  Fetch fetch;
  const T* lowest;  // where the tile's lowest element lies in memory

  // Whether the neighbours from `at` on were fetched.
  UPSWEEP_DEVICE bool has(u32 at) const { return i32(at * sizeof(T)) >= fetch.begin && i32((at + N) * sizeof(T)) <= fetch.end; }
  UPSWEEP_DEVICE void read(u32 at, T (&items)[N]) const {
    Bits128 bits;
    if (PLAIN || fetch.behind == 0) {
      bits = read_group<T, N>(stage + at);
    } else if constexpr (N * sizeof(T) == 16) {
      bits = bits_behind<sizeof(T)>(read_group<T, N>(stage + at), read_group<T, N>(stage + at + N), fetch.behind);
    } else {
#pragma unroll
      for (u32 k = 0; k < N; ++k) items[k] = stage[fetch.behind / sizeof(T) + at + k];
      return;
    }
#pragma unroll
    for (u32 k = 0; k < N; ++k) items[k] = element_of<T>(bits, k);
  }
};

// A stage's tile: as `ScanTile` it has ROWS rows a warp and N neighbours a lane and row, but it lies in shared memory.
// Tiles are cut by index, whatever the addresses, so that these do not enter the order of combinations.
// PLAIN: it lies there as a whole, and input and output begin at addresses of 16 bytes. Most tiles do, and without the
// questions their scan is faster.
template <class Op, u32 WARPS, u32 ROWS, bool REVERSE, bool PLAIN> struct StagedTile {
  using T = typename Op::Input;
  using State = typename Op::State;
  using Output = typename Op::Output;
  static constexpr u32 N = pack_size<Output>();
  static constexpr u32 ELEMENTS = WARPS * ROWS * WARP * N;

  static constexpr bool HAS_COEFFICIENTS = BESIDE<Op> == Beside::COEFFICIENTS, HAS_HEADS = BESIDE<Op> == Beside::HEADS;
  static_assert(ELEMENTS % 128 == 0, "a tile's heads are a multiple of 16 bytes");

  StagedArray<T, N, PLAIN> input, coefficients;
  const u32* heads;  // a bit an element, from the tile's lowest on
  Output* target;    // where the result of the tile's lowest element goes
  u32 count;         // elements of the tile, from the lowest on

  // Where the lane's first element in memory lies, from the tile's lowest; `warp` is one of the WARPS.
  static UPSWEEP_DEVICE u32 offset(u32 warp, u32 row) {
    const u32 position = ((warp * ROWS + row) * WARP + threadIdx.x % WARP) * N;
    return REVERSE ? ELEMENTS - N - position : position;
  }
  // Which of the lane's elements of a row are heads, a bit each, in memory order.
  UPSWEEP_DEVICE u32 heads_of(u32 warp, u32 row) const {
    const u32 at = offset(warp, row);
    return HAS_HEADS ? heads[at / 32] >> (at % 32) : 0;
  }
  // A sign is tested: where bits are, ptxas 13.0 moves them into all predicates at once, and for 16 elements of 8 bits then finds
  // none left (C7600).
  static UPSWEEP_DEVICE bool is_head(u32 heads_of_lane, u32 k) { return i32(heads_of_lane << (REVERSE ? 32 - N + k : 31 - k)) < 0; }
  // The lane's states of a row, in the order of the scan.
  UPSWEEP_DEVICE void read(u32 warp, u32 row, State (&items)[N]) const {
    const u32 at = offset(warp, row), heads_of_lane = heads_of(warp, row);
    auto lift = [&](T x, T coefficient, u32 k) {
      if constexpr (HAS_HEADS) return Op::lift(x, is_head(heads_of_lane, k));
      else return lift_with<Op>(x, coefficient);
    };
    if (!PLAIN && (!input.has(at) || (HAS_COEFFICIENTS && !coefficients.has(at)))) {
      // Not all of it was fetched: it is read where it lies.
#pragma unroll
      for (u32 k = 0; k < N; ++k) {
        const u32 place = at + (REVERSE ? N - 1 - k : k);
        items[k] = Op::identity();
        if (place < count) items[k] = lift(input.lowest[place], HAS_COEFFICIENTS ? coefficients.lowest[place] : T(), k);
      }
      return;
    }
    T x[N], coefficient[N];
    input.read(at, x);
    if constexpr (HAS_COEFFICIENTS) coefficients.read(at, coefficient);
#pragma unroll
    for (u32 k = 0; k < N; ++k) {
      const u32 i = REVERSE ? N - 1 - k : k;
      items[k] = lift(x[i], HAS_COEFFICIENTS ? coefficient[i] : x[i], k);
    }
  }
  // Stores the lane's results of a row; rows are stored in turn, and `earlier` keeps the bits of the row before. Between
  // addresses of 16 bytes a lane joins its results with those of the lane before it in the scan, whose last row the first
  // lane takes: only a warp's ends are stored one by one.
  UPSWEEP_DEVICE void store(u32 warp, u32 row, const Output (&results)[N], Bits128& earlier) const {
    const u32 at = offset(warp, row);
    Output* output = target + at;
    const Bits128 bits = gather_bits<Output>(results);
    if (PLAIN) {
      store_bits(output, bits);
      return;
    }
    const u32 over = u32(reinterpret_cast<u64>(target) % 16);
    const bool is_whole = at + N <= count;
    if (over == 0) {
      if (is_whole) {
        store_bits(output, bits);
        return;
      }
#pragma unroll
      for (u32 k = 0; k < N; ++k) {
        if (at + k < count) output[k] = results[k];
      }
      return;
    }
    const u32 lane = threadIdx.x % WARP;
    Bits128 before;
#pragma unroll
    for (u32 i = 0; i < 4; ++i) before.word[i] = shuffle_from(lane == WARP - 1 ? earlier.word[i] : bits.word[i], (lane + WARP - 1) % WARP);
    earlier = bits;
    const u32 left = over / sizeof(Output);  // the last results in memory, which share 16 bytes with what lies behind them
    const bool is_joined = is_whole && (row > 0 || lane > 0) && (!REVERSE || at + 2 * N <= count);
    if (is_joined) {
      char* begin = reinterpret_cast<char*>(output) - over;
      store_bits(REVERSE ? begin + 16 : begin, REVERSE ? bits_behind<sizeof(Output)>(bits, before, 16 - over) : bits_behind<sizeof(Output)>(before, bits, 16 - over));
    }
    const bool next_joins = is_whole && (row < ROWS - 1 || lane < WARP - 1) && (REVERSE || at + 2 * N <= count);
    if (is_joined && next_joins) return;
#pragma unroll
    for (u32 k = 0; k < N; ++k) {
      const bool goes_ahead = REVERSE ? k < N - left : k >= N - left;
      if (at + k < count && !(goes_ahead ? next_joins : is_joined)) output[k] = results[k];
    }
  }
};

// The shared memory: a ring of STAGES tiles, and what its stages tell each other.
template <class Op, u32 WARPS, u32 ROWS, u32 STAGES> struct RingOfTiles {
  using T = typename Op::Input;
  using State = typename Op::State;
  using Held = typename Carry<Op>::State;
  static constexpr Beside BESIDES = BESIDE<Op>;
  static constexpr u32 ELEMENTS = StagedTile<Op, WARPS, ROWS, false, true>::ELEMENTS, TILE_BYTES = ELEMENTS * sizeof(T);
  // With 16 bytes more of an array that begins between such addresses, and up to where the copy engine writes best.
  static constexpr u32 ARRAY_BYTES = TILE_BYTES + 128;
  static constexpr u32 BESIDE_BYTES = BESIDES == Beside::COEFFICIENTS ? ARRAY_BYTES : BESIDES == Beside::HEADS ? ELEMENTS / 8 : 0;
  static constexpr u32 STAGE_BYTES = ARRAY_BYTES + BESIDE_BYTES;
  static_assert(TILE_BYTES % 16 == 0, "the copy engine moves 16 bytes at a time");

  struct Stage {
    u64 full;    // the tile is there (or known to be none)
    u64 summed;  // every warp has left its total
    u64 ready;   // what stands in front of every warp is known
    u64 empty;   // every warp has read the tile for the last time
    i64 lowest;  // of the tile's lowest element, from the input on; as far from the coefficients on
    u64 target;  // of its result, from the output on
    Fetch fetch, fetch_beside;
    u32 count;     // elements of the tile
    u32 is_plain;  // as `StagedTile` means it
    u32 row;
    u32 place;  // the tile's number in its row, in the order of the scan
    Held groups;  // of the groups of tiles before its own in its row
    State part;   // of the tiles before it in its group
    State totals[WARPS];  // each warp's total, then what stands in front of the warp in its tile
  };
  static_assert(sizeof(Stage) <= (112 + sizeof(Held) + (1 + WARPS) * sizeof(State) + 15) / 16 * 16, "the plan's bytes of shared memory are too few");

  char* memory;
  UPSWEEP_DEVICE char* staged(u32 stage) const { return memory + u64(stage) * STAGE_BYTES; }
  UPSWEEP_DEVICE char* staged_beside(u32 stage) const { return staged(stage) + ARRAY_BYTES; }
  UPSWEEP_DEVICE Stage& operator[](u32 stage) const { return reinterpret_cast<Stage*>(memory + u64(STAGES) * STAGE_BYTES)[stage]; }
};

// The tagged words of GROUP neighbouring tiles, of which every lane holds GROUP / 32 neighbours; a word is read until it
// carries the call's tag, and not again.
template <class Op, u32 GROUP> struct GroupOfTotals {
  using State = typename Op::State;
  using C = Carry<Op>;
  static constexpr u32 COUNT = Words<State>::COUNT, TILES = GROUP / WARP, WORDS = TILES * COUNT;
  static_assert(GROUP % WARP == 0 && WORDS % 2 == 0, "a whole number of 16-byte loads a lane");

  u64 word[WORDS];

  UPSWEEP_DEVICE void clear() {
#pragma unroll
    for (u32 i = 0; i < WORDS; ++i) word[i] = 0;
  }
  static UPSWEEP_DEVICE bool is_needed(u32 i, u32 count) { return threadIdx.x % WARP * TILES + i / COUNT < count; }
  // Reads what is still missing of the group's first `count` tiles; whether nothing was.
  UPSWEEP_DEVICE bool read(const u64* words, u64 group, u32 count, u32 tag) {
    const u64* mine = words + (group * GROUP + threadIdx.x % WARP * TILES) * COUNT;
    bool whole = true;
#pragma unroll
    for (u32 i = 0; i < WORDS; i += 2) {
      const bool missing = (is_needed(i, count) && u32(word[i] >> 32) != tag) || (is_needed(i + 1, count) && u32(word[i + 1] >> 32) != tag);
      if (missing) {
        load_relaxed(mine + i, word[i], word[i + 1]);
        whole = false;
      }
    }
    return whole;
  }
  UPSWEEP_DEVICE void wait(const u64* words, u64 group, u32 count, u32 tag, Control* control) {
    for (u32 spins = 0; !__all_sync(FULL_WARP, read(words, group, count, tag)); ++spins) {
      if (spins == SPIN_LIMIT) {
        report_error(control, ERROR_SPIN_RAN_OUT);
        return;
      }
    }
  }
  // Of the first `count` tiles, in lane 0: a lane's in turn, the lanes' by a tree, which needs no wider type.
  UPSWEEP_DEVICE State total(u32 count) const {
    State sum = Op::identity();
#pragma unroll
    for (u32 i = 0; i < TILES; ++i) {
      Words<State> words;
#pragma unroll
      for (u32 k = 0; k < COUNT; ++k) words.word[k] = u32(word[i * COUNT + k]);
      if (is_needed(i * COUNT, count)) sum = Op::combine(sum, from_words<State>(words));
    }
    return warp_total<Op>(sum);
  }
};

// The total of a warp's part of a tile, in lane 0; `read` gives the lane's states of a row. The order of combinations is that
// of `RowsOfTile`: neighbours of a lane, lanes by a tree, rows in turn.
template <class Op, u32 ROWS, u32 N, class Read> UPSWEEP_DEVICE typename Op::State total_of_rows(Read read) {
  using State = typename Op::State;
  State sum = Op::identity();
#pragma unroll
  for (u32 row = 0; row < ROWS; ++row) {
    State items[N];
    read(row, items);
#pragma unroll
    for (u32 i = 1; i < N; ++i) items[0] = Op::combine(items[0], items[i]);
    sum = Op::combine(sum, warp_total<Op>(items[0]));
  }
  return sum;
}

// Some rows of a warp's part of a tile.
template <class Op, u32 COUNT, u32 N, bool REVERSE> struct RowsOfTile {
  using State = typename Op::State;
  State items[COUNT][N];  // after `scan`: with the lane's own before them
  State total[COUNT];     // after `scan`: of the lane with all lanes below
  u32 heads[COUNT];       // the lane's, as its tile gives them

  template <class Tile> UPSWEEP_DEVICE void read(const Tile& tile, u32 warp, u32 top) {
#pragma unroll
    for (u32 row = 0; row < COUNT; ++row) {
      tile.read(warp, top + row, items[row]);
      heads[row] = tile.heads_of(warp, top + row);
    }
  }
  UPSWEEP_DEVICE void scan() {
#pragma unroll
    for (u32 row = 0; row < COUNT; ++row) {
#pragma unroll
      for (u32 i = 1; i < N; ++i) items[row][i] = Op::combine(items[row][i - 1], items[row][i]);
      total[row] = warp_scan<Op>(items[row][N - 1]);
    }
  }
  // Stores the results as rows `top` and on; `base` is what stands in front of the warp, `sum` is moved on.
  template <class Tile> UPSWEEP_DEVICE void store(const Tile& tile, u32 warp, u32 top, State base, const Results<Op>& result, State& sum, Bits128& stored) const {
#pragma unroll
    for (u32 row = 0; row < COUNT; ++row) {
      const State lanes = shuffle_up(total[row], 1);
      const State before = threadIdx.x % WARP == 0 ? sum : Op::combine(sum, lanes);
      const State front = Op::combine(base, before);
      State earlier = front;
      typename Op::Output results[N];
#pragma unroll
      for (u32 i = 0; i < N; ++i) {
        // Pairs are costly to combine: one combination an element does.
        const State inclusive = BESIDE<Op> == Beside::NOTHING ? Op::combine(base, Op::combine(before, items[row][i])) : Op::combine(front, items[row][i]);
        results[REVERSE ? N - 1 - i : i] = result.of(earlier, inclusive, tile.is_head(heads[row], i));
        earlier = inclusive;
      }
      sum = Op::combine(sum, shuffle_from(total[row], WARP - 1));
      tile.store(warp, top + row, results, stored);
    }
  }
};

// What stands in front of a warp in its tile, by the totals of the warps, in turn; with `count` all of them, the tile's total.
template <class Op, u32 WARPS> UPSWEEP_DEVICE typename Op::State front_of_warp(const typename Op::State* totals, u32 count) {
  typename Op::State state = Op::identity();
#pragma unroll
  for (u32 w = 0; w < WARPS; ++w) {
    const typename Op::State total = totals[w];
    if (w < count) state = Op::combine(state, total);
  }
  return state;
}

template <class Op, u32 WARPS, u32 ROWS, u32 STAGES, u32 AHEAD, u32 DELAY, u32 GROUP, bool REVERSE>
__global__ void __launch_bounds__((WARPS + 4) * WARP, 1)
    scan_look_ahead(const void* input, const void* beside, u64 rows, u64 n, i64 pitch, void* output, u64 initial, u64 exclusive, Control* control) {
#if __CUDA_ARCH__ >= 900
  using T = typename Op::Input;
  using State = typename Op::State;
  using Output = typename Op::Output;
  using C = Carry<Op>;
  using Plain = StagedTile<Op, WARPS, ROWS, REVERSE, true>;
  using Tile = StagedTile<Op, WARPS, ROWS, REVERSE, false>;
  using Ring = RingOfTiles<Op, WARPS, ROWS, STAGES>;
  static_assert(WARPS < WARP && AHEAD < STAGES && DELAY <= AHEAD, "the publisher has a lane for each warp, and one more");
  constexpr u32 N = Tile::N;
  extern __shared__ __align__(128) char shared[];
  __shared__ u32 call;  // the tag of this call's words; the first arrival at a barrier publishes it
  const Ring ring = {shared};
  const u32 tiles_of_row = u32((n + Tile::ELEMENTS - 1) / Tile::ELEMENTS), tiles = tiles_of_row * u32(rows);
  const u32 warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
  // A row's words begin where two of them can be read at once.
  auto words_of = [&](u32 row) { return control_words(control) + u64(row) * ((tiles_of_row + 1) / 2 * 2 * Words<State>::COUNT); };

  // The producer asks for the first ticket and the epoch at once: nothing is loaded before the ticket has come.
  u32 ticket = 0, last_epoch = 0;
  if (threadIdx.x == WARPS * WARP) {
    ticket = atomicAdd(&control->counter, 1u);
    last_epoch = load_relaxed(&control->epoch);
    for (u32 s = 0; s < STAGES; ++s) {
      barrier_init(&ring[s].full, 1);
      barrier_init(&ring[s].summed, WARPS * ARRIVALS_OF_WARP);
      barrier_init(&ring[s].ready, 3 * ARRIVALS_OF_WARP);
      barrier_init(&ring[s].empty, WARPS * ARRIVALS_OF_WARP);
    }
    barrier_init_fence();
  }
  __syncthreads();

  auto wait = [&](u64& barrier, u32 turn) { return wait_for(barrier, turn, control); };
  auto fetch_of = [&](const T* lowest, u64 first, u64 left_elements) {
    const u32 behind = u32(reinterpret_cast<u64>(lowest) % 16);
    const u64 left = left_elements * sizeof(T);
    const i32 bytes = i32(left < Ring::TILE_BYTES ? left : Ring::TILE_BYTES), beyond = i32((behind + bytes) % 16);
    Fetch fetch = {behind, 0, bytes};
    if (behind != 0) fetch.begin = first * sizeof(T) >= behind ? -i32(behind) : 16 - i32(behind);
    if (beyond != 0) fetch.end += left - bytes >= 16 - beyond ? 16 - beyond : -beyond;
    if (fetch.end < fetch.begin) fetch.end = fetch.begin;
    return fetch;
  };

  if (warp == WARPS) {  // the producer: tiles are numbered in the order in which they are asked for, so a tile waits for running blocks only
    if (lane != 0) return;
    const u32 tag = tag_behind(last_epoch);
    call = tag;
    for (u32 k = 0;; ++k) {
      const u32 s = k % STAGES;
      typename Ring::Stage& stage = ring[s];
      // All that can be known is worked out before there is room.
      const u32 row = ticket / tiles_of_row, place = ticket - row * tiles_of_row;
      const u64 first = u64(REVERSE ? tiles_of_row - 1 - place : place) * Tile::ELEMENTS;
      const T* lowest = static_cast<const T*>(input) + (i64(row) * pitch + i64(first));
      const u64 target = row * n + first;
      const u64 left = n - first;
      const Fetch fetch = fetch_of(lowest, first, left);
      const T* lowest_beside = static_cast<const T*>(beside) + (lowest - static_cast<const T*>(input));
      Fetch fetch_beside = {};
      if constexpr (Ring::BESIDES == Beside::COEFFICIENTS) fetch_beside = fetch_of(lowest_beside, first, left);
      if constexpr (Ring::BESIDES == Beside::HEADS) fetch_beside.end = Ring::BESIDE_BYTES;
      const u32 bytes = fetch.end - fetch.begin, bytes_beside = fetch_beside.end - fetch_beside.begin;
      const bool is_aligned = (fetch.behind | fetch_beside.behind) == 0 && is_aligned16(static_cast<Output*>(output) + target);
      const bool is_plain = is_aligned && left >= Tile::ELEMENTS;
      if (k >= STAGES && !wait(stage.empty, k / STAGES - 1)) return;
      if (ticket >= tiles) {
        // Whoever looks at a later tile finds the end, too.
        for (u32 end = k; end <= k + DELAY; ++end) {
          if (end > k && end >= STAGES && !wait(ring[end % STAGES].empty, end / STAGES - 1)) return;
          ring[end % STAGES].place = NONE;
          barrier_arrive(&ring[end % STAGES].full);
        }
        leave(control, tag);
        return;
      }
      if (bytes > 0) {
        bulk_load_evict_last(ring.staged(s) + i32(fetch.behind) + fetch.begin, reinterpret_cast<const char*>(lowest) + fetch.begin, bytes, &stage.full);
      }
      if constexpr (Ring::BESIDES == Beside::COEFFICIENTS) {
        if (bytes_beside > 0) {
          bulk_load_evict_last(ring.staged_beside(s) + i32(fetch_beside.behind) + fetch_beside.begin, reinterpret_cast<const char*>(lowest_beside) + fetch_beside.begin, bytes_beside,
                               &stage.full);
        }
      }
      // Heads are of whole tiles, and of one row.
      if constexpr (Ring::BESIDES == Beside::HEADS) bulk_load(ring.staged_beside(s), static_cast<const char*>(beside) + first / 8, bytes_beside, &stage.full);
      // Asked for before there is room: the answer takes as long as a load.
      ticket = atomicAdd(&control->counter, 1u);
      stage.row = row;
      stage.place = place;
      stage.lowest = lowest - static_cast<const T*>(input);
      stage.target = target;
      stage.fetch = fetch;
      stage.fetch_beside = fetch_beside;
      stage.count = left < Tile::ELEMENTS ? u32(left) : Tile::ELEMENTS;
      stage.is_plain = is_plain;
      // The barrier waits for this arrival, whether or not the bytes have come before it.
      barrier_arrive_expect(&stage.full, bytes + bytes_beside);
    }
  }
  if (warp == WARPS + 1) {  // the publisher
    if (!wait(ring[0].full, 0)) return;
    const u32 tag = call;
    for (u32 k = 0;; ++k) {
      const u32 s = k % STAGES;
      typename Ring::Stage& stage = ring[s];
      if (!wait(stage.full, k / STAGES) || stage.place == NONE) return;
      if (!wait(stage.summed, k / STAGES)) return;
      const State before = front_of_warp<Op, WARPS>(stage.totals, lane);
      if (lane == WARPS) {
        const Words<State> total = to_words(before);
#pragma unroll
        for (u32 i = 0; i < Words<State>::COUNT; ++i) {
          store_relaxed(words_of(stage.row) + u64(stage.place) * Words<State>::COUNT + i, (u64(tag) << 32) | total.word[i]);
        }
      }
      __syncwarp();
      if (lane < WARPS) stage.totals[lane] = before;
      warp_arrive(&stage.ready);
    }
  }
  // The look-ahead, by two warps, because a tile's turn is too short for one: one adds up whole groups from left to right,
  // the other what lies in front of the tile in its own group.
  if (warp >= WARPS + 2) {
    const bool takes_groups = warp == WARPS + 2;
    typename C::State whole = C::empty();  // of the groups before `group`
    u32 row = 0, group = 0;
    GroupOfTotals<Op, GROUP> kept;  // of `group`, as far as it was asked for
    kept.clear();
    if (!wait(ring[0].full, 0)) return;
    const u32 tag = call;
    for (u32 k = 0;; ++k) {
      typename Ring::Stage& stage = ring[k % STAGES];
      if (!wait(stage.full, k / STAGES) || stage.place == NONE) return;
      // The others have come about as far by then: before, their totals would mostly be asked for in vain.
      const typename Ring::Stage& later = ring[(k + DELAY) % STAGES];
      if (!wait(ring[(k + DELAY) % STAGES].full, (k + DELAY) / STAGES)) return;
      if (later.place != NONE && !wait(ring[(k + DELAY) % STAGES].summed, (k + DELAY) / STAGES)) return;
      if (stage.row != row) {
        row = stage.row;
        whole = C::empty();
        group = 0;
        kept.clear();
      }
      const u64* words = words_of(row);
      const u32 its_group = stage.place / GROUP, count = stage.place % GROUP;
      if (takes_groups) {
        for (; group < its_group; ++group) {
          kept.wait(words, group, GROUP, tag, control);
          whole = C::join(whole, C::raise(kept.total(GROUP)));
          kept.clear();
        }
        if (lane == 0) stage.groups = whole;
      } else {
        if (its_group != group) {
          group = its_group;
          kept.clear();
        }
        kept.wait(words, group, count, tag, control);
        const State part = kept.total(count);
        if (lane == 0) stage.part = part;
      }
      warp_arrive(&stage.ready);
      // What the next tile will need is under way by then: most tiles are followed by one of a later group.
      if (DELAY > 0 && later.place != NONE && ring[(k + 1) % STAGES].row == row) {
        const u32 place = ring[(k + 1) % STAGES].place, next_group = place / GROUP;
        if (takes_groups) {
          if (next_group > group) kept.read(words, group, GROUP, tag);
        } else {
          if (next_group != group) {
            group = next_group;
            kept.clear();
          }
          kept.read(words, group, place % GROUP, tag);
        }
      }
    }
  }

  auto with_tile = [&](u32 s, auto work) {
    const typename Ring::Stage& stage = ring[s];
    const T *staged = reinterpret_cast<const T*>(ring.staged(s)), *staged_beside = reinterpret_cast<const T*>(ring.staged_beside(s));
    const u32* heads = reinterpret_cast<const u32*>(ring.staged_beside(s));
    Output* target = static_cast<Output*>(output) + stage.target;
    if (stage.is_plain) {
      work(Plain{{staged, {}, nullptr}, {staged_beside, {}, nullptr}, heads, target, Plain::ELEMENTS});
    } else {
      const StagedArray<T, N, false> of_input = {staged, stage.fetch, static_cast<const T*>(input) + stage.lowest};
      const StagedArray<T, N, false> of_beside = {staged_beside, stage.fetch_beside, static_cast<const T*>(beside) + stage.lowest};
      work(Tile{of_input, of_beside, heads, target, stage.count});
    }
  };

  // The warps that scan: of tile k + AHEAD the total, then tile k.
  const Results<Op> result = {initial, exclusive != 0};
  const typename C::State start = C::raise(result.start());
  u32 known = NONE - AHEAD;  // tiles of this block, once the last one has been seen
  for (u32 k = 0; k < known + AHEAD; ++k) {
    if (k < known) {
      const u32 s = k % STAGES;
      typename Ring::Stage& stage = ring[s];
      if (!wait(stage.full, k / STAGES)) return;
      if (stage.place == NONE) {
        known = k;
      } else {
        State total;
        with_tile(s, [&](const auto& tile) {
          total = total_of_rows<Op, ROWS, N>([&](u32 row, State(&items)[N]) { tile.read(warp, row, items); });
        });
        if (lane == 0) stage.totals[warp] = total;
        warp_arrive(&stage.summed);
      }
    }
    if (k < AHEAD || k - AHEAD >= known) continue;
    const u32 turn = k - AHEAD, s = turn % STAGES;
    typename Ring::Stage& stage = ring[s];
    if (!wait(stage.ready, turn / STAGES)) return;
    const State base = C::lower(C::join(C::join(start, C::join(stage.groups, C::raise(stage.part))), C::raise(stage.totals[warp])));
    with_tile(s, [&](const auto& tile) {
      // As many rows at once as make sixteen words.
      constexpr u32 FITTING = 16 / (N * Words<State>::COUNT), AT_ONCE = FITTING == 0 ? 1 : (FITTING < ROWS ? FITTING : ROWS);
      static_assert(ROWS % AT_ONCE == 0, "whole turns");
      State sum = Op::identity();
      Bits128 stored = {};
#pragma unroll
      for (u32 top = 0; top < ROWS; top += AT_ONCE) {
        RowsOfTile<Op, AT_ONCE, N, REVERSE> rows;
        rows.read(tile, warp, top);
        if (top + AT_ONCE == ROWS) warp_arrive(&stage.empty);
        rows.scan();
        rows.store(tile, warp, top, base, result, sum, stored);
      }
    });
  }
#endif
}

}  // namespace upsweep
