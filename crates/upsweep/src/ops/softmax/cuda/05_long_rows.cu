// Rung 5, long_rows: a row longer than a block's registers is cut into chunks of fixed length; their states are merged, and the chunks read again.
// input: rows of any strides (RowsShape); states: rows * chunks, then rows, in scratch; output: rows of cols elements (logsumexp: one a row)
// launch: states and outputs: grid rows * chunks, merge: grid rows (all stride over more); block BLOCK; chunk = BLOCK * PACKS * N
// cost: two reads and one write of every element, one state a chunk; 2 barriers a chunk; three launches; the order of additions is fixed
// source: M. Milakov, N. Gimelshein (2018), section 3, on merging (m, l) of parts

namespace upsweep {

template <class T, u32 PACKS, u32 N, u32 BLOCK>
UPSWEEP_DEVICE u32 load_chunk(const T* input, const RowsShape& shape, u64 row, u64 first, typename Traits<T>::Real (&value)[PACKS * N]) {
  const u64 rest = shape.cols - first;
  const u32 count = u32(rest < shape.chunk ? rest : shape.chunk);
  const i64 stride = N > 1 ? 1 : shape.stride;
  const T* source = input + row_start(shape, row) + i64(first) * stride;
  load_part<T, BLOCK, PACKS, N>(source, stride, is_aligned_to_pack<T, N>(source), count, threadIdx.x, value);
  return count;
}

template <class T, u32 PACKS, u32 N, u32 BLOCK>
__global__ void __launch_bounds__(BLOCK) softmax_chunk_states(const void* input, void* states, RowsShape shape) {
  using R = typename Traits<T>::Real;
  __shared__ R shared_max[WARP];
  __shared__ R shared_sum[WARP];
  for (u64 item = blockIdx.x; item < shape.rows * shape.chunks; item += gridDim.x) {
    R value[PACKS * N];
    load_chunk<T, PACKS, N, BLOCK>(static_cast<const T*>(input), shape, item / shape.chunks, item % shape.chunks * shape.chunk, value);
    const R max = all_lanes<TakeMax, BLOCK>(largest_of(value), shared_max);
    R sum = exponentials_of<Softmax, PACKS, N>(value, finite_or_zero(max));
    sum = all_lanes<TakeSum, BLOCK>(sum, shared_sum);
    if (threadIdx.x == 0) static_cast<MaxSum<R>*>(states)[item] = {max, sum};
  }
}

// One block a row; the maximum first, so that every sum is rescaled once, whatever the number of chunks.
template <class T, class Kind, u32 BLOCK>
UPSWEEP_KERNEL softmax_merge_states(const void* states, void* row_states, void* output, u64 rows, u64 chunks) {
  using R = typename Traits<T>::Real;
  __shared__ R shared_max[WARP];
  __shared__ R shared_sum[WARP];
  for (u64 row = blockIdx.x; row < rows; row += gridDim.x) {
    const MaxSum<R>* state = static_cast<const MaxSum<R>*>(states) + row * chunks;
    R max = Traits<R>::lowest();
    for (u64 i = threadIdx.x; i < chunks; i += BLOCK) max = max_nan(max, state[i].max);
    max = all_lanes<TakeMax, BLOCK>(max, shared_max);
    const R reference = finite_or_zero(max);
    R sum = R(0);
    for (u64 i = threadIdx.x; i < chunks; i += BLOCK) sum += state[i].sum * exp_of(state[i].max - reference);
    sum = all_lanes<TakeSum, BLOCK>(sum, shared_sum);
    if (threadIdx.x == 0) {
      if (Kind::ONE_A_ROW) static_cast<T*>(output)[row] = Narrow<T>::from(row_log_sum_exp(max, sum));
      else static_cast<MaxSum<R>*>(row_states)[row] = {max, sum};
    }
  }
}

template <class T, class Kind, u32 PACKS, u32 N, u32 BLOCK>
__global__ void __launch_bounds__(BLOCK) softmax_chunk_outputs(const void* input, const void* row_states, void* output, RowsShape shape, u64 zero_masked) {
  using R = typename Traits<T>::Real;
  // Backwards: what the first pass read last is still in the second-level cache.
  const u64 items = shape.rows * shape.chunks;
  for (u64 turn = blockIdx.x; turn < items; turn += gridDim.x) {
    const u64 item = items - 1 - turn;
    const u64 row = item / shape.chunks, first = item % shape.chunks * shape.chunk;
    R value[PACKS * N];
    const u32 count = load_chunk<T, PACKS, N, BLOCK>(static_cast<const T*>(input), shape, row, first, value);
    const MaxSum<R> state = static_cast<const MaxSum<R>*>(row_states)[row];
    const RowScale<R> scale = row_scale<Kind>(state.max, state.sum, zero_masked != 0);
#pragma unroll
    for (u32 i = 0; i < PACKS * N; ++i) value[i] = row_value<Kind>(value[i], scale);
    const i64 stride = N > 1 ? 1 : i64(shape.inner);
    T* target = static_cast<T*>(output) + row_target(shape, row) + i64(first) * stride;
    store_part<T, BLOCK, PACKS, N>(target, stride, is_aligned_to_pack<T, N>(target), count, threadIdx.x, value);
  }
}

}  // namespace upsweep
