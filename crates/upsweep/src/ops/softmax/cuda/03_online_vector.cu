// Rung 3, online_vector: 16 bytes a load and a store, two loads in flight before one rescaling.
// input: rows of cols elements, pitch elements apart; output: rows of cols elements (logsumexp: one a row)
// launch: grid rows (strides over more), block BLOCK; static shared memory a state a warp
// cost: two reads and one write of every element in a quarter of the instructions (f32); 3 barriers a row
// source: J. Luitjens, CUDA Pro Tip: Increase Performance with Vectorized Memory Access (2013)

namespace upsweep {

template <class T, class Kind, u32 BLOCK>
UPSWEEP_KERNEL softmax_online_vector(const void* input, void* output, u64 rows, u64 cols, i64 pitch, u64 zero_masked) {
  using R = typename Traits<T>::Real;
  using Op = LogSumExp<R>;
  using State = typename Op::State;
  constexpr u32 N = pack_size<T>();
  constexpr u32 PACKS = 2;
  constexpr u32 TILE = BLOCK * PACKS * N;
  __shared__ SharedStates<State, WARP> shared;
  __shared__ SharedStates<State, 1> whole;
  const u64 packed = cols / N * N;
  for (u64 row = blockIdx.x; row < rows; row += gridDim.x) {
    const T* source = static_cast<const T*>(input) + i64(row) * pitch;
    const bool aligned = is_aligned_to_pack<T, N>(source);
    State state = Op::identity();
    for (u64 first = 0; first < packed; first += TILE) {
      R x[PACKS * N];
      load_part<T, BLOCK, PACKS, N>(source + first, 1, aligned, u32(packed - first < TILE ? packed - first : TILE), threadIdx.x, x);
      state = Op::template neighbours<PACKS * N>(state, x, 0);
    }
    // Fewer elements than a pack: at the row's end only.
    const u64 tail = packed + threadIdx.x;
    if (tail < cols) state = Op::combine(state, Op::lift(R(widen(source[tail])), 0));
    state = block_reduce<Op, BLOCK>(state, shared.get());
    if (threadIdx.x == 0) *whole.get() = state;
    __syncthreads();
    state = *whole.get();
    if (Kind::ONE_A_ROW) {
      if (threadIdx.x == 0) static_cast<T*>(output)[row] = Narrow<T>::from(row_log_sum_exp(state.max, state.sum));
    } else {
      const RowScale<R> scale = row_scale<Kind>(state.max, state.sum, zero_masked != 0);
      T* target = static_cast<T*>(output) + row * cols;
      const bool aligned_target = is_aligned_to_pack<T, N>(target);
      for (u64 first = 0; first < packed; first += TILE) {
        const u32 count = u32(packed - first < TILE ? packed - first : TILE);
        R x[PACKS * N];
        load_part<T, BLOCK, PACKS, N>(source + first, 1, aligned, count, threadIdx.x, x);
#pragma unroll
        for (u32 i = 0; i < PACKS * N; ++i) x[i] = row_value<Kind>(x[i], scale);
        store_part<T, BLOCK, PACKS, N>(target + first, 1, aligned_target, count, threadIdx.x, x);
      }
      if (tail < cols) target[tail] = Narrow<T>::from(row_value<Kind>(R(widen(source[tail])), scale));
    }
    __syncthreads();  // the shared states were read
  }
}

}  // namespace upsweep
