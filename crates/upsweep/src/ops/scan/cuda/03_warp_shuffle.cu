// Rung 3, warp_shuffle: each warp scans in registers; one more warp scan over the warps' totals joins them.
// input: n elements (or block totals of the pass before); output: n results (or carries, in place); totals: one state a block
// launch: grid ceil(n / BLOCK), block BLOCK, static shared memory BLOCK / 32 states
// cost: one read and one write of n items and one state a block; 2 barriers; 5 shuffles a warp, and 5 more for the block
// source: M. Harris and M. Garland, Optimizing Parallel Prefix Operations for the Fermi Architecture, GPU Computing Gems (2011)

namespace upsweep {

template <class Op, class Source, u32 BLOCK> UPSWEEP_KERNEL scan_warp_shuffle(const void* input, u64 n, void* output, void* totals) {
  using State = typename Op::State;
  static_assert(BLOCK % WARP == 0 && BLOCK <= 1024, "whole warps, at most 32 of them");
  __shared__ SharedStates<State, WARP> shared;
  State* warps = shared.get();
  const u32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
  const u64 index = u64(blockIdx.x) * BLOCK + threadIdx.x;
  const State scanned = warp_scan<Op>(read<Op, Source>(input, index, n));
  if (lane == WARP - 1) warps[warp] = scanned;
  __syncthreads();
  if (warp == 0) {
    const State through = warp_scan<Op>(lane < BLOCK / WARP ? warps[lane] : Op::identity());
    if (lane < BLOCK / WARP) warps[lane] = through;
  }
  __syncthreads();
  const State before = warp == 0 ? Op::identity() : warps[warp == 0 ? 0 : warp - 1];
  const State left = shuffle_up(scanned, 1);
  Scanned<Op, Source>::emit(output, index, n, Op::combine(before, scanned), lane == 0 ? before : Op::combine(before, left));
  if (threadIdx.x == BLOCK - 1 && gridDim.x > 1) static_cast<State*>(totals)[blockIdx.x] = Op::combine(before, scanned);
}

}  // namespace upsweep
