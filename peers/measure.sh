#!/usr/bin/env bash
# Everything that is recorded of one CUDA device, in one go: verification, memory checkers, ladder, bench beside CUB,
# checklist. Usage: peers/measure.sh UPSWEEP_BINARY OUTPUT_FOLDER [quick]
# Needs: the device, NVRTC, nvcc and compute-sanitizer of the CUDA toolkit on the path.
set -u
upsweep=$1 out=$2 mode=${3:-all}
mkdir -p "$out"
failed=0
step() {
  local name=$1 limit=$2
  shift 2
  local start=$SECONDS
  if timeout "$limit" "$@" >"$out/$name.log" 2>&1; then echo "ok     $name ($((SECONDS - start)) s)"; else
    echo "FAILED $name: exit $? ($((SECONDS - start)) s)"
    tail -n 15 "$out/$name.log"
    failed=1
  fi
}
here=$(cd "$(dirname "$0")" && pwd)
uname -r
step doctor 60 "$upsweep" doctor
step build_cub 120 nvcc -O3 -std=c++17 -arch=native -shared -Xcompiler -fPIC "$here/cub.cu" -o "$out/libcub.so"
peer=()
[ -f "$out/libcub.so" ] && peer=(--peer "$out/libcub.so")

step checklist 400 "$upsweep" checklist --device cuda --ladder "$out/ladder-reduce.json" --format json --out "$out/checklist.json"
for op in scan softmax; do
  step "ladder_$op" 240 "$upsweep" ladder $op --device cuda --repeats 30 --format json --out "$out/ladder-$op.json"
  step "bench_$op" 400 "$upsweep" bench $op --device cuda "${peer[@]}" --repeats 30 --format json --out "$out/bench-$op.json"
done
step torch 300 python3 "$here/torch_softmax.py" "$out/bench-softmax.json"
step bench 400 "$upsweep" bench reduce --device cuda "${peer[@]}" --repeats 30 --format json --out "$out/bench-reduce.json"
levels=(quick)
[ "$mode" = quick ] || levels=(full huge)
for op in reduce scan softmax; do
  for level in "${levels[@]}"; do
    step "verify_${op}_$level" 590 "$upsweep" verify $op --device cuda --cases $level --format json --out "$out/verify-$op-$level.json"
  done
done
exit $failed
