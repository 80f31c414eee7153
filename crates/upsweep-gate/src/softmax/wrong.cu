// Wrong softmaxes: each has one fault that kernels of this sort have had, and the gate must reject it. One thread a row.
// input: rows of cols f32 elements; output: one result an element, or one a row (poisoned before)
// launch: grid one block a row, block 1
// cost: none that is measured: a kernel that is rejected has no time
// source: the public fault reports that the gate's list names

namespace upsweep {

constexpr u32 ZEROS = 0, UNSHIFTED = 1, SHORT_ROWS = 2, FINITE_FLOOR = 3, TAIL = 4, MASKED = 5, LOG_OF_SOFTMAX = 6, RESET = 7,
              UNGUARDED = 8, NO_MAXIMUM = 9;

template <u32 FAULT> UPSWEEP_KERNEL wrong_softmax(const float* input, u64 cols, float* output) {
  const float* x = input + blockIdx.x * cols;
  float* y = output + (FAULT == NO_MAXIMUM ? blockIdx.x : blockIdx.x * cols);
  if (FAULT == ZEROS) {
    for (u64 i = 0; i < cols; ++i) y[i] = 0.0f;
    return;
  }
  if (FAULT == SHORT_ROWS && cols < 256) return;
  float max = FAULT == FINITE_FLOOR ? -1e4f : -UPSWEEP_INF32;
  for (u64 i = 0; i < cols; ++i) max = (max > x[i] || is_nan(max)) ? max : x[i];
  if (FAULT == UNSHIFTED) max = 0.0f;
  float sum = 0.0f;
  if (FAULT == RESET) {
    for (u64 first = 0; first < cols; first += 128) {
      const u64 end = first + 128 < cols ? first + 128 : cols;
      float tile = -UPSWEEP_INF32;
      for (u64 i = first; i < end; ++i) tile = tile > x[i] ? tile : x[i];
      for (u64 i = first; i < end; ++i) sum += expf(x[i] - tile);
    }
  } else if (FAULT == UNGUARDED) {
    float running = -UPSWEEP_INF32;
    for (u64 i = 0; i < cols; ++i) {
      const float next = running > x[i] ? running : x[i];
      sum = sum * expf(running - next) + expf(x[i] - next);
      running = next;
    }
  } else {
    const u64 end = FAULT == TAIL ? cols / 128 * 128 : cols;
    for (u64 i = 0; i < end; ++i) sum += expf(x[i] - max);
  }
  if (FAULT == NO_MAXIMUM) {
    y[0] = logf(sum);
    return;
  }
  for (u64 i = 0; i < cols; ++i) {
    const float value = expf(x[i] - max) / sum;
    y[i] = FAULT == LOG_OF_SOFTMAX ? logf(value) : value;
  }
}

}  // namespace upsweep
