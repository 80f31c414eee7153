// CUB's device-wide reductions behind a C interface, so that they are timed by the same timer, on the same buffers and
// behind the same verification as our own rungs (`upsweep bench reduce --device cuda --peer FILE`).
// Build on the machine with the GPU: nvcc -O3 -std=c++17 -arch=native -shared -Xcompiler -fPIC cub_reduce.cu -o libcub_reduce.so
#include <cub/cub.cuh>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cstdint>

namespace {

struct Widen {
  template <class T> __host__ __device__ float operator()(T x) const { return static_cast<float>(x); }
};

// What CUB writes for an arg-reduction: the value is not part of our output.
struct Scratch {
  void* temporary;
  size_t bytes;
};

enum Operator { SUM = 0, MAX = 3, ARG_MAX = 5 };  // rows of the operator table
enum Type { F32 = 0, F64 = 1, F16 = 2, BF16 = 3, I32 = 4, I64 = 5 };  // rows of the dtype table

template <class T> cudaError_t sum(Scratch& s, const void* input, void* output, uint64_t n, cudaStream_t stream) {
  return cub::DeviceReduce::Sum(s.temporary, s.bytes, static_cast<const T*>(input), static_cast<T*>(output), n, stream);
}
// Sums of 16-bit floats with an f32 accumulator and an f32 result, as CUB users write them.
template <class T> cudaError_t wide_sum(Scratch& s, const void* input, void* output, uint64_t n, cudaStream_t stream) {
  return cub::DeviceReduce::TransformReduce(s.temporary, s.bytes, static_cast<const T*>(input), static_cast<float*>(output), n,
                                            ::cuda::std::plus<>{}, Widen{}, 0.0f, stream);
}
template <class T> cudaError_t maximum(Scratch& s, const void* input, void* output, uint64_t n, cudaStream_t stream) {
  return cub::DeviceReduce::Max(s.temporary, s.bytes, static_cast<const T*>(input), static_cast<T*>(output), n, stream);
}
// The first 8 bytes of the output take the index, the next ones the value.
template <class T> cudaError_t arg_maximum(Scratch& s, const void* input, void* output, uint64_t n, cudaStream_t stream) {
  auto* index = static_cast<int64_t*>(output);
  return cub::DeviceReduce::ArgMax(s.temporary, s.bytes, static_cast<const T*>(input), reinterpret_cast<T*>(index + 1), index,
                                   static_cast<int64_t>(n), stream);
}

cudaError_t run(int op, int type, Scratch& s, const void* input, void* output, uint64_t n, cudaStream_t stream) {
  switch (op * 16 + type) {
    case SUM * 16 + F32: return sum<float>(s, input, output, n, stream);
    case SUM * 16 + F64: return sum<double>(s, input, output, n, stream);
    case SUM * 16 + I64: return sum<int64_t>(s, input, output, n, stream);
    case SUM * 16 + F16: return wide_sum<__half>(s, input, output, n, stream);
    case SUM * 16 + BF16: return wide_sum<__nv_bfloat16>(s, input, output, n, stream);
    case MAX * 16 + F32: return maximum<float>(s, input, output, n, stream);
    case ARG_MAX * 16 + F32: return arg_maximum<float>(s, input, output, n, stream);
    default: return cudaErrorNotSupported;
  }
}

}  // namespace

extern "C" {

const char* upsweep_peer_name() { return "CUB"; }
#define AS_TEXT(x) #x
#define TEXT_OF(x) AS_TEXT(x)
const char* upsweep_peer_version() {
  return TEXT_OF(CUB_MAJOR_VERSION) "." TEXT_OF(CUB_MINOR_VERSION) "." TEXT_OF(CUB_SUBMINOR_VERSION);
}

// Bytes of scratch, or a negative CUDA error (cudaErrorNotSupported: this peer does not have the combination).
int64_t upsweep_peer_reduce_scratch(int op, int type, uint64_t n) {
  Scratch s{nullptr, 0};
  cudaError_t error = run(op, type, s, nullptr, nullptr, n, nullptr);
  return error == cudaSuccess ? static_cast<int64_t>(s.bytes) : -static_cast<int64_t>(error);
}

int upsweep_peer_reduce(int op, int type, void* scratch, uint64_t scratch_bytes, const void* input, void* output, uint64_t n, void* stream) {
  Scratch s{scratch, static_cast<size_t>(scratch_bytes)};
  cudaError_t error = run(op, type, s, input, output, n, static_cast<cudaStream_t>(stream));
  if (error == cudaSuccess) error = cudaPeekAtLastError();
  return static_cast<int>(error);
}

}
