// Rung 4, warp_shuffle: the last 64 states are added by one warp in registers: no shared memory, no barrier.
// input: n elements (or states of the pass before); partials: one state a block; output: one result (only from a grid of one block)
// launch: grid ceil(n / (2 * BLOCK)), block BLOCK (a power of two, >= 64), static shared memory BLOCK states
// cost: one read of n items, one write a block of 2 * BLOCK items; log2(BLOCK) - 5 barriers, 5 shuffles
// source: M. Harris, Optimizing Parallel Reduction in CUDA (2007), kernel 5; J. Luitjens, Faster Parallel Reductions on Kepler (2014)

namespace upsweep {

template <class Op, class Source, u32 BLOCK>
UPSWEEP_KERNEL reduce_warp_shuffle(const void* input, u64 n, void* partials, void* output, u64 count) {
  static_assert(BLOCK >= 2 * WARP, "the last step adds two states a lane");
  __shared__ SharedStates<typename Op::State, BLOCK> shared;
  typename Op::State* tree = shared.get();
  const u32 tid = threadIdx.x;
  const u64 first = u64(blockIdx.x) * (2 * BLOCK) + tid;
  tree[tid] = Op::combine(read<Op, Source>(input, first, n), read<Op, Source>(input, first + BLOCK, n));
  __syncthreads();
  for (u32 s = blockDim.x / 2; s > WARP; s /= 2) {
    if (tid < s) tree[tid] = Op::combine(tree[tid], tree[tid + s]);
    __syncthreads();
  }
  if (tid < WARP) {
    typename Op::State state = Op::warp_reduce(Op::combine(tree[tid], tree[tid + WARP]));
    if (tid == 0) emit<Op>(state, partials, output, count);
  }
}

}  // namespace upsweep
