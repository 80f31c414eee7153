// Rung 10, bulk_copy: the copy engine keeps a ring of shared-memory stages full (one thread a block asks), so bytes in flight cost no registers.
// input: n elements; output: one result; control: the prepared plan's block (epoch and published words)
// launch: grid one block a multiprocessor, block CONSUMERS + 32 threads; dynamic shared memory STAGES * STAGE_BYTES + barriers
// cost: one read of n items, one tagged write and one read a block; 2 mbarrier hand-overs a stage; the order of additions is fixed
// source: PTX ISA, cp.async.bulk and mbarrier; CUDA C++ Programming Guide, asynchronous data copies

namespace upsweep {

template <class Op, u32 CONSUMERS, u32 STAGES, u32 STAGE_BYTES>
__global__ void __launch_bounds__(CONSUMERS + 32) reduce_bulk_copy(const void* input, u64 n, Deal share, void* output, u64 count, Control* control) {
#if __CUDA_ARCH__ >= 900
  using T = typename Op::Input;
  using State = typename Op::State;
  constexpr u32 N = pack_size<T>();
  constexpr u64 TILE = STAGE_BYTES / sizeof(T);
  constexpr u32 BLOCK = CONSUMERS + 32;
  extern __shared__ __align__(128) char ring[];
  u64* full = reinterpret_cast<u64*>(ring + u64(STAGES) * STAGE_BYTES);
  u64* empty = full + STAGES;
  __shared__ SharedStates<State, WARP> shared;

  const u32 epoch = load_relaxed(&control->epoch);
  const T* elements = static_cast<const T*>(input);
  const bool aligned = is_aligned16(input);
  // Tile r of this block: `first` and its number of elements; the tile after the last full round may be short or empty.
  const u64 tiles = share.rounds + 1;
  auto tile_first = [&](u64 r) {
    return r < share.rounds ? (r * gridDim.x + blockIdx.x) * TILE : share.rest_first + blockIdx.x * share.rest_share;
  };
  auto tile_length = [&](u64 r, u64 first) -> u64 {
    if (r < share.rounds) return TILE;
    return first >= n ? 0 : (n - first < share.rest_share ? n - first : share.rest_share);
  };
  const bool producer = threadIdx.x >= CONSUMERS;
  if (aligned) {
    if (threadIdx.x == 0) {
      for (u32 s = 0; s < STAGES; ++s) {
        barrier_init(full + s, 1);
        barrier_init(empty + s, CONSUMERS / WARP * ARRIVALS_OF_WARP);
      }
      barrier_init_fence();
    }
    __syncthreads();
  }

  bool ran_out = false;
  auto wait = [&](u64* barrier, u32 parity) {
    // A turn suspends the thread for a while in hardware, so the limit is generous.
    for (u32 spins = 0; !barrier_try_wait(barrier, parity); ++spins) {
      if (spins == SPIN_LIMIT) {
        report_error(control, ERROR_SPIN_RAN_OUT);
        ran_out = true;
        return;
      }
    }
  };

  State state = Op::identity();
  const u64 start = tile_first(0) + threadIdx.x * N;
  typename Op::Stream stream = Op::begin(start);
  if (producer) {
    if (aligned && threadIdx.x == CONSUMERS) {
      for (u64 r = 0; r < tiles && !ran_out; ++r) {
        const u32 stage = u32(r % STAGES);
        const u64 first = tile_first(r);
        const u32 bytes = u32(tile_length(r, first) * sizeof(T)) & ~15u;
        if (bytes == 0) break;
        if (r >= STAGES) wait(empty + stage, u32(r / STAGES - 1) & 1);
        barrier_arrive_expect(full + stage, bytes);
        bulk_load(ring + u64(stage) * STAGE_BYTES, elements + first, bytes, full + stage);
      }
    }
  } else {
    for (u64 r = 0; r < tiles && !ran_out; ++r) {
      const u32 stage = u32(r % STAGES);
      const u64 first = tile_first(r);
      const u32 length = u32(tile_length(r, first));
      const u32 packs = length / N;
      const Bits128* staged = reinterpret_cast<const Bits128*>(ring + u64(stage) * STAGE_BYTES);
      if (aligned && packs > 0) wait(full + stage, u32(r / STAGES) & 1);
      if (length == TILE) {
#pragma unroll 4
        for (u32 p = threadIdx.x; p < u32(TILE / N); p += CONSUMERS) {
          const Bits128 bits[1] = {aligned ? staged[p] : gather_bits(elements + first + u64(p) * N)};
          stream = Op::template fold<1>(stream, bits, 1, first + u64(p) * N, 0);
        }
      } else {
        for (u32 p = threadIdx.x; p < packs; p += CONSUMERS) {
          const Bits128 bits[1] = {aligned ? staged[p] : gather_bits(elements + first + u64(p) * N)};
          stream = Op::template fold<1>(stream, bits, 1, first + u64(p) * N, 0);
        }
        // Fewer elements than a pack at the very end: the copy engine moves whole packs only.
        const u32 tail = packs * N + threadIdx.x;
        if (tail < length) state = Op::combine(state, Op::lift(elements[first + tail], first + tail));
      }
      if (aligned) warp_arrive(empty + stage);
    }
    // The first tile is full, or the only one: who read no pack of it read none.
    if (start + N <= tile_first(0) + tile_length(0, tile_first(0))) state = Op::combine(Op::end(stream, elements), state);
  }
  state = block_reduce<Op, BLOCK>(state, shared.get());
  publish_and_finish<Op, BLOCK>(state, epoch, shared.get(), control, output, count);
#endif
}

}  // namespace upsweep
