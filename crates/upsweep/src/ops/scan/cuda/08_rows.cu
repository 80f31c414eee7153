// Rung 8, rows: a row is read once and stays in registers: LANES threads hold it, some of a warp for short rows, a block for long ones.
// input: rows of length elements, pitch elements apart; output: rows of length results, one after the other; initial: the state of the initial value
// launch: grid rows * LANES / BLOCK, block BLOCK; length a multiple of N, at most LANES * PACKS * N; static shared memory a state a warp
// cost: one read and one write of every element; no barrier up to a warp a row, one barrier beyond; a row's bits depend on its values and its length alone
// source: M. Harris and M. Garland, Optimizing Parallel Prefix Operations for the Fermi Architecture (2011); V. Volkov, Better Performance at Lower Occupancy (2010)

namespace upsweep {

// Of WITHIN neighbouring lanes, each lane's state with those of all lanes below.
template <class Op, u32 WITHIN> UPSWEEP_DEVICE typename Op::State lanes_scan(typename Op::State state) {
  const u32 lane = threadIdx.x % WITHIN;
#pragma unroll
  for (u32 delta = 1; delta < WITHIN; delta *= 2) {
    const typename Op::State before = shuffle_up(state, delta);
    if (lane >= delta) state = Op::combine(before, state);
  }
  return state;
}

template <class Op, u32 LANES, u32 PACKS, u32 N, u32 BLOCK, u32 RESIDENT, bool REVERSE>
__global__ void __launch_bounds__(BLOCK, RESIDENT)
    scan_rows(const void* input, const void* beside, u64 rows, u64 length, i64 pitch, void* output, u64 initial, u64 exclusive) {
  using T = typename Op::Input;
  using State = typename Op::State;
  using Output = typename Op::Output;
  using C = Carry<Op>;
  static_assert(LANES <= WARP ? BLOCK % WARP == 0 : BLOCK == LANES, "groups of more than a warp are the whole block");
  constexpr u32 WITHIN = LANES < WARP ? LANES : WARP, WARPS = LANES / WITHIN;
  __shared__ SharedStates<State, WARP> shared;
  const u32 lane = threadIdx.x % WITHIN, warp = threadIdx.x % LANES / WITHIN;
  const u64 row = u64(blockIdx.x) * (BLOCK / LANES) + threadIdx.x / LANES;
  // Lanes without a row take part in the shuffles, with identities.
  const u32 count = row < rows ? u32(length) : 0;
  constexpr bool HAS_COEFFICIENTS = BESIDE<Op> == Beside::COEFFICIENTS;
  const T* elements = static_cast<const T*>(input) + i64(row) * pitch;
  const T* coefficients = HAS_COEFFICIENTS ? static_cast<const T*>(beside) + i64(row) * pitch : elements;
  Output* results = static_cast<Output*>(output) + row * length;
  const u64 addresses = reinterpret_cast<u64>(input) | (HAS_COEFFICIENTS ? reinterpret_cast<u64>(beside) : 0);
  const bool loads_packs = (addresses & (N * sizeof(T) - 1)) == 0 && (u64(pitch) & (N - 1)) == 0;
  const bool stores_packs = (reinterpret_cast<u64>(output) & (N * sizeof(Output) - 1)) == 0;
  // The lane's packs are neighbours of its warp's; `place` counts in the order of the scan.
  auto place = [&](u32 k) { return ((warp * PACKS + k) * WITHIN + lane) * N; };
  auto lowest = [&](u32 k) { return REVERSE ? count - N - place(k) : place(k); };

  Bits128 bits[PACKS], beside_bits[PACKS];
  State items[PACKS][N];
  if (loads_packs) {
#pragma unroll
    for (u32 k = 0; k < PACKS; ++k) {
      if (place(k) < count) {
        bits[k] = load_group<T, N>(elements + lowest(k));
        beside_bits[k] = HAS_COEFFICIENTS ? load_group<T, N>(coefficients + lowest(k)) : bits[k];
      }
    }
  }
#pragma unroll
  for (u32 k = 0; k < PACKS; ++k) {
#pragma unroll
    for (u32 i = 0; i < N; ++i) {
      const u32 j = REVERSE ? N - 1 - i : i;
      items[k][i] = Op::identity();
      if (place(k) >= count) continue;
      if (loads_packs) items[k][i] = lift_with<Op>(element_of<T>(bits[k], j), element_of<T>(beside_bits[k], j));
      else items[k][i] = lift_with<Op>(elements[lowest(k) + j], coefficients[lowest(k) + j]);
    }
  }
  State with[PACKS];  // of the lane's pack and all packs below it in the warp's row of packs
#pragma unroll
  for (u32 k = 0; k < PACKS; ++k) {
#pragma unroll
    for (u32 i = 1; i < N; ++i) items[k][i] = Op::combine(items[k][i - 1], items[k][i]);
    with[k] = lanes_scan<Op, WITHIN>(items[k][N - 1]);
  }
  State sum = Op::identity(), front[PACKS];
#pragma unroll
  for (u32 k = 0; k < PACKS; ++k) {
    const State below = shuffle_up(with[k], 1);
    front[k] = lane == 0 ? sum : Op::combine(sum, below);
    sum = Op::combine(sum, shuffle_from(with[k], threadIdx.x % WARP | (WITHIN - 1)));
  }
  const Results<Op> result = {initial, exclusive != 0};
  State base = result.start();
  if constexpr (WARPS > 1) {
    if (lane == 0) shared.get()[warp] = sum;
    __syncthreads();
    base = C::lower(C::join(C::raise(base), C::raise(first_warps<Op, WARPS>(shared.get(), warp))));
  }
#pragma unroll
  for (u32 k = 0; k < PACKS; ++k) {
    if (place(k) >= count) break;
    const State before = Op::combine(base, front[k]);
    Output stored[N];
    State earlier = before;
#pragma unroll
    for (u32 i = 0; i < N; ++i) {
      const State inclusive = Op::combine(before, items[k][i]);
      stored[REVERSE ? N - 1 - i : i] = result.of(earlier, inclusive, false);
      earlier = inclusive;
    }
    Output* target = results + lowest(k);
    if (stores_packs) {
      store_group<Output, N>(target, stored);
    } else {
#pragma unroll
      for (u32 i = 0; i < N; ++i) target[i] = stored[i];
    }
  }
}

}  // namespace upsweep
