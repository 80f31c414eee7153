// Rung 1, three_pass: the row's maximum is subtracted first, so no exponential exceeds 1: maximum, sum, output, one block a row.
// input: rows of cols elements, pitch elements apart; output: rows of cols elements (logsumexp: one a row)
// launch: grid rows (strides over more), block BLOCK; static shared memory a value a warp, twice
// cost: three reads and one write of every element; 3 barriers a row; two exponentials an element
// source: Mission document, part C 1; P. Blanchard, D. Higham, N. Higham, Accurately Computing the Log-Sum-Exp and Softmax Functions (2021)

namespace upsweep {

template <class T, class Kind, u32 BLOCK>
UPSWEEP_KERNEL softmax_three_pass(const void* input, void* output, u64 rows, u64 cols, i64 pitch, u64 zero_masked) {
  using R = typename Traits<T>::Real;
  __shared__ R shared_max[WARP];
  __shared__ R shared_sum[WARP];
  for (u64 row = blockIdx.x; row < rows; row += gridDim.x) {
    const T* source = static_cast<const T*>(input) + i64(row) * pitch;
    R max = Traits<R>::lowest();
    for (u64 i = threadIdx.x; i < cols; i += BLOCK) max = max_nan(max, R(widen(source[i])));
    max = all_lanes<TakeMax, BLOCK>(max, shared_max);
    const R reference = finite_or_zero(max);
    R sum = R(0);
    for (u64 i = threadIdx.x; i < cols; i += BLOCK) sum += exp_of(R(widen(source[i])) - reference);
    sum = all_lanes<TakeSum, BLOCK>(sum, shared_sum);
    if (Kind::ONE_A_ROW) {
      if (threadIdx.x == 0) static_cast<T*>(output)[row] = Narrow<T>::from(row_log_sum_exp(max, sum));
    } else {
      const RowScale<R> scale = row_scale<Kind>(max, sum, zero_masked != 0);
      T* target = static_cast<T*>(output) + row * cols;
      for (u64 i = threadIdx.x; i < cols; i += BLOCK) target[i] = Narrow<T>::from(row_value<Kind>(R(widen(source[i])), scale));
    }
    __syncthreads();  // the shared values were read
  }
}

}  // namespace upsweep
