// Rung 0, unshifted: the formula as written, exp(x) / sum(exp(x)). It overflows from x = 88.7 in f32: kept to be seen failing.
// input: rows of cols elements, pitch elements apart; output: rows of cols elements (logsumexp: one a row)
// launch: grid rows (strides over more), block BLOCK; static shared memory a value a warp
// cost: two reads and one write of every element; 1 barrier a row; right for logits of moderate size only
// source: the definition; I. Goodfellow, Y. Bengio, A. Courville, Deep Learning (2016), section 4.1, on its overflow

namespace upsweep {

template <class T, class Kind, u32 BLOCK>
UPSWEEP_KERNEL softmax_unshifted(const void* input, void* output, u64 rows, u64 cols, i64 pitch, u64 zero_masked) {
  using R = typename Traits<T>::Real;
  __shared__ R shared[WARP];
  for (u64 row = blockIdx.x; row < rows; row += gridDim.x) {
    const T* source = static_cast<const T*>(input) + i64(row) * pitch;
    R sum = R(0);
    for (u64 i = threadIdx.x; i < cols; i += BLOCK) sum += exp_of(R(widen(source[i])));
    sum = all_lanes<TakeSum, BLOCK>(sum, shared);
    // The scale of a row with maximum 0; a sum of 0, infinity or NaN stands for a maximum that is not finite.
    const R max = sum == R(0) ? Traits<R>::lowest() : is_finite(sum) ? R(0) : sum;
    if (Kind::ONE_A_ROW) {
      if (threadIdx.x == 0) static_cast<T*>(output)[row] = Narrow<T>::from(row_log_sum_exp(max, sum));
    } else {
      const RowScale<R> scale = row_scale<Kind>(max, sum, zero_masked != 0);
      T* target = static_cast<T*>(output) + row * cols;
      for (u64 i = threadIdx.x; i < cols; i += BLOCK) target[i] = Narrow<T>::from(row_value<Kind>(R(widen(source[i])), scale));
    }
    __syncthreads();  // `shared` was read
  }
}

}  // namespace upsweep
