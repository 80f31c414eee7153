// Rung 6, vector_loads: 16 bytes a load, and a grid of resident blocks that strides over the input instead of a new block every 2 KiB.
// input: n elements; partials: one state a block; output: one result (only from a grid of one block)
// launch: grid a few blocks a multiprocessor, block BLOCK; static shared memory BLOCK / 32 states
// cost: one read of n items, one write a block; 1 barrier a block; one load in flight a thread
// source: J. Luitjens, CUDA Pro Tip: Increase Performance with Vectorized Memory Access (2013); M. Harris (2007), kernel 7

namespace upsweep {

template <class Op, u32 BLOCK, u32 PACKS> UPSWEEP_KERNEL reduce_packs(const void* input, u64 n, Deal share, void* partials, void* output, u64 count) {
  __shared__ SharedStates<typename Op::State, WARP> shared;
  typename Op::State state = block_reduce<Op, BLOCK>(stream_packs<Op, BLOCK, PACKS>(input, n, share), shared.get());
  if (threadIdx.x == 0) emit<Op>(state, partials, output, count);
}

// The second pass: one block over the partial states.
template <class Op, u32 BLOCK> UPSWEEP_KERNEL reduce_partials(const void* input, u64 n, void* partials, void* output, u64 count) {
  __shared__ SharedStates<typename Op::State, WARP> shared;
  typename Op::State state = Op::identity();
  for (u64 i = threadIdx.x; i < n; i += BLOCK) state = Op::combine(state, read<Op, Partials>(input, i, n));
  state = block_reduce<Op, BLOCK>(state, shared.get());
  if (threadIdx.x == 0) emit<Op>(state, partials, output, count);
}

}  // namespace upsweep
