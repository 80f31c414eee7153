// Rung 11, cluster: small inputs; the blocks of one cluster hand their states to its first block through distributed shared memory.
// input: n elements; output: one result
// launch: grid CLUSTER blocks in one cluster, block BLOCK; static shared memory BLOCK / 32 + CLUSTER states
// cost: one read of n items, one remote shared write a block, one cluster barrier; no global memory between blocks; order of additions fixed
// source: CUDA C++ Programming Guide, thread block clusters and distributed shared memory

namespace upsweep {

template <class Op, u32 BLOCK, u32 PACKS, u32 CLUSTER>
__global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(BLOCK) reduce_cluster(const void* input, u64 n, void* output, u64 count) {
#if __CUDA_ARCH__ >= 900
  using State = typename Op::State;
  __shared__ SharedStates<State, WARP> shared;
  __shared__ Words<State> gathered[CLUSTER];
  cluster_arrive();  // the first block must have started before anyone writes to its shared memory
  State state = block_reduce<Op, BLOCK>(stream_packs<Op, BLOCK, PACKS>(input, n), shared.get());
  cluster_wait();
  if (threadIdx.x == 0) {
    Words<State> words = to_words(state);
#pragma unroll
    for (u32 i = 0; i < Words<State>::COUNT; ++i) cluster_store(&gathered[cluster_rank()].word[i], 0, words.word[i]);
  }
  cluster_arrive();
  cluster_wait();
  if (cluster_rank() == 0 && threadIdx.x < WARP) {
    state = threadIdx.x < CLUSTER ? from_words<State>(gathered[threadIdx.x]) : Op::identity();
    state = warp_reduce<Op>(state);
    if (threadIdx.x == 0) *static_cast<typename Op::Output*>(output) = Op::finish(state, count);
  }
#endif
}

}  // namespace upsweep
