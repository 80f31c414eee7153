// Rung 0, hillis_steele: log2(BLOCK) steps; at distance s every thread adds the state s to its left, from one shared buffer into the other.
// input: n elements (or block totals of the pass before); output: n results (or carries, in place); totals: one state a block
// launch: grid ceil(n / BLOCK), block BLOCK, static shared memory 2 * BLOCK states
// cost: one read and one write of n items and one state a block; log2(BLOCK) + 1 barriers; BLOCK * log2(BLOCK) combines a block
// source: D. Hillis and G. Steele, Data Parallel Algorithms (1986); M. Harris, Parallel Prefix Sum with CUDA, GPU Gems 3 (2007), 39.2.1

namespace upsweep {

template <class Op, class Source, u32 BLOCK> UPSWEEP_KERNEL scan_hillis_steele(const void* input, u64 n, void* output, void* totals) {
  using State = typename Op::State;
  __shared__ SharedStates<State, 2 * BLOCK> shared;
  const u32 tid = threadIdx.x;
  const u64 index = u64(blockIdx.x) * BLOCK + tid;
  State* from = shared.get();
  State* to = from + BLOCK;
  from[tid] = read<Op, Source>(input, index, n);
  __syncthreads();
  for (u32 s = 1; s < BLOCK; s *= 2) {
    to[tid] = tid >= s ? Op::combine(from[tid - s], from[tid]) : from[tid];
    __syncthreads();
    State* swap = from;
    from = to;
    to = swap;
  }
  Scanned<Op, Source>::emit(output, index, n, from[tid], tid == 0 ? Op::identity() : from[tid == 0 ? 0 : tid - 1]);
  if (tid == BLOCK - 1 && gridDim.x > 1) static_cast<State*>(totals)[blockIdx.x] = from[tid];
}

}  // namespace upsweep
