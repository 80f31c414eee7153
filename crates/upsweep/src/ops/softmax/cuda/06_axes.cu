// Rung 6, axes: rows along any axis of any strides: a block takes 32 rows side by side, 32 threads each; neighbouring threads follow the shorter stride.
// input: rows of any strides (RowsShape); output: C order of the input's shape (logsumexp: one a row)
// launch: grid rows / 32 (strides over more), block 1024; static shared memory 33 * 32 values
// cost: three reads and one write of every element, the later reads from the second-level cache for rows of usual length; 13 barriers for 32 rows
// source: Mission document, part C 1, turned by 90 degrees; W. Kahan, Further Remarks on Reducing Truncation Errors (1965), for the sums

namespace upsweep {

// Combines over the 32 threads of a row, in an order that does not depend on which threads they are; every thread gets
// the result. The pitch of 33 keeps both ways of walking free of bank conflicts.
template <class Take, class R> UPSWEEP_DEVICE R over_lanes(R value, R (&shared)[WARP][WARP + 1], u32 slot, u32 lane) {
  __syncthreads();  // the last result was read
  shared[slot][lane] = value;
#pragma unroll
  for (u32 step = WARP / 2; step > 0; step /= 2) {
    __syncthreads();
    if (lane < step) shared[slot][lane] = Take::combine(shared[slot][lane], shared[slot][lane + step]);
  }
  __syncthreads();
  return shared[slot][0];
}

// ACROSS: neighbouring threads are neighbouring rows, else neighbouring elements of a row.
template <class T, class Kind, bool ACROSS>
__global__ void __launch_bounds__(1024, 1) softmax_axes(const void* input, void* output, RowsShape shape, u64 zero_masked) {
  using R = typename Traits<T>::Real;
  // Fewer f64 exponentials at once: 1024 threads have 64 registers each.
  constexpr u32 AHEAD = sizeof(R) == 8 ? 2 : 4;
  __shared__ R shared[WARP][WARP + 1];
  const u32 slot = ACROSS ? threadIdx.x % WARP : threadIdx.x / WARP;
  const u32 lane = ACROSS ? threadIdx.x / WARP : threadIdx.x % WARP;
  for (u64 base = u64(blockIdx.x) * WARP; base < shape.rows; base += u64(gridDim.x) * WARP) {
    const u64 row = base + slot;
    const u64 cols = row < shape.rows ? shape.cols : 0;
    const T* source = static_cast<const T*>(input) + (row < shape.rows ? row_start(shape, row) : 0);
    R max = Traits<R>::lowest();
#pragma unroll AHEAD
    for (u64 i = lane; i < cols; i += WARP) max = max_nan(max, R(widen(source[i64(i) * shape.stride])));
    max = over_lanes<TakeMax>(max, shared, slot, lane);
    const R reference = finite_or_zero(max);
    // Compensated: a thread's share of a row has no limit, and one accumulator would stick.
    R sum = R(0), lost = R(0);
#pragma unroll AHEAD
    for (u64 i = lane; i < cols; i += WARP) {
      const R e = exp_of(R(widen(source[i64(i) * shape.stride])) - reference) - lost;
      const R next = sum + e;
      lost = (next - sum) - e;
      sum = next;
    }
    sum = over_lanes<TakeSum>(sum, shared, slot, lane);
    if (Kind::ONE_A_ROW) {
      if (lane == 0 && row < shape.rows) static_cast<T*>(output)[row] = Narrow<T>::from(row_log_sum_exp(max, sum));
    } else {
      const RowScale<R> scale = row_scale<Kind>(max, sum, zero_masked != 0);
      T* target = static_cast<T*>(output) + (row < shape.rows ? row_target(shape, row) : 0);
#pragma unroll AHEAD
      for (u64 i = lane; i < cols; i += WARP)
        target[i * shape.inner] = Narrow<T>::from(row_value<Kind>(R(widen(source[i64(i) * shape.stride])), scale));
    }
  }
}

}  // namespace upsweep
