// Rung 2, online: maximum and sum in one pass: when the running maximum grows, the running sum is rescaled; partial states merge the same way.
// input: rows of cols elements, pitch elements apart; output: rows of cols elements (logsumexp: one a row)
// launch: grid rows (strides over more), block BLOCK; static shared memory a state a warp
// cost: two reads and one write of every element; 3 barriers a row; one rescaling for every 8 elements a thread reads
// source: Mission document, part C 2; M. Milakov, N. Gimelshein, Online Normalizer Calculation for Softmax (2018)

namespace upsweep {

template <class T, class Kind, u32 BLOCK>
UPSWEEP_KERNEL softmax_online(const void* input, void* output, u64 rows, u64 cols, i64 pitch, u64 zero_masked) {
  using R = typename Traits<T>::Real;
  using Op = LogSumExp<R>;
  using State = typename Op::State;
  constexpr u32 TOGETHER = 8;
  __shared__ SharedStates<State, WARP> shared;
  __shared__ SharedStates<State, 1> whole;
  for (u64 row = blockIdx.x; row < rows; row += gridDim.x) {
    const T* source = static_cast<const T*>(input) + i64(row) * pitch;
    State state = Op::identity();
    for (u64 first = threadIdx.x; first < cols; first += u64(BLOCK) * TOGETHER) {
      R x[TOGETHER];
#pragma unroll
      for (u32 k = 0; k < TOGETHER; ++k) {
        const u64 i = first + u64(k) * BLOCK;
        x[k] = i < cols ? R(widen(source[i])) : Traits<R>::lowest();
      }
      state = Op::template neighbours<TOGETHER>(state, x, 0);
    }
    state = block_reduce<Op, BLOCK>(state, shared.get());
    if (threadIdx.x == 0) *whole.get() = state;
    __syncthreads();
    state = *whole.get();
    if (Kind::ONE_A_ROW) {
      if (threadIdx.x == 0) static_cast<T*>(output)[row] = Narrow<T>::from(row_log_sum_exp(state.max, state.sum));
    } else {
      const RowScale<R> scale = row_scale<Kind>(state.max, state.sum, zero_masked != 0);
      T* target = static_cast<T*>(output) + row * cols;
      for (u64 i = threadIdx.x; i < cols; i += BLOCK) target[i] = Narrow<T>::from(row_value<Kind>(R(widen(source[i])), scale));
    }
    __syncthreads();  // the shared states were read
  }
}

}  // namespace upsweep
