// Rung 1, non_divergent: the same additions, made by neighbouring threads (index 2*s*tid): whole warps work or idle, but banks conflict.
// input: n elements (or states of the pass before); partials: one state a block; output: one result (only from a grid of one block)
// launch: grid ceil(n / BLOCK), block BLOCK (a power of two), static shared memory BLOCK states
// cost: one read of n items, one write a block; log2(BLOCK) + 1 barriers; up to 32-way bank conflicts
// source: M. Harris, Optimizing Parallel Reduction in CUDA (2007), kernel 2

namespace upsweep {

template <class Op, class Source, u32 BLOCK>
UPSWEEP_KERNEL reduce_non_divergent(const void* input, u64 n, void* partials, void* output, u64 count) {
  __shared__ SharedStates<typename Op::State, BLOCK> shared;
  typename Op::State* tree = shared.get();
  const u32 tid = threadIdx.x;
  tree[tid] = read<Op, Source>(input, u64(blockIdx.x) * BLOCK + tid, n);
  __syncthreads();
  for (u32 s = 1; s < blockDim.x; s *= 2) {
    const u32 at = 2 * s * tid;
    if (at < blockDim.x) tree[at] = Op::combine(tree[at], tree[at + s]);
    __syncthreads();
  }
  if (tid == 0) emit<Op>(tree[0], partials, output, count);
}

}  // namespace upsweep
