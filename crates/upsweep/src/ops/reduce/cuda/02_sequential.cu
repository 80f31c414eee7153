// Rung 2, sequential: the stride halves and thread t < s adds t + s: neighbours touch neighbouring banks.
// input: n elements (or states of the pass before); partials: one state a block; output: one result (only from a grid of one block)
// launch: grid ceil(n / BLOCK), block BLOCK (a power of two), static shared memory BLOCK states
// cost: one read of n items, one write a block; log2(BLOCK) + 1 barriers; no bank conflict
// source: M. Harris, Optimizing Parallel Reduction in CUDA (2007), kernel 3

namespace upsweep {

template <class Op, class Source, u32 BLOCK>
UPSWEEP_KERNEL reduce_sequential(const void* input, u64 n, void* partials, void* output, u64 count) {
  __shared__ SharedStates<typename Op::State, BLOCK> shared;
  typename Op::State* tree = shared.get();
  const u32 tid = threadIdx.x;
  tree[tid] = read<Op, Source>(input, u64(blockIdx.x) * BLOCK + tid, n);
  __syncthreads();
  for (u32 s = blockDim.x / 2; s > 0; s /= 2) {
    if (tid < s) tree[tid] = Op::combine(tree[tid], tree[tid + s]);
    __syncthreads();
  }
  if (tid == 0) emit<Op>(tree[0], partials, output, count);
}

}  // namespace upsweep
