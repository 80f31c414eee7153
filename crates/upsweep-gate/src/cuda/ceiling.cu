// The ceilings: the best plain reads and copies we know. A read has no second stage of a reduction: each block writes the
// u32 sum of its words, so that the host can tell that every word was read. A copy is compared word for word.
// input: n 32-bit words, 16-byte aligned; partials: one u32 a block; output: n words, 16-byte aligned
// launch: see each kernel
// cost: one read of n words, and 4 bytes written a block or n words
// source: measured on an H200: for reads, plain 16-byte loads from one-shot blocks and bulk copies into a ring tie within
//   0.5 %; copies are fastest with small blocks, one load a thread and, from some hundred MiB on, lines that leave the
//   cache last (1.3 %); they lose 0.2 % with streaming stores, 3 % with four loads a thread, 8 % by bulk copies

namespace upsweep {

UPSWEEP_DEVICE u32 sum_of(const Bits128& bits) { return bits.word[0] + bits.word[1] + bits.word[2] + bits.word[3]; }

// One-shot blocks: grid ceil(n / (BLOCK * PACKS * 4)), all loads of a thread in flight at once.
template <u32 BLOCK, u32 PACKS> __global__ void __launch_bounds__(BLOCK) ceiling_tiles(const void* input, u64 n, void* partials) {
  __shared__ SharedStates<u64, WARP> shared;
  const u32* words = static_cast<const u32*>(input);
  const u64 first = (u64(blockIdx.x) * BLOCK * PACKS + threadIdx.x) * 4;
  Bits128 bits[PACKS];
#pragma unroll
  for (u32 k = 0; k < PACKS; ++k) {
    const u64 at = first + u64(k) * BLOCK * 4;
    if (at + 4 <= n) bits[k] = load_bits(words + at);
    else {
      bits[k] = {{0, 0, 0, 0}};
      for (u32 i = 0; i < 4; ++i)
        if (at + i < n) bits[k].word[i] = words[at + i];
    }
  }
  u32 sum = 0;
#pragma unroll
  for (u32 k = 0; k < PACKS; ++k) sum += sum_of(bits[k]);
  sum = u32(block_reduce<WrappingSum<u32>, BLOCK>(sum, shared.get()));
  if (threadIdx.x == 0) static_cast<u32*>(partials)[blockIdx.x] = sum;
}

// One-shot blocks: grid ceil(n / (BLOCK * PACKS * 4)).
template <u32 BLOCK, u32 PACKS, bool EVICT_LAST> __global__ void __launch_bounds__(BLOCK) ceiling_copy(const void* input, u64 n, void* output) {
  const u32* words = static_cast<const u32*>(input);
  u32* copy = static_cast<u32*>(output);
  const u64 first = (u64(blockIdx.x) * BLOCK * PACKS + threadIdx.x) * 4;
  Bits128 bits[PACKS];
#pragma unroll
  for (u32 k = 0; k < PACKS; ++k) {
    const u64 at = first + u64(k) * BLOCK * 4;
    if (at + 4 <= n) bits[k] = EVICT_LAST ? load_group<u32, 4>(words + at) : load_bits(words + at);
  }
#pragma unroll
  for (u32 k = 0; k < PACKS; ++k) {
    const u64 at = first + u64(k) * BLOCK * 4;
    if (at + 4 <= n) store_bits(copy + at, bits[k]);
    else
      for (u32 i = 0; i < 4; ++i)
        if (at + i < n) copy[at + i] = words[at + i];
  }
}

}  // namespace upsweep
