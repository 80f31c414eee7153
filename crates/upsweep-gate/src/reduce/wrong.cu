// Wrong kernels: each has one fault that kernels of this sort have had, and the gate must reject it. Small on purpose: one
// block reduces everything.
// input: n elements; output: one result (poisoned before)
// launch: grid 1, block 256; static shared memory 256 states
// cost: none that is measured: a kernel that is rejected has no time
// source: the public fault reports that each kernel names

namespace upsweep {

constexpr u32 WRONG_BLOCK = 256;

// A right reduction of the first n elements by one block, valid in thread 0, so that each kernel has its one fault only.
template <class Op> UPSWEEP_DEVICE typename Op::State whole_block(const void* input, u64 n) {
  __shared__ SharedStates<typename Op::State, WARP> shared;
  typename Op::State state = Op::identity();
  for (u64 i = threadIdx.x; i < n; i += WRONG_BLOCK) state = Op::combine(state, read<Op, Elements>(input, i, n));
  return block_reduce<Op, WRONG_BLOCK>(state, shared.get());
}
template <class Op> UPSWEEP_DEVICE void write_result(void* output, typename Op::State state, u64 count) {
  if (threadIdx.x == 0) *static_cast<typename Op::Output*>(output) = Op::finish(state, count);
}

// The tail is forgotten.
template <class Op> UPSWEEP_KERNEL wrong_dropped_last_element(const void* input, u64 n, void* output) {
  write_result<Op>(output, whole_block<Op>(input, n - 1), n);
}
template <class Op> UPSWEEP_KERNEL wrong_dropped_last_tile(const void* input, u64 n, void* output) {
  write_result<Op>(output, whole_block<Op>(input, n / 1024 * 1024), n);
}
// Nothing, or not the reduction, is written.
template <class Op> UPSWEEP_KERNEL wrong_stale_output(const void* input, u64 n, void* output) {}
template <class Op> UPSWEEP_KERNEL wrong_zeros(const void* input, u64 n, void* output) {
  if (threadIdx.x == 0) *static_cast<typename Op::Output*>(output) = typename Op::Output(0);
}
template <class Op> UPSWEEP_KERNEL wrong_copy_of_input(const void* input, u64 n, void* output) {
  if (threadIdx.x == 0) *static_cast<typename Op::Output*>(output) = *static_cast<const typename Op::Input*>(input);
}
// The output is never zeroed (the document's atomic variant).
template <class Op> UPSWEEP_KERNEL wrong_accumulates(const void* input, u64 n, void* output) {
  typename Op::State state = whole_block<Op>(input, n);
  if (threadIdx.x == 0) atomicAdd(static_cast<typename Op::Output*>(output), state);
}
// The sum is kept in the storage type (pytorch#2391).
template <class Op> UPSWEEP_KERNEL wrong_f16_accumulator(const void* input, u64 n, void* output) {
  if (threadIdx.x != 0) return;
  const f16* x = static_cast<const f16*>(input);
  f16 sum = Narrow<f16>::from(0.0f);
  for (u64 i = 0; i < n; ++i) sum = Narrow<f16>::from(widen(sum) + widen(x[i]));
  *static_cast<f16*>(output) = sum;
}
// fmaxf returns the number when one argument is NaN (burn#4814).
template <class Op> UPSWEEP_KERNEL wrong_nan_dropping_max(const void* input, u64 n, void* output) {
  if (threadIdx.x != 0) return;
  const float* x = static_cast<const float*>(input);
  float best = -UPSWEEP_INF32;
  for (u64 i = 0; i < n; ++i) best = fmaxf(best, x[i]);
  *static_cast<float*>(output) = best;
}
// The last of equal elements wins (pytorch#10370).
template <class Op> UPSWEEP_KERNEL wrong_last_tie(const void* input, u64 n, void* output) {
  if (threadIdx.x != 0) return;
  const float* x = static_cast<const float*>(input);
  u64 best = 0;
  for (u64 i = 1; i < n; ++i)
    if (x[i] >= x[best]) best = i;
  *static_cast<u64*>(output) = best;
}
// FLT_MAX, or the least positive number, where an infinity belongs (cub#662, CNTK#2280).
template <class Op> UPSWEEP_KERNEL wrong_finite_sentinel(const void* input, u64 n, void* output) {
  float best = __int_as_float(0xff7fffff);
  const float* x = static_cast<const float*>(input);
  for (u64 i = 0; i < n; ++i) best = x[i] > best ? x[i] : best;
  if (threadIdx.x == 0) *static_cast<float*>(output) = best;
}
template <class Op> UPSWEEP_KERNEL wrong_positive_seed(const void* input, u64 n, void* output) {
  float best = __int_as_float(0x00800000);
  const float* x = static_cast<const float*>(input);
  for (u64 i = 0; i < n; ++i) best = x[i] > best ? x[i] : best;
  if (threadIdx.x == 0) *static_cast<float*>(output) = best;
}
// The index goes through 16 bits.
template <class Op> UPSWEEP_KERNEL wrong_narrow_index(const void* input, u64 n, void* output) {
  typename Op::State state = whole_block<Op>(input, n);
  if (threadIdx.x == 0) *static_cast<u64*>(output) = u16(Op::finish(state, n));
}
// A sum of i32 in 32 bits (cumo#224).
template <class Op> UPSWEEP_KERNEL wrong_sum_in_i32(const void* input, u64 n, void* output) {
  typename Op::State state = whole_block<Op>(input, n);
  if (threadIdx.x == 0) *static_cast<i64*>(output) = i32(state);
}
// The barrier between writing and reading shared memory is missing. One warp is held back until the others have read,
// so that the wrong order is certain and not a matter of luck.
template <class Op> UPSWEEP_KERNEL wrong_missing_barrier(const void* input, u64 n, void* output) {
  __shared__ SharedStates<typename Op::State, WRONG_BLOCK> shared;
  volatile float* tree = reinterpret_cast<volatile float*>(shared.get());
  const u32 tid = threadIdx.x;
  tree[tid] = 0.0f;
  __syncthreads();
  float sum = 0.0f;
  for (u64 i = tid; i < n; i += WRONG_BLOCK) sum += static_cast<const float*>(input)[i];
  if (tid / WARP == 1) {
    for (long long start = clock64(); clock64() - start < 4000000;) {
    }
  }
  tree[tid] = sum;
  // __syncthreads() belongs here.
  if (tid == 0) {
    float total = 0.0f;
    for (u32 i = 0; i < WRONG_BLOCK; ++i) total += tree[i];
    *static_cast<float*>(output) = total;
  }
}

}  // namespace upsweep
