// Rung 6, axes: any axis of any strides: a warp or a block for each row, which walks along it and carries its state from step to step.
// input: elements at the addresses that ScanRows describes; output: contiguous results; both walked backwards for a reverse scan
// launch: grid up to a few thousand blocks that stride over the rows, block 256; static shared memory 8 states
// cost: one read and one write of every element; 2 barriers a step of 1024 elements where a block has the row; a row's bits depend on its values and its length alone
// source: CUB, DeviceSegmentedScan, for one group a segment; our own walk

namespace upsweep {

struct ScanRows {
  u64 rows, length, inner;
  i64 input_first, output_first, output_step;  // of element 0 of row 0, in scan order; output rows are `inner` neighbours
  u64 initial, exclusive;
  u64 kept_rank, reduced_rank;
  u64 kept_extent[8];
  i64 kept_stride[8];
  u64 reduced_extent[8];
  i64 reduced_stride[8];
};

UPSWEEP_DEVICE i64 rows_walk(u64 flat, u64 rank, const u64* extent, const i64* stride) {
  // The outermost dimension takes what is left, so one dimension costs no division.
  i64 offset = 0;
#pragma unroll 1  // the rank is not known here: copies of the division only cost registers and time to compile
  for (u64 d = rank; d-- > 1;) {
    offset += i64(flat % extent[d]) * stride[d];
    flat /= extent[d];
  }
  return rank == 0 ? 0 : offset + i64(flat) * stride[0];
}

// LANES threads (a warp or the whole block of 256) scan one row in steps of ROWS * LANES elements; a warp's elements are
// neighbours of the row.
template <class Op, u32 LANES, u32 ROWS> UPSWEEP_KERNEL scan_axes(const void* input, const void* beside, void* output, ScanRows shape) {
  using T = typename Op::Input;
  using State = typename Op::State;
  using C = Carry<Op>;
  constexpr u32 BLOCK = 256;
  constexpr u32 GROUPS = BLOCK / LANES;
  constexpr u32 WARPS = LANES / WARP;
  __shared__ SharedStates<State, WARP> shared;
  const u32 lane = threadIdx.x % WARP, warp = threadIdx.x % LANES / WARP;
  const Results<Op> result = {shape.initial, shape.exclusive != 0};
  // A group stays together: all its lanes have the same row.
  for (u64 row = u64(blockIdx.x) * GROUPS + threadIdx.x / LANES; row < shape.rows; row += u64(gridDim.x) * GROUPS) {
    const i64 origin = shape.input_first + rows_walk(row, shape.kept_rank, shape.kept_extent, shape.kept_stride);
    const T* from = static_cast<const T*>(input) + origin;
    const T* coefficients = BESIDE<Op> == Beside::COEFFICIENTS ? static_cast<const T*>(beside) + origin : from;
    typename Op::Output* to =
        static_cast<typename Op::Output*>(output) + shape.output_first + i64(row / shape.inner * (shape.length * shape.inner) + row % shape.inner);
    typename C::State carry = C::raise(result.start());
    for (u64 step = 0; step < shape.length; step += LANES * ROWS) {
      const u64 first = step + warp * (WARP * ROWS) + lane;
      State item[ROWS];
#pragma unroll
      for (u32 k = 0; k < ROWS; ++k) {
        const u64 i = first + k * WARP;
        item[k] = Op::identity();
        if (i < shape.length) {
          const i64 at = rows_walk(i, shape.reduced_rank, shape.reduced_extent, shape.reduced_stride);
          item[k] = lift_with<Op>(from[at], coefficients[at]);
        }
      }
      State total = Op::identity(), before[ROWS];
#pragma unroll
      for (u32 k = 0; k < ROWS; ++k) {
        item[k] = warp_scan<Op>(item[k]);
        const State left = shuffle_up(item[k], 1);
        before[k] = lane == 0 ? total : Op::combine(total, left);
        item[k] = Op::combine(total, item[k]);
        total = shuffle_from(item[k], WARP - 1);
      }
      State front = C::lower(carry);
      if constexpr (WARPS > 1) {
        if (lane == 0) shared.get()[warp] = total;
        __syncthreads();
        front = C::lower(C::join(carry, C::raise(first_warps<Op, WARPS>(shared.get(), warp))));
        total = first_warps<Op, WARPS>(shared.get(), WARPS);
        __syncthreads();  // the totals of this step were read
      }
      carry = C::join(carry, C::raise(total));
#pragma unroll
      for (u32 k = 0; k < ROWS; ++k) {
        const u64 i = first + k * WARP;
        if (i < shape.length) to[i64(i) * shape.output_step] = result.of(Op::combine(front, before[k]), Op::combine(front, item[k]), false);
      }
    }
  }
}

}  // namespace upsweep
