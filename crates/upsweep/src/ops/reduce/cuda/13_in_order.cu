// Rung 13, in_order: lanes, warps and blocks hold neighbours, and every combination has the earlier elements on the left: operators need not commute.
// input: n elements; partials: one state a block; output: one result (from the partials, or from a grid of one block)
// launch: grid at most a few blocks a multiprocessor, block BLOCK, each warp a part of `share` elements; then one block over the partials; static shared memory 32 states
// cost: one read of n items, one write a block; 5 shuffles a 16-byte load; 1 barrier a block; two launches
// source: G. Blelloch, Prefix Sums and Their Applications (1990), section 1.2.1, on blocks that keep the order

namespace upsweep {

// The state of the block, in thread 0; `state` is that of a warp, in lane 0.
template <class Op, u32 BLOCK> UPSWEEP_DEVICE typename Op::State block_in_order(typename Op::State state) {
  using State = typename Op::State;
  __shared__ SharedStates<State, WARP> shared;
  if (threadIdx.x % WARP == 0) shared.get()[threadIdx.x / WARP] = state;
  __syncthreads();
  return first_warps<Op, BLOCK / WARP>(shared.get(), BLOCK / WARP);
}

template <class Op, u32 BLOCK, u32 PACKS>
UPSWEEP_KERNEL reduce_in_order(const void* input, u64 n, u64 share, void* partials, void* output) {
  using T = typename Op::Input;
  using State = typename Op::State;
  constexpr u32 N = pack_size<T>(), STEP = WARP * PACKS * N;
  const T* elements = static_cast<const T*>(input);
  const bool aligned = is_aligned16(input);
  const u32 lane = threadIdx.x % WARP;
  const u64 begin = (u64(blockIdx.x) * (BLOCK / WARP) + threadIdx.x / WARP) * share, end = begin + share < n ? begin + share : n;
  State state = Op::identity();
  u64 at = begin;
  for (; at + STEP <= end; at += STEP) {
    const u64 first = at + lane * N;
    Bits128 bits[PACKS];
#pragma unroll
    for (u32 k = 0; k < PACKS; ++k) bits[k] = read_bits(elements + first + k * (WARP * N), aligned);
#pragma unroll
    for (u32 k = 0; k < PACKS; ++k) {
      const State pack = tree_of<Op, 0, N>(unpack<T>(bits[k]).items, first + k * (WARP * N));
      state = Op::combine(state, warp_total<Op>(pack));
    }
  }
  // What is left is less than a step: the identity stands where there is no element.
  for (; at < end; at += WARP * N) {
    State pack = Op::identity();
#pragma unroll
    for (u32 i = 0; i < N; ++i) {
      const u64 index = at + lane * N + i;
      if (index < end) pack = Op::combine(pack, Op::lift(elements[index], index));
    }
    state = Op::combine(state, warp_total<Op>(pack));
  }
  state = block_in_order<Op, BLOCK>(state);
  if (threadIdx.x == 0) emit<Op>(state, partials, output, n);
}

// One block: each thread takes neighbouring states, in turn.
template <class Op, u32 BLOCK> UPSWEEP_KERNEL reduce_in_order_partials(const void* partials, u64 count, void* output, u64 n) {
  using State = typename Op::State;
  const State* states = static_cast<const State*>(partials);
  const u64 share = (count + BLOCK - 1) / BLOCK, begin = threadIdx.x * share, end = begin + share < count ? begin + share : count;
  State state = Op::identity();
  for (u64 at = begin; at < end; ++at) state = Op::combine(state, states[at]);
  state = block_in_order<Op, BLOCK>(warp_total<Op>(state));
  if (threadIdx.x == 0) *static_cast<typename Op::Output*>(output) = Op::finish(state, n);
}

}  // namespace upsweep
