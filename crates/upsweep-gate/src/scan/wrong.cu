// Wrong scans: each has one fault that kernels of this sort have had, and the gate must reject it. One thread scans
// everything, but for the fault that only several blocks can have.
// input: n elements; output: one result an element (poisoned before)
// launch: grid 1, block 1 (value_before_flag: one block for each 1024 elements, block 1)
// cost: none that is measured: a kernel that is rejected has no time
// source: the public fault reports that the gate's list names

namespace upsweep {

UPSWEEP_KERNEL wrong_scan_zeros(const float*, u64 n, float* output) {
  for (u64 i = 0; i < n; ++i) output[i] = 0.0f;
}

// A running sum that forgets its carry every BLOCK elements, or never (0).
template <u32 BLOCK, bool TAIL> UPSWEEP_KERNEL wrong_running_sum(const float* input, u64 n, float* output) {
  const u64 end = TAIL ? n : n / 1024 * 1024;
  double sum = 0.0;
  for (u64 i = 0; i < end; ++i) {
    if (BLOCK > 0 && i % BLOCK == 0) sum = 0.0;
    sum += double(input[i]);
    output[i] = float(sum);
  }
}

UPSWEEP_KERNEL wrong_initial_value_ignored(const float* input, u64 n, float* output) {
  double sum = 0.0;
  for (u64 i = 0; i < n; ++i) {
    output[i] = float(sum);
    sum += double(input[i]);
  }
}

UPSWEEP_KERNEL wrong_nan_dropping_cummax(const float* input, u64 n, float* output) {
  float best = -UPSWEEP_INF32;
  for (u64 i = 0; i < n; ++i) {
    best = input[i] > best ? input[i] : best;
    output[i] = best;
  }
}

UPSWEEP_KERNEL wrong_cumsum_in_i32(const i32* input, u64 n, i64* output) {
  i32 sum = 0;
  for (u64 i = 0; i < n; ++i) {
    sum = i32(u32(sum) + u32(input[i]));
    output[i] = sum;
  }
}

// A linear recurrence from 0 on; COMMUTED: tiles of 1024 whose carries are joined with the later one first; SHIFTED: an element
// with its predecessor's coefficient.
template <bool COMMUTED, bool SHIFTED> UPSWEEP_KERNEL wrong_recurrence(const float* input, u64 n, float* output, const float* coefficients) {
  double product = 1.0, value = 0.0, carry_product = 1.0, carry_value = 0.0;  // of the tile so far, of the tiles before it
  for (u64 i = 0; i < n; ++i) {
    if (COMMUTED && i % 1024 == 0) {
      carry_value = carry_product * value + carry_value;
      carry_product *= product;
      product = 1.0;
      value = 0.0;
    }
    const double a = coefficients[SHIFTED && i > 0 ? i - 1 : i];
    value = a * value + double(input[i]);
    product *= a;
    output[i] = float(product * carry_value + value);
  }
}

// Running sums of segments; a segment that begins with a tile of 1024 goes on from the tile before.
UPSWEEP_KERNEL wrong_key_head_lost(const float* input, u64 n, float* output, const i32* keys) {
  double sum = 0.0;
  for (u64 i = 0; i < n; ++i) {
    if (i % 1024 != 0 && keys[i] != keys[i - 1]) sum = 0.0;
    sum += double(input[i]);
    output[i] = float(sum);
  }
}

// Running sums of segments that begin one element late.
UPSWEEP_KERNEL wrong_offsets_off_by_one(const float* input, u64 n, float* output, const u64* offsets) {
  double sum = 0.0;
  u64 next = 0;  // the first offset that is not met yet
  for (u64 i = 0; i < n; ++i) {
    for (; offsets[next] < i; ++next) sum = 0.0;
    sum += double(input[i]);
    output[i] = float(sum);
  }
}

// Flags and values of the tiles, cleared.
UPSWEEP_KERNEL wrong_clear(u64* words, u64 count) {
  for (u64 i = 0; i < count; ++i) words[i] = 0;
}

// Each tile hands its prefix to the next: the value in one word, the flag in another. The fault: the value is read first.
// The wait is bounded; what came of it is wrong either way.
UPSWEEP_KERNEL wrong_value_before_flag(const float* input, u64 n, float* output, u64* words) {
  const u64 tile = blockIdx.x, first = tile * 1024, end = first + 1024 < n ? first + 1024 : n;
  u64* values = words;
  u64* flags = words + gridDim.x;
  double sum = 0.0;
  if (tile > 0) {
    const u64 value = load_relaxed(values + tile - 1);
    for (u32 spins = 0; load_relaxed(flags + tile - 1) == 0 && spins < (1u << 20); ++spins) {
    }
    sum = __longlong_as_double(i64(value));
  } else {
    for (long long start = clock64(); clock64() - start < 4000000;) {
    }
  }
  for (u64 i = first; i < end; ++i) {
    sum += double(input[i]);
    output[i] = float(sum);
  }
  store_relaxed(values + tile, u64(__double_as_longlong(sum)));
  __threadfence();
  store_relaxed(flags + tile, 1);
}

}  // namespace upsweep
