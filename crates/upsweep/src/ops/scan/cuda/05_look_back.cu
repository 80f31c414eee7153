// Rung 5, look_back: one pass: a tile publishes its total, looks back over the words of the tiles before it until one tells a whole prefix, and publishes its own.
// input: n elements; output: n results; initial: the state of the initial value; control: the prepared plan's block (epoch, counter, then tagged words for each tile)
// launch: grid one block a tile of BLOCK * ROWS 16-byte stores, block BLOCK; static shared memory 32 states and one carry
// cost: one read and one write of n items; 1 atomic, 2 tagged writes and a few tagged reads a tile; 3 barriers; which prefixes are met is not fixed
// source: D. Merrill and M. Garland, Single-pass Parallel Prefix Scan with Decoupled Look-back (2016)

namespace upsweep {

template <class Op, u32 BLOCK, u32 ROWS, u32 RESIDENT, bool REVERSE>
__global__ void __launch_bounds__(BLOCK, RESIDENT)
    scan_look_back(const void* input, const void* beside, u64 n, void* output, u64 initial, u64 exclusive, Control* control) {
  using State = typename Op::State;
  using C = Carry<Op>;
  __shared__ SharedStates<State, WARP> totals;
  __shared__ SharedStates<typename C::State, 1> in_front;
  __shared__ u32 ticket, last_epoch;
  // Tiles are numbered in the order in which blocks start, so a tile waits for running blocks only.
  if (threadIdx.x == 0) {
    last_epoch = load_relaxed(&control->epoch);
    ticket = atomicAdd(&control->counter, 1u);
  }
  __syncthreads();
  const u32 number = ticket, warp = threadIdx.x / WARP;
  ScanTile<Op, BLOCK, ROWS, REVERSE> tile;
  tile.load(input, beside, n, number, gridDim.x);
  const State warp_state = tile.scan();
  if (threadIdx.x % WARP == 0) totals.get()[warp] = warp_state;
  __syncthreads();
  if (warp == 0) {
    u64* words = control_words(control);
    // Epochs run from 1 to 2^31 - 1: the words of a new control block are zero and belong to no call.
    const u32 epoch = last_epoch == EPOCH_BITS ? 1 : last_epoch + 1;
    const typename C::State own = C::raise(first_warps<Op, BLOCK / WARP>(totals.get(), BLOCK / WARP));
    if (threadIdx.x == 0 && number > 0) publish_carry<C>(words, number, 2 * epoch, own);
    const typename C::State prefix = look_back<C>(words, number, epoch, control);
    if (threadIdx.x == 0) {
      publish_carry<C>(words, number, 2 * epoch + 1, C::join(prefix, own));
      *in_front.get() = prefix;
      if (number == gridDim.x - 1) {
        // Every block has its ticket, and has read the epoch: its words, which led to this prefix, carry it.
        control->counter = 0;
        control->epoch = epoch;
      }
    }
  }
  __syncthreads();
  const Results<Op> result = {initial, exclusive != 0};
  const typename C::State front = C::join(C::raise(result.start()), *in_front.get());
  const State base = C::lower(C::join(front, C::raise(first_warps<Op, BLOCK / WARP>(totals.get(), warp))));
  tile.store(output, n, base, result);
}

}  // namespace upsweep
