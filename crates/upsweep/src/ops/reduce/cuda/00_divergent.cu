// Rung 0, divergent: interleaved addressing; at stride s the threads with tid % 2s == 0 add, so every warp diverges.
// input: n elements (or states of the pass before); partials: one state a block; output: one result (only from a grid of one block)
// launch: grid ceil(n / BLOCK), block BLOCK (a power of two), static shared memory BLOCK states
// cost: one read of n items, one write a block; log2(BLOCK) + 1 barriers; `%` in every step
// source: M. Harris, Optimizing Parallel Reduction in CUDA (2007), kernel 1

namespace upsweep {

template <class Op, class Source, u32 BLOCK>
UPSWEEP_KERNEL reduce_divergent(const void* input, u64 n, void* partials, void* output, u64 count) {
  __shared__ SharedStates<typename Op::State, BLOCK> shared;
  typename Op::State* tree = shared.get();
  const u32 tid = threadIdx.x;
  tree[tid] = read<Op, Source>(input, u64(blockIdx.x) * BLOCK + tid, n);
  __syncthreads();
  // The bound is blockDim.x, as in the document: with a constant the compiler unrolls the loop, turns `%` into a mask, and
  // the fault this rung shows is gone.
  for (u32 s = 1; s < blockDim.x; s *= 2) {
    if (tid % (2 * s) == 0) tree[tid] = Op::combine(tree[tid], tree[tid + s]);
    __syncthreads();
  }
  if (tid == 0) emit<Op>(tree[0], partials, output, count);
}

}  // namespace upsweep
