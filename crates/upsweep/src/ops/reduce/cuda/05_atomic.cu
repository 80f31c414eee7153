// Rung 5b, atomic: every block adds its result into one accumulator, set to the identity by a launch of its own before each call.
// input: n elements; accumulator: one state in scratch (f64 for f32 sums); output: one result
// launch: initialise <<<1, 1>>>, accumulate <<<ceil(n / (2 * BLOCK)), BLOCK>>>, finish <<<1, 1>>>; static shared memory BLOCK / 32 states
// cost: one read of n items, one atomic a block on a single address; the order of additions is not fixed, so the last bits may vary
// source: mission document, stage 5 (b); CUDA C++ Programming Guide, atomic functions

namespace upsweep {

// What is accumulated in: the state, but f64 for f32 sums. At 2^28 elements half a million blocks add one after the other:
// in f32 each addition loses up to half a unit of a large total, and the gate measured 1 % on data around 1000.
template <class Op> struct Accumulator {
  using type = typename Op::State;
};
template <> struct Accumulator<Sum<float>> {
  using type = double;
};

template <class Op, class Bits> UPSWEEP_DEVICE void compare_and_swap(typename Op::State* at, typename Op::State value) {
  union Both {
    typename Op::State state;
    Bits bits;
  };
  Both seen, wanted;
  seen.bits = *reinterpret_cast<volatile Bits*>(at);
  for (;;) {
    wanted.state = Op::combine(seen.state, value);
    Bits found = atomicCAS(reinterpret_cast<Bits*>(at), seen.bits, wanted.bits);
    // Some thread's swap succeeds in every round, so this ends after at most one round a block.
    if (found == seen.bits) return;
    seen.bits = found;
  }
}
template <u32 BYTES> struct BitsOf;
template <> struct BitsOf<4> {
  using type = u32;
};
template <> struct BitsOf<8> {
  using type = u64;
};
// The native addition where the device has one; else compare and swap until nobody came between.
template <class Op> struct AtomicCombine {
  static UPSWEEP_DEVICE void run(typename Op::State* at, typename Op::State value) {
    compare_and_swap<Op, typename BitsOf<sizeof(typename Op::State)>::type>(at, value);
  }
};
template <> struct AtomicCombine<Sum<float>> {
  static UPSWEEP_DEVICE void run(double* at, float value) { atomicAdd(at, double(value)); }
};
template <> struct AtomicCombine<Sum<i32>> {
  static UPSWEEP_DEVICE void run(i64* at, i64 value) { atomicAdd(reinterpret_cast<u64*>(at), u64(value)); }
};

template <class Op> UPSWEEP_KERNEL reduce_atomic_initialise(void* accumulator) {
  *static_cast<typename Accumulator<Op>::type*>(accumulator) = Op::identity();
}

template <class Op, u32 BLOCK> UPSWEEP_KERNEL reduce_atomic(const void* input, u64 n, void* accumulator) {
  __shared__ SharedStates<typename Op::State, WARP> shared;
  const u64 first = u64(blockIdx.x) * (2 * BLOCK) + threadIdx.x;
  typename Op::State state = Op::combine(read<Op, Elements>(input, first, n), read<Op, Elements>(input, first + BLOCK, n));
  state = block_reduce<Op, BLOCK>(state, shared.get());
  if (threadIdx.x == 0) AtomicCombine<Op>::run(static_cast<typename Accumulator<Op>::type*>(accumulator), state);
}

template <class Op> UPSWEEP_KERNEL reduce_atomic_finish(const void* accumulator, void* output, u64 count) {
  *static_cast<typename Op::Output*>(output) = Op::finish(typename Op::State(*static_cast<const typename Accumulator<Op>::type*>(accumulator)), count);
}

}  // namespace upsweep
