// Rung 3, first_add_on_load: half the blocks; each thread loads two elements and adds them on the way into shared memory.
// input: n elements (or states of the pass before); partials: one state a block; output: one result (only from a grid of one block)
// launch: grid ceil(n / (2 * BLOCK)), block BLOCK (a power of two), static shared memory BLOCK states
// cost: one read of n items, one write a block of 2 * BLOCK items; log2(BLOCK) + 1 barriers
// source: M. Harris, Optimizing Parallel Reduction in CUDA (2007), kernel 4

namespace upsweep {

template <class Op, class Source, u32 BLOCK>
UPSWEEP_KERNEL reduce_first_add_on_load(const void* input, u64 n, void* partials, void* output, u64 count) {
  __shared__ SharedStates<typename Op::State, BLOCK> shared;
  typename Op::State* tree = shared.get();
  const u32 tid = threadIdx.x;
  const u64 first = u64(blockIdx.x) * (2 * BLOCK) + tid;
  tree[tid] = Op::combine(read<Op, Source>(input, first, n), read<Op, Source>(input, first + BLOCK, n));
  __syncthreads();
  for (u32 s = blockDim.x / 2; s > 0; s /= 2) {
    if (tid < s) tree[tid] = Op::combine(tree[tid], tree[tid + s]);
    __syncthreads();
  }
  if (tid == 0) emit<Op>(tree[0], partials, output, count);
}

}  // namespace upsweep
