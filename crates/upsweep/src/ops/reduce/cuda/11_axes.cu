// Rung 11, axes: any set of axes of any strides; long rows are cut into chunks of fixed length, each chunk reduced by a warp or a block.
// input: elements (or chunk states of the first pass) at the addresses that AxesShape describes; partials: outputs * chunks states; output: one result an output
// launch: grid up to a few thousand blocks that stride over (output, chunk) pairs, block 256; static shared memory 8 states
// cost: one read of every element, one write an output (and a chunk); a row's bits depend on its values and its length alone
// source: CUB, DeviceSegmentedReduce (one block a segment); our own chunking

namespace upsweep {

struct AxesShape {
  u64 outputs, length, chunk, chunks, count, offset;  // count: elements behind an output, also when states are read
  u64 kept_rank, reduced_rank;
  u64 kept_extent[8];
  i64 kept_stride[8];
  u64 reduced_extent[8];
  i64 reduced_stride[8];
};

UPSWEEP_DEVICE i64 axes_walk(u64 flat, u64 rank, const u64* extent, const i64* stride) {
  // The outermost dimension takes what is left, so one dimension costs no division.
  i64 offset = 0;
#pragma unroll 1  // the rank is not known here: copies of the division only cost registers and time to compile
  for (u64 d = rank; d-- > 1;) {
    offset += i64(flat % extent[d]) * stride[d];
    flat /= extent[d];
  }
  return rank == 0 ? 0 : offset + i64(flat) * stride[0];
}

// LANES threads (a warp or the whole block of 256) reduce one chunk.
template <class Op, class Source, u32 LANES> UPSWEEP_KERNEL reduce_axes(const void* input, void* partials, void* output, AxesShape shape) {
  using Item = ItemOf<Op, Source>;
  using State = typename Op::State;
  constexpr u32 BLOCK = 256;
  constexpr u32 GROUPS = BLOCK / LANES;
  __shared__ SharedStates<State, WARP> shared;
  const Item* items = static_cast<const Item*>(input);
  const u32 lane = threadIdx.x % LANES;
  const u64 work = shape.outputs * shape.chunks;
  for (u64 base = u64(blockIdx.x) * GROUPS; base < work; base += u64(gridDim.x) * GROUPS) {
    const u64 item = base + threadIdx.x / LANES;
    State state = Op::identity();
    if (item < work) {
      const u64 row = item / shape.chunks;
      const u64 first = (item % shape.chunks) * shape.chunk;
      const u64 end = first + shape.chunk < shape.length ? first + shape.chunk : shape.length;
      const Item* start = items + shape.offset + axes_walk(row, shape.kept_rank, shape.kept_extent, shape.kept_stride);
#pragma unroll 4
      for (u64 i = first + lane; i < end; i += LANES) {
        const Item x = start[axes_walk(i, shape.reduced_rank, shape.reduced_extent, shape.reduced_stride)];
        state = Op::combine(state, Source::template Of<Op>::lift(x, i));
      }
    }
    if (LANES == WARP) state = Op::warp_reduce(state);
    else {
      __syncthreads();  // the last round's states were read
      state = block_reduce<Op, BLOCK>(state, shared.get());
    }
    if (lane == 0 && item < work) {
      if (shape.chunks == 1) static_cast<typename Op::Output*>(output)[item] = Op::finish(state, shape.count);
      else static_cast<State*>(partials)[item] = state;
    }
  }
}

}  // namespace upsweep
