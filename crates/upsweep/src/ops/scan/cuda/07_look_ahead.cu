// Rung 7, look_ahead: one block a multiprocessor; a ring of tiles is filled by the copy engine, a tile's total is published some tiles before the tile is scanned, and one warp adds up the totals in front.
// input: n elements; output: n results; initial: the state of the initial value; control: the prepared plan's block (epoch, tickets, then tagged words for each tile)
// launch: grid at most one block a multiprocessor, block (WARPS + 3) * 32; dynamic shared memory: RingOfTiles::BYTES
// cost: one read and one write of n items; 1 atomic and 1 tagged write a tile, each block reads every tile's word once; the order of combinations is fixed
// source: D. Merrill and M. Garland, Single-pass Parallel Prefix Scan with Decoupled Look-back (2016), on tickets and tagged words; PTX ISA, cp.async.bulk and mbarrier

namespace upsweep {

// A stage's tile: as `ScanTile` it has ROWS rows a warp and N neighbours a lane and row, but it lies in shared memory.
// Tiles are cut by index, whatever the addresses, so that these do not enter the order of combinations.
// PLAIN: it does lie there, and input and output begin at addresses of 16 bytes. Most tiles do, and without the questions
// their scan is faster.
template <class Op, u32 WARPS, u32 ROWS, bool REVERSE, bool PLAIN> struct StagedTile {
  using T = typename Op::Input;
  using State = typename Op::State;
  static constexpr u32 N = pack_size<typename Op::Output>();
  static constexpr u32 ELEMENTS = WARPS * ROWS * WARP * N;

  const T* staged;    // shared memory with the elements; null: they are read where they lie
  u32 behind;         // bytes from there to the tile's lowest element: the copy engine takes addresses of 16 bytes
  const T* elements;  // the whole input
  u64 n, first;       // its length; memory index of the tile's lowest element

  // Where the lane's first element in memory lies, from the tile's lowest; `warp` is one of the WARPS.
  static UPSWEEP_DEVICE u32 offset(u32 warp, u32 row) {
    const u32 position = ((warp * ROWS + row) * WARP + threadIdx.x % WARP) * N;
    return REVERSE ? ELEMENTS - N - position : position;
  }
  // The lane's states of a row, in the order of the scan.
  UPSWEEP_DEVICE void read(u32 warp, u32 row, State (&items)[N]) const {
    const u32 at = offset(warp, row);
    if (!PLAIN && staged == nullptr) {
#pragma unroll
      for (u32 k = 0; k < N; ++k) {
        const u64 index = first + at + (REVERSE ? N - 1 - k : k);
        items[k] = index < n ? Op::lift(elements[index], 0) : Op::identity();
      }
      return;
    }
    Bits128 bits;
    if (PLAIN || behind == 0) {
      bits = read_group<T, N>(staged + at);
    } else if constexpr (N * sizeof(T) == 16) {
      bits = bits_behind(read_group<T, N>(staged + at), read_group<T, N>(staged + at + N), behind);
    } else {
#pragma unroll
      for (u32 k = 0; k < N; ++k) items[k] = Op::lift(staged[behind / sizeof(T) + at + (REVERSE ? N - 1 - k : k)], 0);
      return;
    }
#pragma unroll
    for (u32 k = 0; k < N; ++k) items[k] = Op::lift(element_of<T>(bits, REVERSE ? N - 1 - k : k), 0);
  }
  // Stores the lane's results of a row. Between addresses of 16 bytes a lane stores what its neighbour in memory leaves
  // over, then its own; what is left at the row's ends is stored apart.
  template <class Output> UPSWEEP_DEVICE void store(Output* outputs, u32 warp, u32 row, const Output (&results)[N]) const {
    const u64 index = first + offset(warp, row);
    if (!PLAIN && n - first < ELEMENTS) {
#pragma unroll
      for (u32 k = 0; k < N; ++k) {
        if (index + k < n) outputs[index + k] = results[k];
      }
      return;
    }
    Output* output = outputs + index;
    const Bits128 bits = gather_bits<Output>(results);
    const u32 over = PLAIN ? 0 : u32(reinterpret_cast<u64>(output) % 16);
    if (over == 0) {
      store_bits(output, bits);
      return;
    }
    const u32 lane = threadIdx.x % WARP, from = REVERSE ? WARP - 1 - lane : lane;  // its place in memory
    Bits128 lower;
#pragma unroll
    for (u32 i = 0; i < 4; ++i) lower.word[i] = REVERSE ? shuffle_down(bits.word[i], 1) : shuffle_up(bits.word[i], 1);
    if (from > 0) store_bits(reinterpret_cast<char*>(output) - over, bits_behind(lower, bits, 16 - over));
    const u32 left = over / sizeof(Output);
#pragma unroll
    for (u32 k = 0; k < N; ++k) {
      if ((from == 0 && k < N - left) || (from == WARP - 1 && k >= N - left)) output[k] = results[k];
    }
  }
};

// The shared memory: a ring of STAGES tiles, and what its stages tell each other.
template <class Op, u32 WARPS, u32 ROWS, u32 STAGES> struct RingOfTiles {
  using T = typename Op::Input;
  using State = typename Op::State;
  using Held = typename Carry<Op>::State;
  static constexpr u32 TILE_BYTES = StagedTile<Op, WARPS, ROWS, false, true>::ELEMENTS * sizeof(T);
  static constexpr u32 COPY_BYTES = TILE_BYTES + 16;    // of an input that begins between addresses of 16 bytes
  static constexpr u32 STAGE_BYTES = TILE_BYTES + 128;  // so that each stage begins where the copy engine writes best
  static_assert(TILE_BYTES % 16 == 0, "the copy engine moves 16 bytes at a time");

  struct Stage {
    u64 full;    // the tile is there (or known to be none)
    u64 summed;  // every warp has left its total
    u64 ready;   // what stands in front of every warp is known
    u64 empty;   // every warp has read the tile for the last time
    Held front;  // of the tiles before it
    u32 tile;
    State totals[WARPS];  // each warp's total, then what stands in front of the warp in its tile
  };
  static constexpr u32 BYTES = STAGES * (STAGE_BYTES + sizeof(Stage));

  char* memory;
  UPSWEEP_DEVICE T* staged(u32 stage) const { return reinterpret_cast<T*>(memory + u64(stage) * STAGE_BYTES); }
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
  UPSWEEP_DEVICE typename C::State total(u32 count) const {
    State sum = Op::identity();
#pragma unroll
    for (u32 i = 0; i < TILES; ++i) {
      Words<State> words;
#pragma unroll
      for (u32 k = 0; k < COUNT; ++k) words.word[k] = u32(word[i * COUNT + k]);
      if (is_needed(i * COUNT, count)) sum = Op::combine(sum, from_words<State>(words));
    }
    return C::raise(warp_total<Op>(sum));
  }
};

template <class Op, u32 WARPS, u32 ROWS, u32 STAGES, u32 AHEAD, u32 GROUP, bool REVERSE>
__global__ void __launch_bounds__((WARPS + 3) * WARP, 1)
    scan_look_ahead(const void* input, u64 n, void* output, u64 initial, u64 exclusive, Control* control) {
#if __CUDA_ARCH__ >= 900
  using T = typename Op::Input;
  using State = typename Op::State;
  using Output = typename Op::Output;
  using C = Carry<Op>;
  using Plain = StagedTile<Op, WARPS, ROWS, REVERSE, true>;
  using Tile = StagedTile<Op, WARPS, ROWS, REVERSE, false>;
  using Ring = RingOfTiles<Op, WARPS, ROWS, STAGES>;
  static_assert(WARPS <= WARP && (WARPS & (WARPS - 1)) == 0 && AHEAD < STAGES, "the publisher has a lane for each warp");
  constexpr u32 N = Tile::N;
  constexpr u32 NONE = 0xffffffffu;  // behind the last tile
  extern __shared__ __align__(128) char shared[];
  __shared__ u32 last_epoch;
  const Ring ring = {shared};
  const T* elements = static_cast<const T*>(input);
  const u32 behind = u32(reinterpret_cast<u64>(input) % 16);
  const u32 tiles = u32((n + Tile::ELEMENTS - 1) / Tile::ELEMENTS);
  const u32 warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
  u64* words = control_words(control);

  if (threadIdx.x == 0) {
    for (u32 s = 0; s < STAGES; ++s) {
      barrier_init(&ring[s].full, 1);
      barrier_init(&ring[s].summed, WARPS);
      barrier_init(&ring[s].ready, WARP + 1);
      barrier_init(&ring[s].empty, WARPS);
    }
    barrier_init_fence();
    last_epoch = load_relaxed(&control->epoch);
  }
  __syncthreads();
  // The words of a new control block are zero and belong to no call.
  const u32 tag = last_epoch == 0xffffffffu ? 1 : last_epoch + 1;

  auto wait = [&](u64& barrier, u32 turn) {
    // A turn suspends the thread for a while in hardware, so the limit is generous.
    for (u32 spins = 0; !barrier_try_wait(&barrier, turn & 1); ++spins) {
      if (spins == SPIN_LIMIT) {
        report_error(control, ERROR_SPIN_RAN_OUT);
        return false;
      }
    }
    return true;
  };
  auto first_of = [&](u32 tile) { return u64(REVERSE ? tiles - 1 - tile : tile) * Tile::ELEMENTS; };
  // The copy engine fetches whole tiles, and nothing outside the input: what it cannot is read where it lies.
  auto is_staged = [&](u64 first) {
    const u32 over = behind == 0 ? 0 : 16 - behind;  // bytes behind the tile that come with it
    return first * sizeof(T) >= behind && (n - first) * sizeof(T) >= Ring::TILE_BYTES + over;
  };

  if (warp == WARPS) {  // the producer: tiles are numbered in the order in which they are asked for, so a tile waits for running blocks only
    if (lane != 0) return;
    const u32 base = load_relaxed(&control->base);
    u32 ticket = atomicAdd(&control->counter, 1u) - base;
    for (u32 k = 0;; ++k) {
      const u32 s = k % STAGES;
      if (k >= STAGES && !wait(ring[s].empty, k / STAGES - 1)) return;
      if (ticket >= tiles) {
        ring[s].tile = NONE;
        barrier_arrive(&ring[s].full);
        return;
      }
      ring[s].tile = ticket;
      const u64 first = first_of(ticket);
      if (is_staged(first)) {
        const u32 bytes = behind == 0 ? Ring::TILE_BYTES : Ring::COPY_BYTES;
        barrier_arrive_expect(&ring[s].full, bytes);
        bulk_load_evict_last(ring.staged(s), reinterpret_cast<const char*>(elements + first) - behind, bytes, &ring[s].full);
      } else {
        barrier_arrive(&ring[s].full);
      }
      // Asked for before there is room: the answer takes as long as a load.
      ticket = atomicAdd(&control->counter, 1u) - base;
    }
  }
  if (warp == WARPS + 1) {  // the publisher
    for (u32 k = 0;; ++k) {
      const u32 s = k % STAGES;
      typename Ring::Stage& stage = ring[s];
      if (!wait(stage.full, k / STAGES) || stage.tile == NONE) return;
      if (!wait(stage.summed, k / STAGES)) return;
      const State with = warp_scan<Op>(lane < WARPS ? stage.totals[lane] : Op::identity());
      const State before = shuffle_up(with, 1);
      if (lane == WARPS - 1) {
        const Words<State> total = to_words(with);
#pragma unroll
        for (u32 i = 0; i < Words<State>::COUNT; ++i) {
          store_relaxed(words + u64(stage.tile) * Words<State>::COUNT + i, (u64(tag) << 32) | total.word[i]);
        }
      }
      if (lane < WARPS) stage.totals[lane] = lane == 0 ? Op::identity() : before;
      barrier_arrive(&stage.ready);
    }
  }
  if (warp == WARPS + 2) {  // the look-ahead: whole groups from left to right, and of the last one what lies in front of the tile
    typename C::State whole = C::empty();
    u64 group = 0;
    GroupOfTotals<Op, GROUP> kept;
    kept.clear();
    for (u32 k = 0;; ++k) {
      const u32 s = k % STAGES;
      typename Ring::Stage& stage = ring[s];
      if (!wait(stage.full, k / STAGES) || stage.tile == NONE) return;
      const u64 its_group = stage.tile / GROUP;
      const u32 count = stage.tile % GROUP;
      if (its_group > group) {
        GroupOfTotals<Op, GROUP> next;
        next.clear();
        next.read(words, its_group, count, tag);  // under way while the groups before it become whole
        for (; group < its_group; ++group) {
          kept.wait(words, group, GROUP, tag, control);
          whole = C::join(whole, kept.total(GROUP));
          kept.clear();
        }
        kept = next;
      }
      kept.wait(words, group, count, tag, control);
      const typename C::State front = C::join(whole, kept.total(count));
      if (lane == 0) {
        stage.front = front;
        barrier_arrive(&stage.ready);
      }
    }
  }

  const bool aligned = behind == 0 && is_aligned16(output);
  auto with_tile = [&](u32 s, u64 first, auto work) {
    if (aligned && n - first >= Tile::ELEMENTS) {
      work(Plain{ring.staged(s), 0, elements, n, first});
    } else {
      work(Tile{is_staged(first) ? ring.staged(s) : nullptr, behind, elements, n, first});
    }
  };

  // The warps that scan: of tile k + AHEAD the total, then tile k.
  Output* outputs = static_cast<Output*>(output);
  const typename C::State start = C::raise(initial_state<State>(initial));
  u32 known = NONE - AHEAD;  // tiles of this block, once the last one has been seen
  for (u32 k = 0; k < known + AHEAD; ++k) {
    if (k < known) {
      const u32 s = k % STAGES;
      typename Ring::Stage& stage = ring[s];
      if (!wait(stage.full, k / STAGES)) return;
      if (stage.tile == NONE) {
        known = k;
      } else {
        // All scans commute, so neighbours of different rows may be added first: fewer shuffles.
        State sums[N];
#pragma unroll
        for (u32 i = 0; i < N; ++i) sums[i] = Op::identity();
        with_tile(s, first_of(stage.tile), [&](const auto& tile) {
#pragma unroll
          for (u32 row = 0; row < ROWS; ++row) {
            State items[N];
            tile.read(warp, row, items);
#pragma unroll
            for (u32 i = 0; i < N; ++i) sums[i] = Op::combine(sums[i], items[i]);
          }
        });
#pragma unroll
        for (u32 half = N / 2; half > 0; half /= 2) {
#pragma unroll
          for (u32 i = 0; i < half; ++i) sums[i] = Op::combine(sums[i], sums[i + half]);
        }
        const State total = warp_total<Op>(sums[0]);
        if (lane == 0) {
          stage.totals[warp] = total;
          barrier_arrive(&stage.summed);
        }
      }
    }
    if (k < AHEAD || k - AHEAD >= known) continue;
    const u32 turn = k - AHEAD, s = turn % STAGES;
    typename Ring::Stage& stage = ring[s];
    if (!wait(stage.ready, turn / STAGES)) return;
    const u32 number = stage.tile;
    if (number == tiles - 1 && threadIdx.x == 0) {
      // Every tile's total led to this prefix: every block that has a tile has read the epoch. One that has none may come
      // yet; it takes its ticket beyond the last, like every other block.
      store_relaxed(&control->base, load_relaxed(&control->base) + tiles + gridDim.x);
      store_relaxed(&control->epoch, tag);
    }
    const State base = C::lower(C::join(C::join(start, stage.front), C::raise(stage.totals[warp])));
    with_tile(s, first_of(number), [&](const auto& tile) {
      // As many rows at once as make sixteen words.
      constexpr u32 FITTING = 16 / (N * Words<State>::COUNT), AT_ONCE = FITTING == 0 ? 1 : (FITTING < ROWS ? FITTING : ROWS);
      static_assert(ROWS % AT_ONCE == 0, "whole turns");
      State sum = Op::identity();
#pragma unroll
      for (u32 top = 0; top < ROWS; top += AT_ONCE) {
        State items[AT_ONCE][N], total[AT_ONCE];
#pragma unroll
        for (u32 row = 0; row < AT_ONCE; ++row) tile.read(warp, top + row, items[row]);
        if (top + AT_ONCE == ROWS) {
          __syncwarp();
          if (lane == 0) barrier_arrive(&stage.empty);
        }
#pragma unroll
        for (u32 row = 0; row < AT_ONCE; ++row) {
#pragma unroll
          for (u32 i = 1; i < N; ++i) items[row][i] = Op::combine(items[row][i - 1], items[row][i]);
          total[row] = warp_scan<Op>(items[row][N - 1]);
        }
#pragma unroll
        for (u32 row = 0; row < AT_ONCE; ++row) {
          const State lanes = shuffle_up(total[row], 1);
          const State before = lane == 0 ? sum : Op::combine(sum, lanes);
          State earlier = Op::combine(base, before);
          Output results[N];
#pragma unroll
          for (u32 i = 0; i < N; ++i) {
            const State inclusive = Op::combine(base, Op::combine(before, items[row][i]));
            results[REVERSE ? N - 1 - i : i] = Op::finish(exclusive != 0 ? earlier : inclusive, 0);
            earlier = inclusive;
          }
          sum = Op::combine(sum, shuffle_from(total[row], WARP - 1));
          tile.store(outputs, warp, top + row, results);
        }
      }
    });
  }
#endif
}

}  // namespace upsweep
