// CUB's device-wide reductions and scans behind a C interface, so that they are timed by the same timer, on the same buffers and
// behind the same verification as our own rungs (`upsweep bench OP --device cuda --peer FILE`).
// Build on the machine with the GPU: nvcc -O3 -std=c++17 -arch=native -shared -Xcompiler -fPIC cub.cu -o libcub.so
#include <cub/cub.cuh>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cstdint>
#include <cstdio>
#include <cstring>

namespace {

struct Widen {
  template <class T> __host__ __device__ float operator()(T x) const { return static_cast<float>(x); }
};

// What CUB writes for an arg-reduction: the value is not part of our output.
struct Scratch {
  void* temporary;
  size_t bytes;
};

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

template <class T> cudaError_t inclusive_sum(Scratch& s, const void* input, void* output, uint64_t n, cudaStream_t stream) {
  return cub::DeviceScan::InclusiveSum(s.temporary, s.bytes, static_cast<const T*>(input), static_cast<T*>(output), n, stream);
}
template <class T> cudaError_t inclusive_max(Scratch& s, const void* input, void* output, uint64_t n, cudaStream_t stream) {
  return cub::DeviceScan::InclusiveScan(s.temporary, s.bytes, static_cast<const T*>(input), static_cast<T*>(output),
                                        ::cuda::maximum<>{}, n, stream);
}

using Call = cudaError_t (*)(Scratch&, const void*, void*, uint64_t, cudaStream_t);

struct Entry {
  const char *what, *dtype;
  Call call;
};

constexpr Entry ENTRIES[] = {
    {"reduce sum", "f32", sum<float>},
    {"reduce sum", "f64", sum<double>},
    {"reduce sum", "i64", sum<int64_t>},
    {"reduce sum", "f16", wide_sum<__half>},
    {"reduce sum", "bf16", wide_sum<__nv_bfloat16>},
    {"reduce max", "f32", maximum<float>},
    {"reduce argmax", "f32", arg_maximum<float>},
    {"scan inclusive sum", "f32", inclusive_sum<float>},
    {"scan inclusive sum", "f64", inclusive_sum<double>},
    {"scan inclusive sum", "i64", inclusive_sum<int64_t>},
    {"scan inclusive max", "f32", inclusive_max<float>},
};

Call find(const char* what, const char* dtype) {
  for (const Entry& entry : ENTRIES)
    if (std::strcmp(entry.what, what) == 0 && std::strcmp(entry.dtype, dtype) == 0) return entry.call;
  return nullptr;
}

}  // namespace

extern "C" {

const char* upsweep_peer_name() { return "CUB"; }
const char* upsweep_peer_version() {
  static char text[32];
  std::snprintf(text, sizeof text, "%d.%d.%d", CUB_VERSION / 100000, CUB_VERSION / 100 % 1000, CUB_VERSION % 100);
  return text;
}

// Bytes of scratch, or a negative CUDA error (cudaErrorNotSupported: this peer does not have the problem).
int64_t upsweep_peer_scratch(const char* what, const char* dtype, uint64_t rows, uint64_t columns) {
  Call call = rows == 1 ? find(what, dtype) : nullptr;
  if (!call) return -static_cast<int64_t>(cudaErrorNotSupported);
  Scratch s{nullptr, 0};
  cudaError_t error = call(s, nullptr, nullptr, columns, nullptr);
  return error == cudaSuccess ? static_cast<int64_t>(s.bytes) : -static_cast<int64_t>(error);
}

int upsweep_peer_run(const char* what, const char* dtype, uint64_t rows, uint64_t columns, void* scratch, uint64_t scratch_bytes,
                     const void* input, void* output, void* stream) {
  Call call = rows == 1 ? find(what, dtype) : nullptr;
  if (!call) return static_cast<int>(cudaErrorNotSupported);
  Scratch s{scratch, static_cast<size_t>(scratch_bytes)};
  cudaError_t error = call(s, input, output, columns, static_cast<cudaStream_t>(stream));
  if (error == cudaSuccess) error = cudaPeekAtLastError();
  return static_cast<int>(error);
}

}
