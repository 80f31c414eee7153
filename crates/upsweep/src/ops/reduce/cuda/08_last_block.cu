// Rung 8, last_block: one launch; each block counts itself in after writing its partial state, and whoever comes last adds the partials.
// input: n elements; partials: one state a block in scratch; output: one result; control: the prepared plan's block (counter)
// launch: grid a few blocks a multiprocessor, block BLOCK; static shared memory BLOCK / 32 states
// cost: one read of n items, one write and one read a block; 1 atomic, 1 fence and 3 barriers a block; the order of additions is fixed
// source: CUDA samples, threadFenceReduction; PTX ISA, memory consistency model

namespace upsweep {

template <class Op, u32 BLOCK, u32 PACKS>
UPSWEEP_KERNEL reduce_last_block(const void* input, u64 n, Deal share, void* partials, void* output, u64 count, Control* control) {
  using State = typename Op::State;
  __shared__ SharedStates<State, WARP> shared;
  __shared__ bool is_last;
  State state = block_reduce<Op, BLOCK>(stream_packs<Op, BLOCK, PACKS>(input, n, share), shared.get());
  State* states = static_cast<State*>(partials);
  if (threadIdx.x == 0) {
    states[blockIdx.x] = state;
    __threadfence();  // the state is visible before this block is counted
    // Wraps to zero when the last block arrives, so the counter is ready for the next call.
    is_last = atomicInc(&control->counter, gridDim.x - 1) == gridDim.x - 1;
    __threadfence();  // the other blocks' states are read after they were counted
  }
  __syncthreads();
  if (!is_last) return;
  state = Op::identity();
  for (u32 block = threadIdx.x; block < gridDim.x; block += BLOCK) {
    // Written by other blocks during this kernel: read past the first-level cache.
    Words<State> words;
#pragma unroll
    for (u32 i = 0; i < Words<State>::COUNT; ++i) words.word[i] = load_relaxed(reinterpret_cast<const u32*>(states + block) + i);
    state = Op::combine(state, from_words<State>(words));
  }
  state = block_reduce<Op, BLOCK>(state, shared.get());
  if (threadIdx.x == 0) *static_cast<typename Op::Output*>(output) = Op::finish(state, count);
}

}  // namespace upsweep
