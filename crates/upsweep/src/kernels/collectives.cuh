// What reduction kernels share: where elements come from, block-wide trees, where results go.

namespace upsweep {

// ------------------------------------------------------------------ sources: the first pass lifts elements, later ones read states

struct Elements {
  template <class Op> struct Of {
    using Item = typename Op::Input;
    static UPSWEEP_DEVICE typename Op::State lift(Item x, u64 index) { return Op::lift(x, index); }
  };
};
struct Partials {
  template <class Op> struct Of {
    using Item = typename Op::State;
    static UPSWEEP_DEVICE typename Op::State lift(Item state, u64) { return state; }
  };
};
template <class Op, class Source> using ItemOf = typename Source::template Of<Op>::Item;

// Item `index`, or the identity beyond the end.
template <class Op, class Source> UPSWEEP_DEVICE typename Op::State read(const void* input, u64 index, u64 n) {
  if (index >= n) return Op::identity();
  return Source::template Of<Op>::lift(static_cast<const ItemOf<Op, Source>*>(input)[index], index);
}

// ------------------------------------------------------------------ sinks

// A block's result: a partial state for the next pass, or, from the only block of the last pass, the output.
template <class Op> UPSWEEP_DEVICE void emit(typename Op::State state, void* partials, void* output, u64 count) {
  if (gridDim.x == 1) *static_cast<typename Op::Output*>(output) = Op::finish(state, count);
  else static_cast<typename Op::State*>(partials)[blockIdx.x] = state;
}

// ------------------------------------------------------------------ trees

// The block's state, valid in thread 0. Every thread takes part; `shared` holds one state a warp and may be reused
// after the next barrier.
template <class Op, u32 BLOCK> UPSWEEP_DEVICE typename Op::State block_reduce(typename Op::State state, typename Op::State* shared) {
  static_assert(BLOCK % WARP == 0 && BLOCK <= 1024, "whole warps, at most 32 of them");
  state = Op::warp_reduce(state);
  if (threadIdx.x % WARP == 0) shared[threadIdx.x / WARP] = state;
  __syncthreads();
  if (threadIdx.x < WARP) {
    state = threadIdx.x < BLOCK / WARP ? shared[threadIdx.x] : Op::identity();
    state = Op::warp_reduce(state);
  }
  return state;
}

// Shared memory for states: the types have no constructors to run, and alignment for the widest.
template <class State, u32 N> struct SharedStates {
  alignas(16) char bytes[sizeof(State) * N];
  UPSWEEP_DEVICE State* get() { return reinterpret_cast<State*>(bytes); }
};

// ------------------------------------------------------------------ streaming over packs

// How the blocks share n elements: full rounds of one tile a block; what is left is dealt evenly in whole packs, so that
// all blocks end together. Worked out on the host: three 64-bit divisions would delay the first load.
struct Deal {
  u64 rounds, rest_first, rest_share;
};

// Thread state over this block's share. A lane's elements follow from their indices alone: an unaligned input is read
// with narrower loads in the same order.
template <class Op, u32 BLOCK, u32 PACKS> UPSWEEP_DEVICE typename Op::State stream_packs(const void* input, u64 n, Deal share) {
  using T = typename Op::Input;
  constexpr u32 N = pack_size<T>();
  constexpr u64 TILE = u64(BLOCK) * PACKS * N;
  const T* elements = static_cast<const T*>(input);
  const bool aligned = is_aligned16(input);
  const u64 rest = share.rest_first + blockIdx.x * share.rest_share;
  typename Op::Stream stream = Op::begin((share.rounds > 0 ? blockIdx.x * TILE : rest) + threadIdx.x * N);
  Bits128 bits[PACKS];
  // All loads of a tile are issued before the first use.
  for (u64 round = 0; round < share.rounds; ++round) {
    const u64 first = (round * gridDim.x + blockIdx.x) * TILE + threadIdx.x * N;
#pragma unroll
    for (u32 k = 0; k < PACKS; ++k) bits[k] = read_bits(elements + first + k * (BLOCK * N), aligned);
    stream = Op::template fold<PACKS>(stream, bits, PACKS, first, BLOCK * N);
  }
  const u64 end = rest + share.rest_share < n ? rest + share.rest_share : n;
  // In 32 bits: at small sizes the issue of instructions shows.
  const u32 length = rest < end ? u32(end - rest) : 0, whole = length / N;
  if (whole > 0) {
#pragma unroll
    for (u32 k = 0; k < PACKS; ++k) {
      if (k * BLOCK >= whole) break;  // for the whole block: as many passes as there are packs
      const u32 pack = threadIdx.x + k * BLOCK;
      if (pack < whole) bits[k] = read_bits(elements + rest + pack * N, aligned);
    }
    const u32 mine = threadIdx.x < whole ? (whole - 1 - threadIdx.x) / BLOCK + 1 : 0;
    stream = Op::template fold<PACKS>(stream, bits, mine, rest + threadIdx.x * N, BLOCK * N);
  }
  typename Op::State state = Op::identity();
  if (share.rounds > 0 || threadIdx.x < whole) state = Op::end(stream, elements);
  // Fewer elements than a pack: at the very end of the input only.
  const u32 tail = whole * N + threadIdx.x;
  if (tail < length) state = Op::combine(state, Op::lift(elements[rest + tail], rest + tail));
  return state;
}

// ------------------------------------------------------------------ one launch: partial states published as self-validating words

// Each block but the last writes its state as 64-bit words (tag << 32 | 32 bits of state); the last block waits for
// them and finishes. Flag and value share one aligned word, so relaxed accesses are enough: no other memory is reached
// through a flag. The tag is the call's epoch, so words need no clearing between calls. The order of additions is fixed
// by block index, never by arrival.
template <class Op, u32 BLOCK>
UPSWEEP_DEVICE void publish_and_finish(typename Op::State state, u32 epoch, typename Op::State* shared, Control* control, void* output, u64 count) {
  using State = typename Op::State;
  constexpr u32 COUNT = Words<State>::COUNT;
  const u32 tag = epoch + 1 == 0 ? 1 : epoch + 1;
  u64* words = control_words(control);
  const u32 last = gridDim.x - 1;
  if (last == 0) {
    if (threadIdx.x == 0) *static_cast<typename Op::Output*>(output) = Op::finish(state, count);
    return;
  }
  if (blockIdx.x != last) {
    if (threadIdx.x == 0) {
      Words<State> mine = to_words(state);
#pragma unroll
      for (u32 i = 0; i < COUNT; ++i) store_relaxed(words + u64(blockIdx.x) * COUNT + i, (u64(tag) << 32) | mine.word[i]);
    }
    return;
  }
  State others = Op::identity();
  for (u32 block = threadIdx.x; block < last; block += BLOCK) {
    Words<State> theirs;
    bool ready = false;
    for (u32 spins = 0; !ready; ++spins) {
      ready = true;
#pragma unroll
      for (u32 i = 0; i < COUNT; ++i) {
        u64 word = load_relaxed(words + u64(block) * COUNT + i);
        theirs.word[i] = u32(word);
        ready = ready && u32(word >> 32) == tag;
      }
      if (!ready && spins == SPIN_LIMIT) {
        report_error(control, ERROR_SPIN_RAN_OUT);
        break;
      }
    }
    others = Op::combine(others, from_words<State>(theirs));
  }
  __syncthreads();  // `shared` was last read by the tree that made `state`
  others = block_reduce<Op, BLOCK>(others, shared);
  if (threadIdx.x == 0) {
    *static_cast<typename Op::Output*>(output) = Op::finish(Op::combine(others, state), count);
    control->epoch = tag;
  }
}

}  // namespace upsweep
