// Rung 9, published_words: one launch without counter or fence: states travel as words that carry their own tag, and the last block waits for them.
// input: n elements; output: one result; control: the prepared plan's block (epoch, then one tagged 64-bit word for each 32 bits of a block's state)
// launch: grid at most RESIDENT blocks a multiprocessor, block BLOCK; static shared memory BLOCK / 32 states
// cost: one read of n items, one tagged write and one read a block; 1 barrier a block (3 in the last); the order of additions is fixed
// source: the tagged word of D. Merrill and M. Garland, Single-pass Parallel Prefix Scan with Decoupled Look-back (2016), section 4

namespace upsweep {

template <class Op, u32 BLOCK, u32 PACKS, u32 RESIDENT>
__global__ void __launch_bounds__(BLOCK, RESIDENT) reduce_published_words(const void* input, u64 n, Deal share, void* output, u64 count, Control* control) {
  __shared__ SharedStates<typename Op::State, WARP> shared;
  const u32 epoch = load_relaxed(&control->epoch);  // early: its latency hides behind the input's
  typename Op::State state = block_reduce<Op, BLOCK>(stream_packs<Op, BLOCK, PACKS>(input, n, share), shared.get());
  publish_and_finish<Op, BLOCK>(state, epoch, shared.get(), control, output, count);
}

}  // namespace upsweep
