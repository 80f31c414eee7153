// Kernels with one fault each, and the same without it: what the simulator must say of each line, and what it must not say.
// input: 2048 floats; output: 2048 floats; launch: the grid and block that the test names, mostly 8 blocks of 256

namespace upsweep {

constexpr u32 B = 256;
UPSWEEP_DEVICE u32 index() { return blockIdx.x * B + threadIdx.x; }

// WITHOUT a barrier between writing and reading what others wrote.
template <bool WITHOUT> UPSWEEP_KERNEL shared_race(const float* input, float* output) {
  __shared__ float tree[B];
  tree[threadIdx.x] = input[index()];
  if (!WITHOUT) __syncthreads();
  output[index()] = tree[B - 1 - threadIdx.x];  // fault: race in shared memory
}

// The last warp without __syncwarp, as before Volta.
template <bool WITHOUT> UPSWEEP_KERNEL warp_race(const float* input, float* output) {
  __shared__ float tree[64];
  if (threadIdx.x < 64) tree[threadIdx.x] = input[index()];
  __syncthreads();
  if (threadIdx.x < 32) {
    for (u32 step = 32; step > 0; step /= 2) {
      const float other = threadIdx.x < step ? tree[threadIdx.x + step] : 0.0f;
      if (!WITHOUT) __syncwarp();
      if (threadIdx.x < step) tree[threadIdx.x] += other;  // fault: race in shared memory
      if (!WITHOUT) __syncwarp();
    }
  }
  output[index()] = threadIdx.x == 0 ? tree[0] : 0.0f;
}

// Neighbours of one block, without a barrier, in global memory.
template <bool WITHOUT> UPSWEEP_KERNEL global_race_in_block(const float* input, float* output) {
  output[index()] = input[index()];
  if (!WITHOUT) __syncthreads();
  const float other = output[blockIdx.x * B + (threadIdx.x + 32) % B];  // fault: race in global memory
  __syncthreads();
  output[index()] = other;
}

// Block 1 and later read what the block before wrote.
template <bool WITHOUT> UPSWEEP_KERNEL global_race_of_blocks(const float* input, float* output) {
  output[index()] = input[index()];
  __syncthreads();
  const float other = WITHOUT && blockIdx.x > 0 ? output[index() - B] : 0.0f;  // fault: race in global memory
  if (other == -1.0f) output[index()] = other;
}

// Handed over by a counter, WITHOUT the fences.
template <bool WITHOUT> UPSWEEP_KERNEL handed_over(const float* input, float* output, Control* control) {
  __shared__ bool is_last;
  if (threadIdx.x > 0) output[index()] = input[index()];
  if (threadIdx.x == 0) {
    output[index()] = input[index()];
    if (!WITHOUT) __threadfence();
    is_last = atomicInc(&control->counter, gridDim.x - 1) == gridDim.x - 1;
    if (!WITHOUT) __threadfence();
  }
  __syncthreads();
  if (!is_last || threadIdx.x > 0) return;
  float sum = 0.0f;
  for (u32 block = 0; block < gridDim.x; ++block) sum += output[block * B];  // fault: race in global memory
  if (sum == -1.0f) output[0] = sum;
}

template <bool BEYOND> UPSWEEP_KERNEL out_of_bounds(const float* input, float* output) {
  output[index()] = input[index() + (BEYOND ? 1 : 0)];  // fault: access out of bounds
}
template <bool BEYOND> UPSWEEP_KERNEL out_of_bounds_store(const float* input, float* output) {
  if (BEYOND && index() == 0) output[2048] = 0.0f;  // fault: access out of bounds
  output[index()] = input[index()];
}
template <bool BEYOND> UPSWEEP_KERNEL stored_input(const float* input, float* output) {
  output[index()] = input[index()];
  if (BEYOND) const_cast<float*>(input)[index()] = 0.0f;  // fault: access out of bounds
}

template <bool NOTHING> UPSWEEP_KERNEL uninitialised_shared(const float* input, float* output) {
  __shared__ float row[B];
  if (!NOTHING || threadIdx.x != 7) row[threadIdx.x] = input[index()];
  __syncthreads();
  output[index()] = row[threadIdx.x];  // fault: read of uninitialised memory
}
template <bool NOTHING> UPSWEEP_KERNEL uninitialised_output(const float* input, float* output) {
  if (!NOTHING) output[index()] = 0.0f;
  output[index()] += input[index()];  // fault: read of uninitialised memory
}
template <bool NOTHING> UPSWEEP_KERNEL unwritten_output(const float* input, float* output) {
  if (!NOTHING || index() != 77) output[index()] = input[index()];
}

template <bool DIVERGES> UPSWEEP_KERNEL barrier_divergence(const float* input, float* output) {
  if (DIVERGES && threadIdx.x < 32) {
    output[index()] = input[index()];
    __syncthreads();  // fault: barrier divergence
  } else {
    output[index()] = 2.0f * input[index()];
    __syncthreads();
  }
}
template <bool EARLY> UPSWEEP_KERNEL early_return(const float* input, float* output) {
  output[index()] = input[index()];
  if (EARLY && threadIdx.x > 99) return;
  __syncthreads();  // fault: early return before a barrier
}

template <bool ABSENT> UPSWEEP_KERNEL absent_lane(const float* input, float* output) {
  float value = input[index()];
  if (threadIdx.x % 32 < 16) value += __shfl_down_sync(0xffffu, value, ABSENT ? 8 : 0);  // fault: shuffle from an absent lane
  output[index()] = value;
}
template <bool ABSENT> UPSWEEP_KERNEL deadlock_of_warp(const float* input, float* output) {
  float value = input[index()];
  if (threadIdx.x % 32 < 16) value += __shfl_down_sync(ABSENT ? FULL_WARP : 0xffffu, value, 0);  // fault: deadlock of a warp
  __syncthreads();
  output[index()] = value;
}

// Waits for a word that only a later block would write.
template <bool FOREVER> UPSWEEP_KERNEL endless_spin(const float* input, float* output, Control* control) {
  output[index()] = input[index()];
  if (FOREVER && threadIdx.x == 0) {
    while (load_relaxed(&control->leaving) == 0) {  // fault: endless spin
    }
  }
}
template <bool FOREVER> UPSWEEP_KERNEL endless_loop(const float* input, float* output, u64 nothing) {
  output[index()] = input[index()];
  for (u64 i = 1; FOREVER && i != nothing; i += 2) {  // fault: endless spin
  }
}

// An access of 8 bytes at an address that is a multiple of 4.
template <bool SHIFTED> UPSWEEP_KERNEL misaligned(const float* input, float* output) {
  const u32 pair = 2 * (index() / 2) + (SHIFTED && index() < 2046 ? 1 : 0);
  output[index()] = widen(float(reinterpret_cast<const u64*>(input + pair)[0] & 1));  // fault: misaligned access
}

}  // namespace upsweep
