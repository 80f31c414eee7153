// Rung 1, blelloch: work-efficient: sums go up a tree in place (up-sweep), then prefixes come down it (down-sweep); two elements a thread.
// input: n elements (or block totals of the pass before); output: n results (or carries, in place); totals: one state a block
// launch: grid ceil(n / (2 * BLOCK)), block BLOCK (a power of two), static shared memory 2 * BLOCK states
// cost: one read and one write of n items and one state a block; 2 * log2(2 * BLOCK) + 1 barriers; 4 * BLOCK combines a block; up to 32-way bank conflicts
// source: G. Blelloch, Prefix Sums and Their Applications (1990), section 1.2; M. Harris, GPU Gems 3 (2007), 39.2.2

namespace upsweep {

template <class Op, class Source, u32 BLOCK> UPSWEEP_KERNEL scan_blelloch(const void* input, u64 n, void* output, void* totals) {
  using State = typename Op::State;
  constexpr u32 ITEMS = 2 * BLOCK;
  __shared__ SharedStates<State, ITEMS> shared;
  State* tree = shared.get();
  const u32 tid = threadIdx.x;
  const u64 first = u64(blockIdx.x) * ITEMS + tid;
  const State low = read<Op, Source>(input, first, n), high = read<Op, Source>(input, first + BLOCK, n);
  tree[tid] = low;
  tree[tid + BLOCK] = high;
  for (u32 s = 1; s < ITEMS; s *= 2) {
    __syncthreads();
    const u32 right = 2 * s * (tid + 1) - 1;
    if (right < ITEMS) tree[right] = Op::combine(tree[right - s], tree[right]);
  }
  __syncthreads();
  if (tid == 0) {
    if (gridDim.x > 1) static_cast<State*>(totals)[blockIdx.x] = tree[ITEMS - 1];
    tree[ITEMS - 1] = Op::identity();
  }
  for (u32 s = BLOCK; s > 0; s /= 2) {
    __syncthreads();
    const u32 right = 2 * s * (tid + 1) - 1;
    if (right < ITEMS) {
      const State left = tree[right - s];
      tree[right - s] = tree[right];
      tree[right] = Op::combine(tree[right], left);
    }
  }
  __syncthreads();
  Scanned<Op, Source>::emit(output, first, n, Op::combine(tree[tid], low), tree[tid]);
  Scanned<Op, Source>::emit(output, first + BLOCK, n, Op::combine(tree[tid + BLOCK], high), tree[tid + BLOCK]);
}

}  // namespace upsweep
