// Rung 4, registers: the row is read once and stays in registers: LANES threads hold it, a few for short rows, a block for long ones.
// input: rows of cols elements, pitch elements apart; output: rows of cols elements (logsumexp: one a row)
// launch: grid rows * LANES / BLOCK (from row `first` on), block BLOCK; cols a multiple of N, at most LANES * PACKS * N
// cost: one read and one write of every element; no barrier up to a warp a row, 2 barriers a row beyond; one exponential an element
// source: V. Volkov, Better Performance at Lower Occupancy (2010), on registers as the largest memory of a multiprocessor

namespace upsweep {

template <class T, class Kind, u32 LANES, u32 PACKS, u32 N, u32 BLOCK, u32 RESIDENT>
__global__ void __launch_bounds__(BLOCK, RESIDENT)
    softmax_registers(const void* input, void* output, u64 rows, u64 cols, i64 pitch, u64 zero_masked, u64 first) {
  using R = typename Traits<T>::Real;
  static_assert(LANES <= WARP ? BLOCK % WARP == 0 : BLOCK == LANES, "groups of more than a warp are the whole block");
  constexpr u32 ROWS = BLOCK / LANES;
  __shared__ R shared_max[WARP];
  __shared__ R shared_sum[WARP];
  const u32 lane = threadIdx.x % LANES;
  const u64 row = first + u64(blockIdx.x) * ROWS + threadIdx.x / LANES;
  // Lanes without a row take part in the shuffles, with nothing.
  const bool has_row = ROWS == 1 || row < rows;
  const u32 count = has_row ? u32(cols) : 0;
  R value[PACKS * N];
  const bool aligned = is_aligned_to_pack<T, N>(input) && pitch % N == 0;
  load_part<T, LANES, PACKS, N>(static_cast<const T*>(input) + i64(row) * pitch, 1, aligned, count, lane, value);
  // The maximum first, in two cheap reductions instead of one of (maximum, sum): no exponential is taken twice.
  const R max = all_lanes<TakeMax, LANES>(largest_of(value), shared_max);
  R sum = exponentials_of<Kind, PACKS, N>(value, finite_or_zero(max));
  sum = all_lanes<TakeSum, LANES>(sum, shared_sum);
  if (Kind::ONE_A_ROW) {
    if (lane == 0 && has_row) static_cast<T*>(output)[row] = Narrow<T>::from(row_log_sum_exp(max, sum));
  } else {
    scale_values<Kind>(value, row_scale<Kind>(max, sum, zero_masked != 0).factor);
    store_part<T, LANES, PACKS, N>(static_cast<T*>(output) + row * cols, 1, is_aligned_to_pack<T, N>(output), count, lane, value);
  }
}

}  // namespace upsweep
