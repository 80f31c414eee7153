// Rung 2, blelloch_padded: the same tree with one unused place after every 32 states, so that strides of powers of two meet different banks.
// input: n elements (or block totals of the pass before); output: n results (or carries, in place); totals: one state a block
// launch: grid ceil(n / (2 * BLOCK)), block BLOCK (a power of two), static shared memory 2 * BLOCK * 33 / 32 states
// cost: one read and one write of n items and one state a block; 2 * log2(2 * BLOCK) + 1 barriers; 4 * BLOCK combines a block; few bank conflicts
// source: M. Harris, Parallel Prefix Sum with CUDA, GPU Gems 3 (2007), 39.2.3

namespace upsweep {

UPSWEEP_DEVICE u32 padded(u32 place) { return place + place / WARP; }

template <class Op, class Source, u32 BLOCK> UPSWEEP_KERNEL scan_blelloch_padded(const void* input, u64 n, void* output, void* totals) {
  using State = typename Op::State;
  constexpr u32 ITEMS = 2 * BLOCK;
  __shared__ SharedStates<State, ITEMS + ITEMS / WARP> shared;
  State* tree = shared.get();
  const u32 tid = threadIdx.x;
  const u64 first = u64(blockIdx.x) * ITEMS + tid;
  const State low = read<Op, Source>(input, first, n), high = read<Op, Source>(input, first + BLOCK, n);
  tree[padded(tid)] = low;
  tree[padded(tid + BLOCK)] = high;
  for (u32 s = 1; s < ITEMS; s *= 2) {
    __syncthreads();
    const u32 right = 2 * s * (tid + 1) - 1;
    if (right < ITEMS) tree[padded(right)] = Op::combine(tree[padded(right - s)], tree[padded(right)]);
  }
  __syncthreads();
  if (tid == 0) {
    State* root = tree + padded(ITEMS - 1);
    if (gridDim.x > 1) static_cast<State*>(totals)[blockIdx.x] = *root;
    *root = Op::identity();
  }
  for (u32 s = BLOCK; s > 0; s /= 2) {
    __syncthreads();
    const u32 right = 2 * s * (tid + 1) - 1;
    if (right < ITEMS) {
      State* parent = tree + padded(right);
      State* child = tree + padded(right - s);
      const State left = *child;
      *child = *parent;
      *parent = Op::combine(*parent, left);
    }
  }
  __syncthreads();
  const State before_low = tree[padded(tid)], before_high = tree[padded(tid + BLOCK)];
  Scanned<Op, Source>::emit(output, first, n, Op::combine(before_low, low), before_low);
  Scanned<Op, Source>::emit(output, first + BLOCK, n, Op::combine(before_high, high), before_high);
}

}  // namespace upsweep
