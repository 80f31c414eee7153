namespace upsweep {

// Data in closed form for sizes that no host makes: element i is i mod period, but `marked` holds the greatest value.
// launch: any grid, block 256; input is written
template <class T> UPSWEEP_KERNEL fill_closed_form(T* elements, u64 n, u64 period, u64 marked) {
  for (u64 i = u64(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += u64(gridDim.x) * blockDim.x)
    elements[i] = Narrow<T>::from(i == marked ? Traits<T>::highest() : typename Traits<T>::Wide(i % period));
}

}  // namespace upsweep
