// Rung 4, registers: the row is read once and stays in registers: LANES threads hold it, a few for short rows, a block for long ones.
// input: rows of cols elements, pitch elements apart; output: rows of cols elements (logsumexp: one a row)
// launch: grid rows * LANES / BLOCK (strides over more), block BLOCK; cols a multiple of N, at most LANES * PACKS * N
// cost: one read and one write of every element; no barrier up to a warp a row, 2 barriers a row beyond; one exponential an element
// source: V. Volkov, Better Performance at Lower Occupancy (2010), on registers as the largest memory of a multiprocessor

namespace upsweep {

template <class T, class Kind, u32 LANES, u32 PACKS, u32 N, u32 BLOCK, u32 RESIDENT>
__global__ void __launch_bounds__(BLOCK, RESIDENT)
    softmax_registers(const void* input, void* output, u64 rows, u64 cols, i64 pitch, u64 zero_masked) {
  using R = typename Traits<T>::Real;
  static_assert(LANES <= WARP ? BLOCK % WARP == 0 : BLOCK == LANES, "groups of more than a warp are the whole block");
  constexpr u32 ROWS = BLOCK / LANES;
  __shared__ R shared_max[WARP];
  __shared__ R shared_sum[WARP];
  const u32 lane = threadIdx.x % LANES;
  for (u64 base = u64(blockIdx.x) * ROWS; base < rows; base += u64(gridDim.x) * ROWS) {
    const u64 row = base + threadIdx.x / LANES;
    // Lanes without a row take part in the shuffles, with nothing.
    const u32 count = ROWS == 1 || row < rows ? u32(cols) : 0;
    R value[PACKS * N];
    load_part<T, LANES, PACKS, N>(static_cast<const T*>(input) + i64(row) * pitch, 1, count, lane, value);
    // The maximum first, in two cheap reductions instead of one of (maximum, sum): no exponential is taken twice.
    const R max = all_lanes<TakeMax, LANES>(largest_of(value), shared_max);
    R sum = exponentials_of<Kind, PACKS, N>(value, finite_or_zero(max));
    sum = all_lanes<TakeSum, LANES>(sum, shared_sum);
    if (Kind::ONE_A_ROW) {
      if (lane == 0 && (ROWS == 1 || row < rows)) static_cast<T*>(output)[row] = Narrow<T>::from(row_log_sum_exp(max, sum));
    } else {
      scale_values<Kind>(value, row_scale<Kind>(max, sum, zero_masked != 0).factor);
      store_part<T, LANES, PACKS, N>(static_cast<T*>(output) + row * cols, 1, count, lane, value);
    }
    // No barrier is needed before the next round: each of the two shared arrays is written again only behind the other's.
  }
}

}  // namespace upsweep
