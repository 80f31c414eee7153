// Rung 4, three_phase: reduce, then scan: totals of tiles, one block scans the totals, and the tiles are read again and scanned with their carry.
// input: n elements; beside: what a scan of two arrays reads with them; totals: one state a tile in scratch, which become carries in place; output: n results; initial: the state of the initial value
// launch: totals <<<tiles, BLOCK>>>, spine <<<1, 1024>>>, tiles <<<tiles, BLOCK>>>, a tile being BLOCK * ROWS 16-byte stores; static shared memory 32 states
// cost: two reads and one write of n items; three launches; 1 or 2 barriers a tile; the order of combinations is fixed
// source: Y. Dotsenko et al., Fast Scan Algorithms on Graphics Processors (2008), on reduce-then-scan; D. Merrill and A. Grimshaw, Parallel Scan for Stream Architectures (2009)

namespace upsweep {

template <class Op, u32 BLOCK, u32 ROWS, bool REVERSE>
__global__ void __launch_bounds__(BLOCK) scan_tile_totals(const void* input, const void* beside, u64 n, void* totals) {
  using State = typename Op::State;
  __shared__ SharedStates<State, WARP> shared;
  ScanTile<Op, BLOCK, ROWS, REVERSE> tile;
  tile.load(input, beside, n, blockIdx.x, gridDim.x);
  const State warp = tile.total();
  if (threadIdx.x % WARP == 0) shared.get()[threadIdx.x / WARP] = warp;
  __syncthreads();
  if (threadIdx.x == 0) static_cast<State*>(totals)[blockIdx.x] = first_warps<Op, BLOCK / WARP>(shared.get(), BLOCK / WARP);
}

// One block replaces each total by the state of all totals before it. Users' operators may have states of any width: the bound keeps
// the block launchable.
template <class Op, u32 BLOCK> __global__ void __launch_bounds__(BLOCK) scan_spine(void* totals, u64 count) {
  using State = typename Op::State;
  using C = Carry<Op>;
  constexpr u32 N = 4;
  __shared__ SharedStates<State, WARP> shared;
  State* states = static_cast<State*>(totals);
  const u32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
  typename C::State carry = C::empty();
  for (u64 round = 0; round < count; round += BLOCK * N) {
    const u64 first = round + threadIdx.x * N;
    State item[N];
#pragma unroll
    for (u32 k = 0; k < N; ++k) item[k] = first + k < count ? states[first + k] : Op::identity();
    State lane_total = item[0];
#pragma unroll
    for (u32 k = 1; k < N; ++k) lane_total = Op::combine(lane_total, item[k]);
    const State scanned = warp_scan<Op>(lane_total);
    if (lane == WARP - 1) shared.get()[warp] = scanned;
    __syncthreads();
    if (warp == 0) {
      const State through = warp_scan<Op>(lane < BLOCK / WARP ? shared.get()[lane] : Op::identity());
      __syncwarp();
      if (lane < BLOCK / WARP) shared.get()[lane] = through;
    }
    __syncthreads();
    const State left = shuffle_up(scanned, 1);
    State before = warp == 0 ? Op::identity() : shared.get()[warp == 0 ? 0 : warp - 1];
    if (lane > 0) before = Op::combine(before, left);
#pragma unroll
    for (u32 k = 0; k < N; ++k) {
      if (first + k < count) states[first + k] = C::lower(C::join(carry, C::raise(before)));
      before = Op::combine(before, item[k]);
    }
    carry = C::join(carry, C::raise(shared.get()[BLOCK / WARP - 1]));
    __syncthreads();  // the totals of this round were read
  }
}

template <class Op, u32 BLOCK, u32 ROWS, bool REVERSE>
__global__ void __launch_bounds__(BLOCK) scan_tiles(const void* input, const void* beside, u64 n, const void* carries, void* output, u64 initial, u64 exclusive) {
  using State = typename Op::State;
  __shared__ SharedStates<State, WARP> shared;
  const Results<Op> result = {initial, exclusive != 0};
  State base = result.start();
  // A single tile has nothing in front of it and no carry.
  if (gridDim.x > 1) base = Op::combine(base, static_cast<const State*>(carries)[blockIdx.x]);
  ScanTile<Op, BLOCK, ROWS, REVERSE> tile;
  tile.load(input, beside, n, blockIdx.x, gridDim.x);
  const State warp = tile.scan();
  if (threadIdx.x % WARP == 0) shared.get()[threadIdx.x / WARP] = warp;
  __syncthreads();
  tile.store(output, n, Op::combine(base, first_warps<Op, BLOCK / WARP>(shared.get(), threadIdx.x / WARP)), result);
}

}  // namespace upsweep
